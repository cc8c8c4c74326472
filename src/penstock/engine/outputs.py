"""Turns the engine's events into what users get: text that may be shown, ids, logprobs, ends."""

from msgspec.structs import replace

from penstock.core.events import KeptTokens, RequestTimings, SampleOutput
from penstock.core.plan import Gained, TokenLogprobs
from penstock.core.request import Request
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.engine.journal import Journal, Mark
from penstock.text.detokenizer import Detokenizer
from penstock.text.table import TokenTable


class OutputChanged(Exception):
    """An engine that computed a request again gave other tokens than the one before it."""


class _SampleState:
    """One sample: its detokenizer, all tokens, and what has come since the last delta was taken."""

    __slots__ = ("_detokenizer", "_ends", "_failed", "_seen", "_tokens", "delta", "ended", "index")

    def __init__(self, index: int, request: Request, table: TokenTable | None) -> None:
        params = request.sampling
        self.index = index
        self.delta: SampleDelta | None = None
        self.ended = False
        self._failed = False
        self._tokens: list[int] = []
        # How many of them the engine that computes now has given.
        self._seen = 0
        # Tokens that end an output by themselves. One that a grammar has completed ends with a token of its text.
        self._ends = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
        self._detokenizer = (
            None
            if table is None or request.pooling is not None
            else Detokenizer(
                table,
                params.stop,
                params.include_stop_str_in_output,
                params.skip_special_tokens,
                params.min_tokens,
                params.kept_special_tokens,
            )
        )

    def begin_again(self, count: int) -> None:
        """What was given so far will come once more, but for the first tokens."""
        self._seen = count

    def unseen(self, gained: Gained) -> Gained | None:
        """What of it is new; None where nothing is. Raises OutputChanged where the rest is not what it was."""
        if self._failed:
            return None
        again = self._tokens[self._seen : self._seen + len(gained.tokens)]
        count = len(again)
        self._seen += count
        # A row can fail in one engine only, and anywhere.
        ending = gained.ending
        early = ending is not None and ending.reason != "error" and self._seen < len(self._tokens)
        if gained.tokens[:count] != again or early or (self.ended and len(gained.tokens) > count):
            raise OutputChanged
        if self.ended or (count and count == len(gained.tokens) and ending is None):
            return None
        if not count:
            return gained
        logprobs = None if gained.logprobs is None else gained.logprobs[count:]
        return replace(gained, tokens=gained.tokens[count:], logprobs=logprobs)

    def begin(self) -> None:
        """There is nothing of it yet, but there will be."""
        if self.delta is None and not self.ended:
            self.delta = SampleDelta(self.index, "", [])

    def push(self, gained: Gained) -> None:
        self._tokens += gained.tokens
        self._seen += len(gained.tokens)
        delta = self.delta
        if delta is None:
            self.delta = delta = SampleDelta(self.index, "", [])
        delta.token_ids += gained.tokens
        if gained.logprobs is not None:
            if delta.logprobs is None:
                delta.logprobs = []
            delta.logprobs += gained.logprobs
        self._add_text(delta, gained)
        if gained.ending is not None:
            delta.ending, delta.beam = gained.ending, gained.beam
            self.ended = True
            self._failed = gained.ending.reason == "error"

    def _add_text(self, delta: SampleDelta, gained: Gained) -> None:
        """Give the delta the text of the tokens that can be shown now."""
        detokenizer, tokens, ending = self._detokenizer, gained.tokens, gained.ending
        if detokenizer is None:
            delta.ends += [0] * len(tokens)
            return
        by_token = ending is not None and ending.reason == "stop" and not isinstance(ending.stop_reason, str)
        by_token = by_token and bool(tokens) and tokens[-1] in self._ends
        for token in tokens[:-1]:
            delta.text += detokenizer.advance((token,), None)
            delta.ends.append(len(delta.text))
        delta.text += detokenizer.advance(tokens[-1:], None if ending is None else ending.reason, by_token)
        if tokens:
            delta.ends.append(len(delta.text))


