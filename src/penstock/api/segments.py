"""An answer as a list of segments: what the pieces of a model's text add up to, and what all writers of one share."""

from collections.abc import Iterable, Iterator
from typing import Literal

from penstock.api.job import Job
from penstock.api.sample import Sample, Tally, sample_of
from penstock.core.events import KeptTokens
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.text.output_format import Parsing
from penstock.text.pieces import CallArguments, CallStart, Piece, PlainParser, Reasoning, joined
from penstock.text.table import TokenTable

SegmentKind = Literal["text", "reasoning", "call"]


class Segment:
    """A stretch of text or of reasoning, or a call of a tool.

    Attributes:
        index: its place in the answer.
        name, call_id: of a call, the tool's name and what the tool's result will refer to.
        parts: what the model has written of it, as it came.
    """

    __slots__ = ("call_id", "index", "kind", "name", "parts")

    def __init__(self, index: int, kind: SegmentKind, name: str = "", call_id: str = "") -> None:
        self.index = index
        self.kind = kind
        self.name = name
        self.call_id = call_id
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far; of a call, its arguments."""
        return "".join(self.parts)


Gain = tuple[Segment, str]
"""A segment and what it gained. Gains are in order; a segment that differs from the last gain's begins with it."""


class Segments:
    """One sample's answer in segments, as its text comes. Streamed and whole answers both come from here.

    Attributes:
        segments: what has come.
        sample: how it ended.
    """

    __slots__ = ("_finished", "_name", "_parser", "_parsing", "_plain", "segments", "sample")

    def __init__(self, parsing: Parsing | None, sample: Sample, name: str) -> None:
        """`parsing` cuts the text; None where all of it is content. `name` is what no other sample has."""
        self.segments: list[Segment] = []
        self.sample = sample
        self._parsing = parsing or Parsing()
        self._parser = self._parsing.parser()
        self._plain = isinstance(self._parser, PlainParser)
        self._name = name
        self._finished = False

    def take(self, delta: SampleDelta) -> Iterable[tuple[SampleDelta, list[Gain]]]:
        """Take more of the sample: its parts that count, each with what the segments gained by it.

        Raises RowFailed, StepOutOfMemory or EngineUnavailable where the sample has failed.
        """
        if self.goes_on_with(delta):
            return [(delta, [(self.segments[0], delta.text)] if delta.text else [])]
        return self._take_parts(delta)

    def goes_on_with(self, delta: SampleDelta) -> bool:
        """Take more of the sample, if that is nothing but more text and not its end; whether it was.

        Most of what comes is, so this has to be cheap.
        """
        sample = self.sample
        if not self._plain or sample.bounded or delta.ending is not None or sample.ending is not None:
            return False
        sample.counts(delta)
        if delta.text:
            (self.segments[0] if self.segments else self._begin("text")).parts.append(delta.text)
        return True

    def _take_parts(self, delta: SampleDelta) -> Iterator[tuple[SampleDelta, list[Gain]]]:
        for part in self.sample.parts(delta):
            pieces = self._parser.feed(part.text)
            if part.ending is not None:
                self._finished = True
                pieces = joined([*pieces, *self._parser.finish()])
            gains = self._add(pieces)
            if self._parser.done:
                self.sample.complete()
            yield part, gains

    def end(self) -> list[Gain]:
        """No more comes, although the engine may not have ended the sample; what the segments gained by that."""
        if self._finished:
            return []
        self._finished = True
        return self._add(self._parser.finish())

    @property
    def calls_whole(self) -> bool:
        """Whether no call lacks a part of its arguments, so far."""
        return self._parser.calls_whole

    @property
    def calls(self) -> bool:
        """Whether tools are called, with all of their arguments."""
        return self.calls_whole and any(segment.kind == "call" for segment in self.segments)

    def text(self, kind: SegmentKind) -> str:
        """All text of one kind."""
        return "".join(segment.text for segment in self.segments if segment.kind == kind)

    def _add(self, pieces: Iterable[Piece]) -> list[Gain]:
        gains = []
        for piece in pieces:
            segment = self._segment_of(piece)
            text = "" if isinstance(piece, CallStart) else piece.text
            segment.parts.append(text)
            gains.append((segment, text))
        return gains

    def _segment_of(self, piece: Piece) -> Segment:
        if isinstance(piece, CallStart):
            return self._begin("call", piece.name, self._parsing.call_id(f"{self._name} {len(self.segments)}"))
        if isinstance(piece, CallArguments):
            # Calls come one after another, and nothing comes inside of one.
            return self.segments[-1]
        kind: SegmentKind = "reasoning" if isinstance(piece, Reasoning) else "text"
        if self.segments and self.segments[-1].kind == kind:
            return self.segments[-1]
        return self._begin(kind)

    def _begin(self, kind: SegmentKind, name: str = "", call_id: str = "") -> Segment:
        segment = Segment(len(self.segments), kind, name, call_id)
        self.segments.append(segment)
        return segment


class Answer:
    """The answer of a request's only sample, as its outputs come.

    Attributes:
        segments: what has come.
        sample: how it ended.
        tally: how many tokens it has.
        prompt_tokens, cached_tokens: of the prompt; of those, how many are in the cache.
        kept: what became of the prompt's prefixes that the request wants kept; None before it is known.
        dropped_tokens: of a bounded context, how many have been dropped.
        seed: what its randomness follows from.
    """

    def __init__(self, job: Job, table: TokenTable | None, name: str) -> None:
        self.tally = Tally()
        self.sample: Sample = sample_of(job, 0, table, self.tally)
        self._blocks = Segments(job.parsing, self.sample, name)
        self.segments = self._blocks.segments
        self.prompt_tokens, self.cached_tokens = job.prompt_tokens, 0
        self.kept: KeptTokens | None = None
        self.dropped_tokens = 0
        self.seed: int | None = None

    def take(self, output: RequestOutput) -> list[Gain]:
        """Take an output; what the segments gained by it.

        Raises RowFailed, StepOutOfMemory or EngineUnavailable where it has failed.
        """
        self.prompt_tokens, self.cached_tokens = output.prompt_tokens, output.cached_tokens
        self.kept, self.dropped_tokens, self.seed = output.kept, output.dropped_tokens, output.seed
        return [gain for delta in output.deltas for _, gains in self._blocks.take(delta) for gain in gains]

    def end(self) -> list[Gain]:
        """No more outputs come; what the segments gained by that."""
        return self._blocks.end()

    @property
    def calls_whole(self) -> bool:
        """Whether no call lacks a part of its arguments, so far."""
        return self._blocks.calls_whole

    @property
    def calls(self) -> bool:
        """Whether tools are called, with all of their arguments."""
        return self._blocks.calls


class AnswerWriter:
    """The part of a `StreamWriter` that is the same in every dialect which tells an answer in segments.

    Attributes:
        id: the response's id, which begins with a prefix.
        created: when it began, in seconds of the Unix clock.
    """

    def __init__(self, job: Job, table: TokenTable | None, prefix: str) -> None:
        self.id, self.created = job.response(prefix)
        self._job = job
        self._answer = Answer(job, table, self.id)

    @property
    def completion_tokens(self) -> int:
        """Output tokens so far, reasoning included."""
        return self._answer.tally.tokens

    @property
    def enough(self) -> bool:
        """Whether the answer is complete although the engine goes on with it."""
        return self._answer.sample.cut

    @property
    def cut(self) -> int:
        """How many samples are complete although the engine goes on with them."""
        return int(self._answer.sample.cut)

    def add(self, output: RequestOutput) -> None:
        """Collect an output for `body`. Raises where the sample has failed."""
        self._answer.take(output)
