"""Turns the engine's events into what users get: text that may be shown, ids, logprobs, ends."""

import time

from penstock.core.events import RequestTimings, SampleOutput
from penstock.core.plan import TokenLogprobs
from penstock.core.request import Request
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.text.detokenizer import Detokenizer
from penstock.text.table import TokenTable


class _SampleState:
    """One sample: its detokenizer and what has come since the last delta was taken."""

    __slots__ = ("_detokenizer", "_include_stop", "delta", "finished", "index")

    def __init__(self, index: int, request: Request, table: TokenTable | None) -> None:
        params = request.sampling
        self.index = index
        self.finished = False
        self.delta: SampleDelta | None = None
        self._include_stop = params.include_stop_str_in_output
        self._detokenizer = (
            None
            if table is None
            else Detokenizer(
                table,
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
            )
        )

    def push(self, event: SampleOutput) -> None:
        delta = self.delta
        if delta is None:
            self.delta = delta = SampleDelta(self.index, "", [])
        delta.token_ids += event.tokens
        if event.logprobs is not None:
            delta.logprobs = (delta.logprobs or []) + list[TokenLogprobs](event.logprobs)
        if self._detokenizer is not None:
            delta.text += self._text(self._detokenizer, event)
        if event.finish is not None:
            self.finished = True
            delta.finish_reason = event.finish
            delta.stop_reason = event.stop_reason
            delta.error = event.error

    def _text(self, detokenizer: Detokenizer, event: SampleOutput) -> str:
        tokens = event.tokens
        # A token that ends the output is not part of its text, whether or not the tokenizer calls it special.
        ended_by_token = event.finish == "stop" and not isinstance(event.stop_reason, str)
        if ended_by_token and not self._include_stop:
            tokens = tokens[:-1]
        text = detokenizer.push(tokens)
        if event.finish is not None:
            text += detokenizer.finish(stopped=isinstance(event.stop_reason, str))
        return text


class RequestState:
    """What the client keeps of a request. Events that nobody has taken yet are merged."""

    def __init__(self, request: Request, table: TokenTable | None) -> None:
        self.request = request
        self.arrived = time.monotonic()
        self.first_token: float | None = None
        self.finished_at: float | None = None
        self._cached_tokens = 0
        self._samples = [_SampleState(index, request, table) for index in range(request.sampling.n)]
        self._unfinished = len(self._samples)

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return self._unfinished == 0

    @property
    def timings(self) -> RequestTimings:
        """When it arrived, had its first token, ended."""
        return RequestTimings(self.arrived, self.first_token, self.finished_at)

    def push(self, event: SampleOutput) -> None:
        """Take in one event of the engine."""
        sample = self._samples[event.sample_index]
        if sample.finished:
            return
        if event.cached_tokens is not None:
            self._cached_tokens = event.cached_tokens
        if self.first_token is None and event.tokens:
            self.first_token = time.monotonic()
        sample.push(event)
        if sample.finished:
            self._unfinished -= 1
            if self._unfinished == 0:
                self.finished_at = time.monotonic()

    @property
    def has_output(self) -> bool:
        """Whether there is something to take."""
        return any(sample.delta is not None for sample in self._samples)

    def take(self) -> RequestOutput:
        """Everything that came since the last call, one delta for each sample that gained something."""
        deltas = []
        for sample in self._samples:
            if sample.delta is not None:
                deltas.append(sample.delta)
                sample.delta = None
        request = self.request
        return RequestOutput(
            request_id=request.request_id,
            deltas=deltas,
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=self._cached_tokens,
            seed=request.sampling.seed or 0,
            finished=self.finished,
        )
