"""Of a stream, a client has what guardrails have let pass: all of that, in order, and nothing more."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from penstock.gateway.answer_text import AnswerText
from penstock.gateway.errors import ContentRefused
from penstock.gateway.held_answer import HeldAnswer

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class Strict:
    """Lets texts pass that do not have a letter; knows which it has let pass."""

    def __init__(self) -> None:
        self.let = [""]

    async def after(self, text: AnswerText, *, passed: int, whole: bool, body: bytes | None) -> None:
        assert str(text)[:passed] == self.let[-1]
        if "x" in str(text):
            raise ContentRefused("It has an x.")
        self.let.append(str(text))


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


def pieces(content: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    return [content[start:end] for start, end in zip(places, places[1:], strict=False)]


@given(
    st.lists(st.text("abx", max_size=4), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.none() | st.integers(1, 10),
)
def test_what_was_not_let_pass_does_not(texts: list[str], cuts: list[int], window: int | None) -> None:
    content = b"".join(map(event, texts)) + b"data: [DONE]\n\n"
    strict, got = Strict(), list[Message]()

    async def send(message: Message) -> None:
        got.append(message)

    async def run() -> bool:
        held = HeldAnswer(cast(Any, strict), window, send)
        await held(START)
        try:
            for piece in pieces(content, cuts):
                await held({"type": "http.response.body", "body": piece, "more_body": True})
                assert held.released == bool(got)
            await held({"type": "http.response.body", "body": b"", "more_body": False})
        except ContentRefused:
            return False
        return True

    ended = asyncio.run(run())
    body = b"".join(message.get("body", b"") for message in got)
    assert ended == ("x" not in "".join(texts)) and content.startswith(body)
    # Whole events, whose text is what was let pass last.
    client = AnswerText()
    for line in body.splitlines():
        if line.startswith(b"data: {"):
            client.take_event(line.removeprefix(b"data: "))
    assert str(client) == strict.let[-1] and (not body or body.endswith(b"\n\n"))
    if ended:
        assert body == content and got[0] == START and not got[-1]["more_body"]
    if window is None and not ended:
        assert got == []
