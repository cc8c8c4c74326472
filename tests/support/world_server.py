"""The server in front of a world's engine: the application as it is, with its users' HTTP and what they must get."""

import asyncio
import base64
import hashlib
import json
import random
import re
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send

from penstock.access.admission import LONGEST_RETRY, QUEUED_FOR_MEMORY, SHEDDING_FROM, AdmissionControl
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Bounds, Tenant, levels_of
from penstock.core.config import EngineConfig
from penstock.core.errors import MemoryPressure, Overloaded, QueueFull, SloUnreachable
from penstock.http.drain import Deadline, Drain
from penstock.observability.accounts import Accounts
from penstock.observability.explain.explain import Figures
from penstock.server.app import create_app
from penstock.server.capacity import make_admission
from penstock.server.dialects import DIALECTS
from penstock.server.paths import LAST_PATHS
from support.world_http import Answer, Exchange
from support.world_jobs import Job, Scenario
from support.world_manners import COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, WEIGHTS, language

if TYPE_CHECKING:
    from support.world import World

# The seed of the request that is being sent, where its API has no field for it.
SEED: ContextVar[int] = ContextVar("SEED", default=0)

# What errors say, how a request has ended then, and its HTTP status; "again" asks to be sent again.
ENDS = (
    (r"time ran out", "late", 504),
    (r"server (is stopping|stopped)", "stopped", 503),
    (r"failed \d+ times", "given up", 500),
    (r"scripted row failed", "failed", 500),
    (r"; try again in \d+ s\.$", "overloaded", 503),
    (r"API key are under way", "overloaded", 429),
    (r"try again (in a few seconds|later)\.$", "again", 503),
    (r"needs up to \d+ KV blocks|server's context|maximum context length", "refused", 400),
)
# How late an end may come in simulated seconds in which nothing is computed.
MOMENT = 0.01


class WatchedAdmission(AdmissionControl):
    """Admission that has each refusal looked at."""

    server: "Server"

    def _refusal(self, kind: type[Overloaded], cause: str, seconds: float | None = None) -> Overloaded:
        self.server.refused(kind)
        return super()._refusal(kind, cause, seconds)


