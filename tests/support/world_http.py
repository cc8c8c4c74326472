"""HTTP in a simulated world: clients of the ASGI application, without sockets, at their own speed."""

import asyncio
import json
import re
from typing import Any

from starlette.types import ASGIApp, Message

_EVENT = re.compile(rb"(?:event: (?P<name>[a-z_.]+)\n)?data: (?P<data>[^\n]*)", re.DOTALL)
# What ends the stream of an API that has an event for that.
_LAST_OF_MESSAGES = {"message_stop", "error"}
_LAST_OF_RESPONSES = {"response.completed", "response.incomplete", "response.failed"}


class Exchange:
    """One request, and what its client has read of the answer.

    Like a server's connection, it lets the application wait while more than `room` bytes are unread, and takes what is
    sent to a client that has gone for nothing.

    Attributes:
        arrived, ended: when the application was called, and when it gave the last of its answer, once it has.
        status, headers, body: what the client has got.
    """

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        parts: tuple[float, ...] = (0.0,),
        room: int = 65536,
    ) -> None:
        """`parts` has the seconds before each piece of the body."""
        self.loop = asyncio.get_running_loop()
        self.path = path
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended: float | None = None
        self.arrived: float | None = None
        size = -(-len(body) // len(parts)) or 1
        self._parts = [(delay, body[index * size : (index + 1) * size]) for index, delay in enumerate(parts)]
        self._unread = b""
        self._written = False
        self._room = room
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        given = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("client", 1),
            "state": {},
        }
        self.task = self.loop.create_task(self._run(app, scope))
        self.task.add_done_callback(lambda _: self._news.set())

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        self.arrived = self.loop.time()
        await app(scope, self._receive, self._send)

    # What the application calls.

    async def _receive(self) -> Message:
        if self._parts and not self._gone.is_set():
            delay, part = self._parts[0]
            try:
                async with asyncio.timeout(delay):
                    await self._gone.wait()
            except TimeoutError:
                self._parts.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        assert self.ended is None, "something follows the end of an answer"
        last = message["type"] == "http.response.body" and not message.get("more_body")
        if last:
            self.ended = self.loop.time()
        while len(self._unread) > self._room and not self._gone.is_set():
            self._space.clear()
            await self._space.wait()
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            assert self.status is None, "an answer begins twice"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            assert self.status is not None, "an answer has no beginning"
            self._unread += message["body"]
            self._written = last
        self._news.set()

    # What the client does.

    async def read(self, pause: float = 0.0, events: int | None = None) -> bool:
        """Read to the end, with pauses; False where the client has enough after so many events."""
        while not self._written or self._unread:
            await self._some()
            self.body, self._unread = self.body + self._unread, b""
            self._space.set()
            if events is not None and not self._written and self.body.count(b"\n\n") >= events:
                return False
            if pause:
                await asyncio.sleep(pause)
        await self.task
        return True

    async def _some(self) -> None:
        """Wait for more; whatever the application raises is raised here."""
        await self._news.wait()
        self._news.clear()
        if self.task.done():
            self.task.result()
            assert self.ended is not None, "the application has ended and its answer has not"

    async def leave(self) -> None:
        """Go, whatever is left to be read; until the application has noticed."""
        self._gone.set()
        self._space.set()
        await self.task

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def complete(self) -> bool:
        """Whether the client has all of it."""
        return self._written and not self._unread


