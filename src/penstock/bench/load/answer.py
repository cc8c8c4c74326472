"""One streamed answer: when its chunks came, and whether it is what the API promises."""

from array import array
from typing import Any

import msgspec

from penstock.bench.load.sse import EventReader

# Kinds of errors that are the server's breach of the protocol; the command fails if there is any.
VIOLATIONS = frozenset(
    {
        "not an event stream",
        "malformed event",
        "invalid JSON",
        "wrong choice",
        "content after the end",
        "several finish_reasons",
        "no finish_reason",
        "no [DONE]",
        "data after [DONE]",
        "no usage",
        "wrong usage",
    }
)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Logprobs(msgspec.Struct):
    tokens: list[Any] | None = None
    content: list[Any] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class Answer:
    """Reads one answer as it comes. Nothing of its text is kept, unless a next turn needs it.

    Attributes:
        first, last: as in `Outcome`, on the client's clock.
        gaps: seconds between chunks with content, of each choice by itself.
        usage: what the server counted.
        error: what the server sent instead of the rest, as its kind and message.
        text: of the first choice.
        left: whether the client has left it, as it was to.
    """

    __slots__ = (
        "_cancel_after", "_choices", "_counted", "_done", "_events", "_finished", "_previous", "_texts", "chunks",
        "error", "first", "gaps", "last", "left", "usage", "violation",
    )  # fmt: skip

    def __init__(self, choices: int = 1, cancel_after: int | None = None, keep_text: bool = False) -> None:
        self._events = EventReader()
        self._choices, self._cancel_after = choices, cancel_after
        self._texts: list[str] | None = [] if keep_text else None
        self._previous: dict[int, float] = {}
        self._finished: set[int] = set()
        # Tokens that chunks name one by one; None where some chunk with content does not.
        self._counted: int | None = 0
        self._done = False
        self.first: float | None = None
        self.last: float | None = None
        self.gaps = array("f")
        self.chunks = 0
        self.usage: _Usage | None = None
        self.error: tuple[str, str] | None = None
        self.violation: tuple[str, str] | None = None
        self.left = False

    @property
    def text(self) -> str:
        return "".join(self._texts or ())

    def feed(self, data: bytes, now: float) -> bool:
        """Take what arrived at `now`; whether the client is to leave."""
        for payload in self._events.feed(data):
            if self._done:
                self._blame("data after [DONE]", payload.decode(errors="replace"))
            elif payload == b"[DONE]":
                self._done = True
            else:
                self._take(payload, now)
        self.left = self.left or (self._cancel_after is not None and self.chunks >= self._cancel_after)
        return self.left

    def end(self) -> None:
        """The stream has ended by itself: see that nothing is missing."""
        self._events.end()
        if self._events.fault is not None:
            self._blame("malformed event", self._events.fault)
        if self.error is not None:
            return
        if self._finished != set(range(self._choices)):
            self._blame("no finish_reason", f"{len(self._finished)} of {self._choices} choices ended with a reason")
        if not self._done:
            self._blame("no [DONE]", "the stream ended without [DONE]")
        if self.usage is None:
            self._blame("no usage", "stream_options.include_usage was given, and no chunk has the usage")
        elif self._counted is not None and self.chunks and self._counted != self.usage.completion_tokens:
            counts = f"usage says {self.usage.completion_tokens} tokens, the chunks have {self._counted}"
            self._blame("wrong usage", counts)
        elif self.usage.completion_tokens and self.first is None:
            # Tokens without text, such as one that ends the answer: their only sign is the end.
            self.first = self.last

    def _take(self, payload: bytes, now: float) -> None:
        try:
            chunk = _DECODER.decode(payload)
        except msgspec.MsgspecError as error:
            self._blame("invalid JSON", f"{error}: {payload[:80].decode(errors='replace')}")
            return
        if chunk.error is not None:
            message = chunk.error.get("message", chunk.error) if isinstance(chunk.error, dict) else chunk.error
            self.error = ("error in the stream", str(message))
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            self._take_choice(choice, now)

    def _take_choice(self, choice: _Choice, now: float) -> None:
        index, content = choice.index, _content(choice)
        if not 0 <= index < self._choices:
            self._blame("wrong choice", f"index {index} of {self._choices} choices")
            return
        if index in self._finished and (content or choice.token_ids):
            self._blame("content after the end", "a choice went on after its finish_reason")
        if content or choice.token_ids:
            self._count(choice)
            self.chunks += 1
            if self.first is None:
                self.first = now
            previous = self._previous.get(index)
            if previous is not None:
                self.gaps.append(now - previous)
            self._previous[index] = self.last = now
            if self._texts is not None and index == 0:
                self._texts.append(content if isinstance(content, str) else "")
        if choice.finish_reason:
            if index in self._finished:
                self._blame("several finish_reasons", f"choice {index} has more than one")
            self._finished.add(index)
            self.last = now

    def _count(self, choice: _Choice) -> None:
        named = choice.token_ids
        if named is None and choice.logprobs is not None:
            named = choice.logprobs.tokens if choice.logprobs.tokens is not None else choice.logprobs.content
        self._counted = None if named is None or self._counted is None else self._counted + len(named)

    def _blame(self, kind: str, message: str) -> None:
        self.violation = self.violation or (kind, message)


def _content(choice: _Choice) -> Any:
    """What a reader would see of a chunk; falsy where it is nothing, as in a first chunk with a role alone."""
    if choice.delta is None:
        return choice.text
    delta = choice.delta
    return delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