class Server:
    """The application of a world, and what is under way in it.

    Attributes:
        refusals: how many there were, by code.
        draining: whether it is being brought to its end.
    """

    def __init__(self, world: "World", plan: Scenario, config: EngineConfig) -> None:
        self.world = world
        self.front = plan.front
        self.refusals: Counter[str] = Counter()
        self.draining = False
        self._rng = random.Random(f"server {plan.seed}")
        self._running: dict[Exchange, Job] = {}
        self._under_way: Counter[bytes] = Counter()
        made = make_admission(self.front.bounds, config)
        self.blocks_for = made._blocks_for
        self.admission = WatchedAdmission(self.front.bounds, self.blocks_for, self._rng.random)
        self.admission.server = self
        tokenizer, template, _ = language()
        bounds = Bounds(max_concurrent_requests=self.front.most)
        keys = [
            Key(Tenant(name=name, weight=weight, levels=levels_of([(f"key/{name}", bounds)])), _digest(name))
            for name, weight in WEIGHTS.items()
        ]
        accounts = Accounts(world.engine)
        accounts.figures = Figures(world.work)
        app = create_app(
            world.engine,
            tokenizer,
            template=template,
            keys=Keyring(keys) if self.front.keyed else None,
            admission=self.admission,
            request_timeout=self.front.request_timeout,
            accounts=accounts,
        )
        self.drain = Drain(app, DIALECTS, LAST_PATHS)

    # Users.

    async def ask(self, job: Job) -> str:
        """Send a request and read its answer, again where it is refused; how it ended."""
        manner = job.manner
        assert manner is not None
        tries = 0
        while True:
            SEED.set(job.name)
            headers = {"authorization": f"Bearer {job.standing.tenant}"} if self.front.keyed else {}
            body = json.dumps(body_of(job)).encode()
            jumps = self.world.jumps
            exchange = Exchange(
                self._enter, "POST", manner.path, body, headers=headers, parts=manner.parts, room=manner.room
            )
            self._running[exchange] = job
            exchange.task.add_done_callback(lambda _, sent=exchange: self._running.pop(sent))
            try:
                outcome = await self._read(job, exchange)
            finally:
                await self._leave(job, exchange)
            answer = Answer(exchange)
            self.world.note(repr((job.name, outcome, exchange.status, answer.texts, answer.error)).encode())
            self._check_times(job, exchange, outcome, jumped=jumps != self.world.jumps)
            _keep(job, answer, whole=outcome == "finished")
            if outcome == "again":
                await asyncio.sleep(0.5 + self._rng.random())
                continue
            tries += 1
            if outcome != "overloaded" or tries == manner.tries:
                return outcome
            await asyncio.sleep(float(exchange.headers["retry-after"]) if manner.heeds else self._rng.random())

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with a look at whether its tenant may have one more under way."""
        key = dict(scope["headers"]).get(b"authorization", b"")
        full = self.front.keyed and self.front.most is not None and self._under_way[key] >= self.front.most
        answered = False

        async def checked(message: Message) -> None:
            nonlocal answered
            if not answered and not self.draining:
                assert (message["status"] == 429) == full, f"{self._under_way[key]} under way, and {message['status']}"
            answered = True
            await send(message)

        self._under_way[key] += not full
        try:
            await self.drain(scope, receive, checked)
        finally:
            self._under_way[key] -= not full

    async def _read(self, job: Job, exchange: Exchange) -> str:
        manner = job.manner
        assert manner is not None
        wanted = job.outputs_wanted if manner.cancels is None else manner.cancels
        cancelled = False
        if not await exchange.read(job.reading, wanted):
            if manner.cancels is None:
                return "aborted"
            cancelled = await self._cancel(job, exchange)
            await exchange.read(job.reading)
        answer = Answer(exchange)
        if cancelled and answer.whole:
            assert answer.code == "cancelled", "what was cancelled has ended otherwise"
            return "cancelled"
        return self._judge(exchange, answer)

    async def _leave(self, job: Job, exchange: Exchange) -> None:
        """Whatever has ended an exchange, the engine has been told of it in the same moment."""
        if not exchange.task.done():
            left, jumps = self.world.loop.now, self.world.jumps
            await exchange.leave()
            late = self.world.loop.now - left
            assert late < MOMENT or jumps != self.world.jumps, f"a client that has gone is noticed after {late} s"
        self.world.check_gone(job)

    async def _cancel(self, job: Job, exchange: Exchange) -> bool:
        """Cancel a response by its id; False where it had ended."""
        response = json.loads(exchange.body.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        headers = {"authorization": f"Bearer {job.standing.tenant}"} if self.front.keyed else {}
        asked = Exchange(self.drain, "POST", f"{RESPONSES}/{response}/cancel", headers=headers)
        await asked.read()
        if asked.status == 200:
            assert json.loads(asked.body)["status"] == "cancelled"
            # The application goes on at the end of this moment.
            await asyncio.sleep(0)
        else:
            assert asked.status in (400, 404) or self.draining
        return asked.status == 200

    def _judge(self, exchange: Exchange, answer: Answer) -> str:
        assert exchange.complete
        if answer.error is None:
            assert answer.whole and exchange.status == 200
            return "finished"
        ends = [end for end in ENDS if re.search(end[0], answer.error)]
        assert len(ends) == 1, f"an error of no kind, or two: {answer.error}"
        _, outcome, status = ends[0]
        if not exchange.is_stream:
            overloaded = status == 503 and exchange.path == MESSAGES
            assert exchange.status == (529 if overloaded else status), answer.error
            again = status in (429, 503)
            assert ("retry-after" in exchange.headers) == again, f"{status} and when to come back"
            assert not again or 1 <= int(exchange.headers["retry-after"]) <= LONGEST_RETRY
        else:
            # What refuses a request does so before anything of it has come.
            assert outcome not in ("again", "overloaded", "refused")
        assert outcome != "stopped" or self.draining
        return outcome

    def _check_times(self, job: Job, exchange: Exchange, outcome: str, *, jumped: bool) -> None:
        """A deadline ends a request then, and neither before nor later."""
        asked = None if job.manner is None else job.manner.timeout
        seconds = min((value for value in (asked, self.front.request_timeout) if value is not None), default=None)
        if seconds is None:
            assert outcome != "late", "a request without a deadline is late"
        if seconds is None or exchange.ended is None or exchange.arrived is None:
            return
        took = exchange.ended - exchange.arrived
        # What is still being sent is nobody's to end.
        latest = max(seconds, sum(job.manner.parts if job.manner else ())) + MOMENT
        assert outcome != "late" or took >= seconds - 1e-6, f"{took} s are not {seconds}"
        assert jumped or took < latest, f"the deadline was {seconds} s, and the end came after {took}"

    # What must hold.

    def refused(self, kind: type[Overloaded]) -> None:
        """Admission refuses something; only where there is so much to do."""
        self.refusals[kind.code] += 1
        running, bounds = list(self._running.values()), self.front.bounds
        prompts = sum(len(job.prompts) for job in running)
        tokens = sum(len(prompt) for job in running for prompt in job.prompts)
        share = max(prompts / bounds.requests, tokens / bounds.tokens)
        assert len(running) > 1, "nobody else is there, and a request is refused"
        if kind is QueueFull:
            assert share > SHEDDING_FROM, f"refused at {share:.2f} of the queue"
        if kind is SloUnreachable:
            assert bounds.ttft is not None
        if kind is MemoryPressure:
            load = self.world.engine.load
            needed = sum(
                job.params.n * self.blocks_for(len(prompt) + (job.params.max_tokens or 0))
                for job in running
                for prompt in job.prompts
            )
            assert share > QUEUED_FOR_MEMORY and load.blocks_used + needed > 0.95 * load.blocks_total

    def check(self) -> None:
        """Admission counts nobody who is not there."""
        prompts, tokens = self.admission.waiting()
        assert prompts <= sum(len(job.prompts) for job in self._running.values()), "somebody waits who is not there"
        assert tokens >= 0 and self.admission._promised >= 0

    def check_idle(self) -> None:
        """Nothing is counted any more."""
        assert not self._running and self.drain.requests == 0
        assert self.admission.waiting() == (0, 0) and not self.admission._waiting, "nobody waits, and somebody counts"
        assert self.admission._promised == 0, "blocks are promised to nobody"

    async def stop(self, seconds: float) -> None:
        """Bring the server to its end, as a signal does."""
        self.draining = True
        begun, jumps = self.world.loop.now, self.world.jumps
        await self.drain.finish(Deadline.after(seconds))
        # Users who left learn a turn later that the application is done with their request.
        left = [exchange for exchange in self._running if exchange.ended is None and not exchange.task.done()]
        assert all(exchange.arrived is None or exchange.arrived >= begun for exchange in left), (
            "a request outlives the server"
        )
        took = self.world.loop.now - begun
        assert took < seconds + 5.0 + MOMENT or jumps != self.world.jumps

    async def check_ready(self, ready: bool) -> None:
        """What `/health/ready` says."""
        exchange = Exchange(self.drain, "GET", "/health/ready")
        await exchange.read()
        assert exchange.status == (200 if ready and not self.draining else 503), f"ready: {exchange.status}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def body_of(job: Job) -> dict[str, Any]:
    """The request as its endpoint has it."""
    manner, params = job.manner, job.params
    assert manner is not None
    fields: dict[str, Any] = {}
    if manner.timeout is not None:
        fields["timeout"] = manner.timeout
    if manner.path != MESSAGES:
        fields |= {"cache_salt": manner.salt} if manner.salt else {}
        fields |= {"priority": job.standing.priority} if job.standing.priority else {}
    if manner.path == EMBEDDINGS:
        return fields | {"input": job.prompt, "pooling": job.pooling, "encoding_format": "base64"}
    fields["stream"] = manner.stream
    if manner.path == MESSAGES:
        fields["messages"] = [{"role": "user", "content": manner.content}]
        return fields | {"max_tokens": params.max_tokens}
    fields["seed"] = params.seed
    if manner.path == RESPONSES:
        return fields | {"input": manner.content, "max_output_tokens": params.max_tokens}
    fields |= {"max_tokens": params.max_tokens, "n": params.n, "ignore_eos": params.ignore_eos}
    fields["return_token_ids"] = True
    if manner.stream and manner.usage:
        fields["stream_options"] = {"include_usage": True}
    if params.prompt_logprobs is not None:
        fields["prompt_logprobs"] = params.prompt_logprobs
    if manner.path == COMPLETIONS:
        return fields | {"prompt": job.prompts if job.more else job.prompt}
    return fields | {"messages": [{"role": "user", "content": manner.content}]}


def _keep(job: Job, answer: Answer, *, whole: bool) -> None:
    """What a user has got; whoever asks once more begins again."""
    job.texts, job.finishes, job.scores = answer.texts, answer.finishes, answer.scores
    if job.tokens is not None:
        job.tokens = answer.tokens
    if answer.vectors:
        (vector,) = answer.vectors
        job.vector = base64.b64decode(vector)
    usage = answer.usage
    if not whole or usage is None:
        assert not whole or (job.manner and job.manner.stream and not job.manner.usage), "an answer without usage"
        return
    read = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    job.cached_tokens = details.get("cached_tokens", usage.get("cache_read_input_tokens", 0))
    if job.manner is not None and job.manner.path == MESSAGES:
        read += job.cached_tokens + usage.get("cache_creation_input_tokens", 0)
    assert read == sum(map(len, job.prompts)), "usage has another number of tokens"
    written = usage.get("completion_tokens", usage.get("output_tokens", 0))
    if job.tokens is not None:
        assert written == sum(map(len, job.tokens.values())), "usage has another number of output tokens"
