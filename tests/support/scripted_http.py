"""A server over real sockets that answers exactly as a test says, right or wrong."""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from support.waiting import PATIENCE, reached


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


# Bytes to send, seconds to wait, or what is to be true before the next one, unless the client leaves.
Step = bytes | float | Callable[[], object]
Script = Callable[[Received], Sequence[Step]]

CLOSE = b"\0close"


@dataclass
class ScriptedServer:
    """What it got, and where it listens."""

    base: str = ""
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    left: int = 0

    @property
    def asked(self) -> list[Received]:
        """Requests for answers, in the order in which they came."""
        return [request for request in self.requests if request.method == "POST" and request.path != "/tokenize"]


def answer(body: bytes, status: int = 200, kind: str = "application/json") -> list[Step]:
    """A whole answer with its length."""
    head = f"HTTP/1.1 {status} OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


def models(*names: str) -> list[Step]:
    """The list of models."""
    return answer(json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())


def stream(*steps: Step | dict[str, Any] | str, kind: str = "text/event-stream") -> list[Step]:
    """A streamed answer: objects and strings are events, bytes are sent as they are, numbers are pauses."""
    sent: list[Step] = [f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()]
    for step in steps:
        match step:
            case dict() | str():
                text = step if isinstance(step, str) else json.dumps(step)
                sent.append(_framed(f"data: {text}\n\n".encode()))
            case bytes() if step != CLOSE:
                sent.append(_framed(step))
            case _:
                sent.append(step)
    return [*sent, b"0\r\n\r\n"]


def text_chunk(text: str, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """A chunk of a completion."""
    return {"choices": [{"index": index, "text": text, "finish_reason": finish, **more}]}


def usage_chunk(prompt: int, output: int, cached: int = 0) -> dict[str, Any]:
    """The chunk with the usage."""
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
    return {"choices": [], "usage": usage}


def whole_answer(request: Received, pause: float = 0.0) -> list[Step]:
    """A right answer of as many tokens as were asked for, each in a chunk."""
    count, chat = request.body["max_tokens"], "messages" in request.body
    prompt = request.body.get("prompt")
    asked = len(prompt) if isinstance(prompt, list) else len(json.dumps(request.body).split())
    steps: list[Any] = []
    for number in range(count):
        finish = "length" if number == count - 1 else None
        delta = {"choices": [{"index": 0, "delta": {"content": "w "}, "finish_reason": finish}]}
        steps += [delta if chat else text_chunk("w ", finish), pause]
    return stream(*steps, usage_chunk(asked, count), "[DONE]")


@contextlib.contextmanager
def scripted(
    script: Script,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    tokens: Callable[[str], int] | None = None,
    told: Script | None = None,
) -> Iterator[ScriptedServer]:
    """Serve `script` from a thread of the test's process.

    A GET gets the model "scripted", or what `told` says where it is for the state of a replica; and `/tokenize`, where
    `tokens` counts those of a text, how many they are.
    """

    def steps(request: Received) -> Sequence[Step]:
        if request.method == "GET":
            return models("scripted") if told is None or request.path != "/v1/replica" else told(request)
        if request.path != "/tokenize":
            return script(request)
        if tokens is None:
            return answer(b'{"detail": "Not Found"}', 404)
        return answer(json.dumps({"count": tokens(request.body["prompt"])}).encode())

    serving, loop = _Serving(steps), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serving.serve(host, tls),), daemon=True)
    thread.start()
    try:
        assert serving.started.wait(PATIENCE)
        yield serving.state
    finally:
        loop.call_soon_threadsafe(serving.stopping.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        loop.close()


class _Serving:
    """The connections of a server, each of which has a task that talks."""

    def __init__(self, steps: Script) -> None:
        self.state, self.started, self.stopping = ScriptedServer(), threading.Event(), asyncio.Event()
        self._steps = steps
        self._writers = set[asyncio.StreamWriter]()
        self._talks = set[asyncio.Task[None]]()

    async def serve(self, host: str, tls: ssl.SSLContext | None) -> None:
        """Listen until it is to stop, and leave no connection behind."""
        server = await asyncio.start_server(self._connected, host, 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        self.state.base = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        self.started.set()
        await self.stopping.wait()
        # A connection may be accepted and not yet have its talk: asyncio loses those of a server that is closed.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._talks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
        # A talk that is cancelled before it begins closes nothing.
        for writer in list(self._writers):
            await self._close(writer)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.ensure_future(self._talk(reader, writer))
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.state.connections += 1
        connection = self.state.connections
        try:
            while True:
                request = await _read(reader, connection)
                self.state.requests.append(request)
                if not await self._answer(request, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # The client has left, or the test has ended.
            pass
        finally:
            # A cancellation would reach what others wait for, too.
            self._talks.discard(cast(asyncio.Task[None], asyncio.current_task()))
            await self._close(writer)

    async def _answer(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take the steps; returns whether the connection goes on."""

        def has_left() -> bool:
            return reader.at_eof() or writer.is_closing()

        for step in self._steps(request):
            if step == CLOSE:
                return False
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif callable(step):
                await reached(lambda step=step: step() or has_left())
            else:
                await asyncio.sleep(step)
            if has_left():
                self.state.left += 1
                return False
        return True

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self._writers.discard(writer)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _read(reader: asyncio.StreamReader, connection: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    if "content-length" in headers or "transfer-encoding" not in headers:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    else:
        body = b"".join([chunk async for chunk in _chunks(reader)])
    method, path, _ = first.split()
    return Received(method, path, headers, json.loads(body) if body else None, connection)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
