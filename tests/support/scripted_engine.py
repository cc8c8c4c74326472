"""An engine client that says what the test tells it to, in this process."""

import asyncio
import math
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from penstock.core.ceilings import Ceilings
from penstock.core.errors import EngineUnavailable
from penstock.core.events import KeptTokens, LoadSnapshot
from penstock.core.facts import StepFacts, StepTotals
from penstock.core.kv_policy import KVPolicy
from penstock.core.plan import Ending, FinishReason, TokenLogprobs
from penstock.core.request import EVERYBODY, KeptPrefix, Standing
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling
from penstock.engine.interface import ModelInfo, RequestOutput, SampleDelta
from penstock.engine.journal import Journal, Mark
from penstock.text.detokenizer import Detokenizer
from penstock.text.table import TokenTable


@dataclass
class Call:
    """One request as the engine got it."""

    prompt: list[int]
    params: SamplingParams
    standing: Standing
    keep: tuple[KeptPrefix, ...] = ()
    keep_whole: float = 0.0
    kv_policy: KVPolicy | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    outputs: int = 0
    pooling: Pooling | None = None
    pooled_from: int = 0
    forced_bos: int | None = None
    offered_at: str = ""
    unseen: int = 0
    second_from: int = 0


class ScriptedEngine:
    """Answers every sample with `reply` (token ids), one token per output, then ends it.

    Attributes:
        calls: what was asked, in order.
        answer: gives the token ids that answer a prompt, in the place of `reply`.
        dropped: how many tokens a request with a policy for its context drops with each output.
        before: called (and awaited) before each output; can raise, or wait.
    """

    def __init__(self, table: TokenTable | None, reply: Iterable[int], **model: object) -> None:
        settings = {
            "name": "scripted",
            "max_model_len": 256,
            "vocab_size": 1000,
            "embedding_size": 4,
            "created": 1700000000,
            **model,
        }
        self.model = ModelInfo(**settings)  # type: ignore[arg-type]
        self.load = LoadSnapshot(step=7, running=2, waiting=3, blocks_total=100, blocks_used=40, blocks_cached=5)
        self.calls: list[Call] = []
        self.reply = list(reply)
        self.finish: FinishReason = "stop"
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.code: str | None = None
        self.unavailable: str | None = None
        self.kept: KeptTokens | None = None
        self.dropped = 0
        self.before: Callable[[Call], object] | None = None
        self.answer: Callable[[list[int]], list[int]] | None = None
        self._table = table
        self.totals = StepTotals()
        self.process_id: int | None = None
        self.ceilings: Ceilings | None = None
        self.observers: list[Callable[[StepFacts], None]] = []

    def observe(self, observer: Callable[[StepFacts], None]) -> None:
        self.observers.append(observer)

    def check_ready(self) -> None:
        if self.unavailable is not None:
            raise EngineUnavailable(self.unavailable)

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self._table is None:
            return None
        return Detokenizer(
            self._table,
            params.stop,
            params.include_stop_str_in_output,
            params.skip_special_tokens,
            kept_special=params.kept_special_tokens,
        )

    async def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        standing: Standing = EVERYBODY,
        keep: tuple[KeptPrefix, ...] = (),
        keep_whole: float = 0.0,
        output: tuple[int, ...] = (),
        kv_policy: KVPolicy | None = None,
        forced_bos: int | None = None,
        offered_at: str = "",
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        call = Call(
            prompt_token_ids,
            params,
            standing,
            keep,
            keep_whole,
            kv_policy,
            forced_bos=forced_bos,
            offered_at=offered_at,
        )
        self.calls.append(call)
        number = len(self.calls)
        journal = Journal(len(prompt_token_ids), Mark(time.monotonic(), self.totals))
        if follow is not None:
            follow(journal)
        texts = [self._detokenizer(params) for _ in range(params.n)]
        reply = self.reply if self.answer is None else self.answer(prompt_token_ids)
        tokens = reply if params.max_tokens is None else reply[: params.max_tokens]
        scores = _scores(prompt_token_ids, params)
        cached, seed = min(4, len(prompt_token_ids)), 41 + number if params.seed is None else params.seed
        try:
            if not tokens:
                ends = [SampleDelta(index, "", [], None, Ending("length")) for index in range(params.n)]
                yield RequestOutput(number, ends, len(prompt_token_ids), 0, seed, True, prompt_logprobs=scores)
            for position, token in enumerate(tokens):
                last = position == len(tokens) - 1
                await asyncio.sleep(0)
                if self.before is not None:
                    waiting = self.before(call)
                    if asyncio.iscoroutine(waiting):
                        await waiting
                ending = None
                if last:
                    reason = "length" if len(tokens) < len(reply) else self.finish
                    ending = Ending(reason, self.stop_reason, self.error, self.code)
                deltas = []
                for index, text in enumerate(texts):
                    over = None if ending is None else "length" if ending.reason == "stop" else ending.reason
                    shown = "" if text is None else text.advance([token], over, None)
                    deltas.append(SampleDelta(index, shown, [token], self._logprobs(token, params), ending))
                call.outputs += 1
                journal.tokens(len(deltas), Mark(time.monotonic(), self.totals))
                told = None if position else scores
                yield RequestOutput(
                    number,
                    deltas,
                    len(prompt_token_ids),
                    cached,
                    seed,
                    last,
                    prompt_logprobs=told,
                    kept=self.kept,
                    dropped_tokens=0 if kv_policy is None else self.dropped * (position + 1),
                )
        finally:
            journal.end(Mark(time.monotonic(), self.totals))
            call.closed.set()

    async def embed(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        pooled_from: int = 0,
        unseen: int = 0,
        second_from: int = 0,
        standing: Standing = EVERYBODY,
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """The vector of a prompt is (its length, 4, 0, 12) / norm, doubled in the second place for a mean.

        Each token's is (its id, 4, 0, 12) / norm.
        """
        call = Call(prompt_token_ids, SamplingParams(), standing, pooling=pooling, pooled_from=pooled_from)
        call.unseen, call.second_from = unseen, second_from
        self.calls.append(call)
        if follow is not None:
            follow(Journal(len(prompt_token_ids), Mark(time.monotonic(), self.totals)))
        try:
            await asyncio.sleep(0)
            if self.before is not None:
                waiting = self.before(call)
                if asyncio.iscoroutine(waiting):
                    await waiting
            firsts = prompt_token_ids if pooling == "tokens" else [len(prompt_token_ids)]
            second = 8.0 if pooling == "mean" else 4.0
            vector = b"".join(_unit(float(first), second, 0.0, 12.0) for first in firsts)
            reason: FinishReason = "length" if self.error is None else "error"
            delta = SampleDelta(0, "", [], None, Ending(reason, error=self.error))
            yield RequestOutput(len(self.calls), [delta], len(prompt_token_ids), 1, 0, True, embedding=vector)
        finally:
            call.closed.set()

    def _logprobs(self, token: int, params: SamplingParams) -> list[TokenLogprobs] | None:
        if params.logprobs is None:
            return None
        tops = [token, token + 1, token + 2][: params.logprobs]
        return [TokenLogprobs(token, -0.5, tops, [-0.5, -1.5, float("-inf")][: params.logprobs])]


def _scores(prompt: list[int], params: SamplingParams) -> list[TokenLogprobs | None] | None:
    """Each token of the prompt is the third most likely in its place, behind tokens 7 and 8."""
    top = params.prompt_logprobs
    if top is None:
        return None
    return [None] + [
        TokenLogprobs(token, -0.25 * place, [7, 8, token][:top], [-0.1, -0.2, -0.25 * place][:top], 3)
        for place, token in enumerate(prompt[1:], 1)
    ]


def _unit(*values: float) -> bytes:
    norm = math.hypot(*values)
    return array("f", (value / norm for value in values)).tobytes()
