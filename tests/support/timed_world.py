"""A world whose work takes time: seconds on its clock are counts of what was done, so that causes have exact shares."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from unittest import mock

from penstock.access.admission import QueueBounds
from penstock.core.config import SchedulerConfig
from penstock.core.grammar import Grammar
from penstock.core.plan import StepPlan
from penstock.core.work import LayerWork, ModelWork
from penstock.engine.interface import ModelInfo
from penstock.observability.metrics import Metrics
from penstock.text.tokenizer import Tokenizer
from support.made_up_model import kv_spec
from support.world import World
from support.world_engine import Worker
from support.world_http import Exchange
from support.world_jobs import CONTEXT, EOS, Faults, Scenario
from support.world_manners import Front, language

# Seconds that a step takes, a token in it, a position that a token looks back to, and a grammar.
STEP_SECONDS = 0.01
TOKEN_SECONDS = 0.01
SEEN_SECONDS = 0.001
GRAMMAR_SECONDS = 5.0

Use = Callable[["TimedWorld"], Coroutine[Any, Any, None]]


class InPlace:
    """In place of threads: what they would do is done at once."""

    def __init__(self, *_threads: object, **_options: object) -> None:
        pass

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)


class TimedWorld(World):
    """A world without faults, with one script instead of users.

    Attributes:
        character_seconds: what a character of a prompt's text takes to become tokens.
    """

    work = ModelWork(weight_bytes=3000, attention=(LayerWork(1, 100, 4),))

    def __init__(self, use: Use, *, num_blocks: int = 200, max_num_seqs: int = 8, budget: int = CONTEXT) -> None:
        """`budget`: tokens of a step."""
        config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=CONTEXT)
        nothing = Faults(**dict.fromkeys(Faults.__dataclass_fields__, 0))
        front = Front(1.0, False, None, QueueBounds(requests=100, tokens=10**6), None, None, 0.0)
        super().__init__(
            Scenario(5, kv_spec(4), num_blocks, config, True, False, 0.0, [], nothing, front, turns=(0.0,))
        )
        self.character_seconds = 0.0
        self.grammars = Grammars(self)
        self._use = use

    def run(self) -> "TimedWorld":
        """Run the script on the world's clock, which is what the server and the engine read."""
        usual = Tokenizer.encode

        def encode(tokenizer: Tokenizer, text: str, *arguments: Any, **options: Any) -> list[int]:
            self.loop.now += self.character_seconds * len(text)
            return usual(tokenizer, text, *arguments, **options)

        def now() -> float:
            return self.loop.now if hasattr(self, "loop") else 0.0

        with (
            mock.patch.object(time, "monotonic", now),
            mock.patch.object(time, "thread_time", now),
            mock.patch.dict(Metrics.__init__.__kwdefaults__, clock=now),
            mock.patch.object(Tokenizer, "encode", encode),
            mock.patch("penstock.engine.preparation.ThreadPoolExecutor", InPlace),
        ):
            super().run()
        return self

    def computed(self, plan: StepPlan) -> None:
        tokens = sum(row.count for row in plan.rows)
        seen = sum(row.count * row.start for row in plan.rows)
        self.loop.now += STEP_SECONDS + TOKEN_SECONDS * tokens + SEEN_SECONDS * seen

    def check(self, worker: Worker) -> None:
        """The script's requests are nobody's whom a world knows."""

    async def _everything(self) -> None:
        await self.engine.ready(ModelInfo("simulated", CONTEXT, self._vocabulary, 2, EOS), language()[0].table)
        await self._use(self)
        await self.engine.close()

    # What a script does.

    async def ask(self, path: str = "/v1/completions", pause: float = 0.0, room: int = 65536, **fields: Any) -> str:
        """The id of a request once it is answered; its client pauses so long between two looks at the answer."""
        body = json.dumps({"temperature": 0, "ignore_eos": True, **fields}).encode()
        exchange = Exchange(self.server.drain, "POST", path, body, room=room)
        await exchange.read(pause)
        assert exchange.status == 200, exchange.body
        return exchange.headers["x-request-id"]

    async def causes(self, request_id: str) -> list[str]:
        """What a request's time went into, the largest first."""
        exchange = Exchange(self.server.drain, "GET", f"/v1/requests/{request_id}/explain")
        await exchange.read()
        told = json.loads(exchange.body)
        assert told["state"] == "ended"
        codes = [cause["code"] for cause in told["causes"]]
        assert told["verdict"]["cause"] == codes[0]
        return codes

    async def beside(self, *others: Awaitable[str]) -> "list[asyncio.Future[str]]":
        """Requests that are under way, after a moment."""
        under_way = [asyncio.ensure_future(other) for other in others]
        await asyncio.sleep(0.0001)
        return under_way


class Grammars:
    """Makes grammars ready in so many seconds on the world's clock."""

    def __init__(self, world: TimedWorld) -> None:
        self._world = world
        self._made: set[Grammar] = set()

    def load(self) -> None:
        """There is nothing to load."""

    def has(self, grammar: Grammar) -> bool:
        return grammar in self._made

    def compile(self, grammar: Grammar) -> None:
        self._made.add(grammar)
        self._world.loop.now += GRAMMAR_SECONDS