class Answer:
    """What an answer says, as far as it was read: strictly, as its API has it.

    Attributes:
        error: the message of the error that it is, or that ends it.
        texts, tokens, finishes: by choice.
        whole: whether it ends as an answer does; never where there is an error.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.error: str | None = None
        self.code: str | None = None
        self.whole = False
        self.usage: dict[str, Any] | None = None
        self.texts: dict[int, str] = {}
        self.tokens: dict[int, list[int]] = {}
        self.finishes: dict[int, str] = {}
        self.scores: list[tuple[int, float] | None] | None = None
        self.vectors: list[str] = []
        self._path = exchange.path
        if exchange.is_stream:
            assert exchange.status == 200
            self._read_events(exchange.body, exchange.complete)
        elif exchange.complete:
            self._read_whole(json.loads(exchange.body), exchange.status == 200)
        assert not (self.whole and self.error), "an answer is complete and failed"

    def _read_whole(self, body: dict[str, Any], good: bool) -> None:
        if not good:
            self._fail(body["error"])
            return
        self.whole, self.usage = True, body.get("usage")
        if self._path == "/v1/embeddings":
            self.vectors = [item["embedding"] for item in body["data"]]
        elif self._path == "/v1/messages":
            self._message(body)
        elif self._path == "/v1/responses":
            self._response(body)
        else:
            for choice in body["choices"]:
                self._choice(choice, choice.get("message"))
            for choice in body["choices"]:
                assert choice["finish_reason"] in ("stop", "length")
                if choice.get("prompt_logprobs") is not None:
                    self.scores = [_score(entry) for entry in choice["prompt_logprobs"]]

    def _read_events(self, body: bytes, complete: bool) -> None:
        *parts, rest = body.split(b"\n\n")
        assert not complete or not rest, "a stream ends in the middle of an event"
        events = []
        for part in parts:
            match = _EVENT.fullmatch(part)
            assert match is not None, f"this is no event: {part!r}"
            events.append((match["name"], match["data"]))
        if self._path in ("/v1/messages", "/v1/responses"):
            self._read_named(events, complete)
            return
        done = [index for index, (_, data) in enumerate(events) if data == b"[DONE]"]
        assert done == ([len(events) - 1] if complete else done[:1]), f"{len(done)} ends of a stream"
        for _, data in events:
            assert self.error is None or data == b"[DONE]", "something follows an error"
            if data != b"[DONE]":
                self._chunk(json.loads(data))
        self.whole = bool(done) and self.error is None

    def _chunk(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self._fail(event["error"])
            return
        assert self.usage is None, "something follows the usage"
        for choice in event["choices"]:
            self._choice(choice, choice.get("delta"))
        self.usage = event.get("usage")

    def _choice(self, choice: dict[str, Any], message: dict[str, Any] | None) -> None:
        index = choice["index"]
        assert index not in self.finishes, "a choice goes on after its end"
        text = choice["text"] if message is None else message.get("content") or ""
        self.texts[index] = self.texts.get(index, "") + text
        self.tokens.setdefault(index, []).extend(choice["token_ids"])
        if choice["finish_reason"] is not None:
            self.finishes[index] = choice["finish_reason"]

    def _read_named(self, events: list[tuple[bytes | None, bytes]], complete: bool) -> None:
        lasts = _LAST_OF_MESSAGES if self._path == "/v1/messages" else _LAST_OF_RESPONSES
        names = [(name or b"").decode() for name, _ in events]
        ends = [index for index, name in enumerate(names) if name in lasts]
        assert ends == ([len(events) - 1] if complete else ends[:1]), f"{len(ends)} ends of a stream"
        for number, (name, (_, data)) in enumerate(zip(names, events, strict=True)):
            event = json.loads(data)
            assert event["type"] == name and event.get("sequence_number", number) == number
            if name == "error":
                self._fail(event["error"])
            elif name in _LAST_OF_RESPONSES:
                self._response(event["response"])
            elif name == "response.output_text.delta":
                self.texts[0] = self.texts.get(0, "") + event["delta"]
            elif name == "content_block_delta":
                self.texts[0] = self.texts.get(0, "") + event["delta"]["text"]
            elif name == "message_delta":
                self._finish(event["delta"]["stop_reason"] == "max_tokens")
                self.usage = event["usage"]
            elif name == "message_stop":
                self.whole = True

    def _message(self, body: dict[str, Any]) -> None:
        self.texts[0] = "".join(block["text"] for block in body["content"])
        self._finish(body["stop_reason"] == "max_tokens")

    def _response(self, body: dict[str, Any]) -> None:
        if body["error"] is not None:
            assert body["status"] == "failed"
            self._fail(body["error"])
            return
        text = "".join(part["text"] for item in body["output"] for part in item["content"])
        assert self.texts.setdefault(0, text) == text, "the end of a stream has another text"
        self.whole, self.usage = True, body["usage"]
        if body["status"] == "cancelled":
            self.code = "cancelled"
        else:
            self._finish(body["status"] == "incomplete")

    def _finish(self, long: bool) -> None:
        self.finishes[0] = "length" if long else "stop"

    def _fail(self, error: dict[str, Any]) -> None:
        assert self.error is None, "two errors end an answer"
        self.error, self.code = error["message"], error.get("code")
        assert self.error


def _score(entry: dict[str, Any] | None) -> tuple[int, float] | None:
    if entry is None:
        return None
    ((token, score),) = entry.items()
    return int(token), score["logprob"]