class RequestState:
    """What the client keeps of a request. Events that were not taken yet are merged.

    Attributes:
        journal: what the engine does with it.
    """

    def __init__(self, request: Request, table: TokenTable | None, now: Mark) -> None:
        self.request = request
        self.journal = Journal(len(request.given), now)
        self._cached_tokens: int | None = None
        self._kept: KeptTokens | None = None
        self._dropped = 0
        self._samples = [_SampleState(index, request, table) for index in range(request.sampling.n)]
        self._unfinished = len(self._samples)
        # Samples whose last event the engine that computes now has given.
        self._closed = 0
        self._embedding: bytes | None = None
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        if request.sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [None]

    def prepared(self, seconds: float) -> None:
        """What it needs was made ready in this time, before it was queued."""
        if self.request.sampling.grammar is None:
            self.journal.find_seconds += seconds
        else:
            self.journal.grammar_seconds += seconds

    def begin_with(self, output: tuple[int, ...]) -> None:
        """What another server has given of the only sample; what the request does not have of it comes once more."""
        [sample] = self._samples
        sample.push(Gained(list(output)))
        sample.begin_again(len(self.request.output))

    def begin_again(self, request: Request) -> None:
        """Another engine computes the same from its beginning, as `request`; what was given so far is not given twice.

        The same request gives the same tokens, whatever else is computed; where it does not, `push` raises.
        """
        self.request = request
        self._closed = 0
        for sample in self._samples:
            sample.begin_again(len(request.output))
        if self._prompt_logprobs is not None:
            self._prompt_logprobs = [None]

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return self._unfinished == 0

    @property
    def closed(self) -> bool:
        """Whether the engine that computes now has nothing more to compute of it.

        A sample that failed in an earlier engine has ended, and is computed again with the others all the same.
        """
        return self._closed == len(self._samples)

    @property
    def timings(self) -> RequestTimings:
        """When it arrived, had its first token, ended."""
        journal = self.journal
        first, finished = journal.first_token, journal.finished
        return RequestTimings(journal.submitted.at, first.at if first else None, finished.at if finished else None)

    def push(self, event: SampleOutput, now: Mark) -> None:
        """Take in one event of the engine, which comes `now`.

        Raises OutputChanged where it contradicts what came before.
        """
        sample, gained = self._samples[event.sample_index], event.gained
        self._closed += gained.ending is not None
        # Those of an engine that began again are not what was told.
        if self._cached_tokens is None:
            # What was generated elsewhere may have been cached too.
            cached = event.cached_tokens
            self._cached_tokens = None if cached is None else min(cached, len(self.request.given))
        if self._kept is None:
            self._kept = event.kept
        self._dropped = max(self._dropped, event.dropped)
        if gained.searched:
            # Its first says that the request is computed.
            if not self.journal.searched_tokens:
                sample.begin()
            self.journal.searched(gained.searched, now)
            return
        if gained.prompt_logprobs is not None:
            # Where they were taken already, an engine that began again tells them once more.
            if self._prompt_logprobs is not None:
                self._prompt_logprobs += gained.prompt_logprobs
            # More of the prompt is to come; nothing is to wake for that.
            if not gained.tokens and gained.ending is None:
                return
        if gained.embedding is not None:
            self._embedding = gained.embedding
        new = sample.unseen(gained)
        if new is None:
            return
        if new.tokens:
            self.journal.tokens(len(new.tokens), now)
        sample.push(new)
        if new.ending is not None:
            self._unfinished -= 1
            if self.finished:
                self.journal.end(now)

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
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        if prompt_logprobs is not None and len(prompt_logprobs) < len(request.given):
            prompt_logprobs = None
        return RequestOutput(
            request_id=request.request_id,
            deltas=deltas,
            prompt_tokens=len(request.given),
            cached_tokens=self._cached_tokens or 0,
            seed=request.sampling.seed or 0,
            finished=self.finished,
            prompt_logprobs=prompt_logprobs,
            embedding=self._embedding,
            kept=self._kept,
            dropped_tokens=self._dropped,
        )
