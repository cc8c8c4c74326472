"""Holds an answer on its way to a client until guardrails let it pass, all of it or window by window."""

import re
from typing import TYPE_CHECKING

from starlette.types import Message, Send

from penstock.gateway.answer_text import UNREADABLE, AnswerText
from penstock.gateway.headers import streams

if TYPE_CHECKING:
    from penstock.gateway.guardrails import Checks

_GOOD = 200
# Bytes that are held of an answer.
_MOST_HELD = 16 * 1024 * 1024
_DATA, _DONE = b"data:", b"[DONE]"
# An empty line ends an event; a line break of two characters is one.
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")


class HeldAnswer:
    """Takes the messages of an answer, as its client would.

    Args:
        checks: asks the guardrails.
        window: characters of a stream after which they are asked; None: it is held to its end.

    Attributes:
        released: whether the client has got the beginning of it.
    """

    def __init__(self, checks: "Checks", window: int | None, send: Send) -> None:
        self._checks, self._window, self._send = checks, window, send
        self.released = False
        self._start: Message | None = None
        # Whether nothing is looked at, since it is no answer of a model, or cannot be and may pass all the same.
        self._passes = False
        self._streams = False
        self._held = bytearray()
        # Bytes of those that were read: whole events.
        self._read = 0
        self._text = AnswerText()
        self._looked_at = self._passed = 0

    async def __call__(self, message: Message) -> None:
        """A message of the answer. Raises ContentRefused, GuardrailUnavailable."""
        if message["type"] == "http.response.start":
            self._start = message
            self._passes = message["status"] != _GOOD
            self._streams = streams(message["headers"])
            if _is_encoded(message):
                self._give_up("it is compressed")
            return
        self._held += message["body"]
        if len(self._held) > _MOST_HELD and not self._passes:
            self._give_up(f"more than {_MOST_HELD} bytes of it would have to be held")
        ended = not message.get("more_body")
        if self._passes:
            await self._release(len(self._held), ended=ended)
        elif not self._streams:
            if ended:
                await self._whole()
        else:
            await self._more(ended=ended)

    async def _whole(self) -> None:
        body = bytes(self._held)
        try:
            self._text.take_whole(body)
        except UNREADABLE as error:
            self._give_up(f"it cannot be read ({error})")
        else:
            self._held = bytearray(await self._checks.after(self._text, passed=0, whole=True, body=body) or b"")
        await self._release(len(self._held), ended=True)

    async def _more(self, *, ended: bool) -> None:
        try:
            self._read_events(ended=ended)
        except UNREADABLE as error:
            self._give_up(f"an event of it cannot be read ({error})")
            await self._release(len(self._held), ended=ended)
            return
        is_enough = self._window is not None and self._text.length - self._looked_at >= self._window
        if ended or is_enough:
            await self._checks.after(self._text, passed=self._passed, whole=ended, body=None)
            self._looked_at, self._passed = self._text.length, len(str(self._text))
            await self._release(self._read, ended=ended)

    def _read_events(self, *, ended: bool) -> None:
        """Look at the events that are whole; at the end, at what is left."""
        ends = [found.end() for found in _END.finditer(self._held, self._read)]
        end = len(self._held) if ended else ends[-1] if ends else self._read
        for event in _END.split(bytes(self._held[self._read : end])):
            lines = [line[len(_DATA) :].strip() for line in event.splitlines() if line.startswith(_DATA)]
            data = b"\n".join(lines)
            if data and data != _DONE:
                self._text.take_event(data)
        self._read = end

    def _give_up(self, why: str) -> None:
        """Let it pass unseen, where all guardrails may be passed so. Raises GuardrailUnavailable."""
        self._checks.unread(why)
        self._passes = True

    async def _release(self, size: int, *, ended: bool) -> None:
        """Pass on the first bytes that are held."""
        passing = bytes(self._held[:size])
        del self._held[:size]
        self._read = max(0, self._read - size)
        if self._start is not None:
            start, self._start = self._start, None
            if not self._streams:
                start = {**start, "headers": _with_length(start["headers"], len(passing), whole=ended)}
            self.released = True
            await self._send(start)
        await self._send({"type": "http.response.body", "body": passing, "more_body": not ended})


def _is_encoded(start: Message) -> bool:
    encodings = [value.strip().lower() for name, value in start["headers"] if name == b"content-encoding"]
    return start["status"] == _GOOD and any(value != b"identity" for value in encodings)


def _with_length(headers: list[tuple[bytes, bytes]], length: int, *, whole: bool) -> list[tuple[bytes, bytes]]:
    """The headers of an answer whose body may have been replaced, or which goes on as it was."""
    if not whole:
        return headers
    return [*(each for each in headers if each[0] != b"content-length"), (b"content-length", b"%d" % length)]
