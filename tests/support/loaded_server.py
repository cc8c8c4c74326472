"""A server whose scripted engine goes on only as far as a test lets it, and requests that wait for it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from penstock.access.admission import AdmissionControl, QueueBounds
from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import Call, ScriptedEngine
from support.waiting import PATIENCE, until

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
TURN = {"messages": [{"role": "user", "content": "hi"}]}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": TURN,
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**TURN, "max_tokens": 10},
    "/v1/embeddings": {"input": "hi"},
}
STREAMED = [path for path in REQUESTS if path != "/v1/embeddings"]


class Loaded:
    """A server whose engine goes on only as far as it may."""

    def __init__(self, tokenizer: Any, url: str, http: httpx.Client, engine: ScriptedEngine) -> None:
        self.tokenizer, self.url, self.http, self.engine = tokenizer, url, http, engine
        self.outputs = 10**9
        engine.before = self._hold

    async def _hold(self, call: Call) -> None:
        while call.outputs >= self.outputs:
            await asyncio.sleep(0.005)

    def metric(self, name: str) -> float:
        text = self.http.get("/metrics").text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def wait(self, name: str, value: float) -> None:
        until(lambda: self.metric(name) == value, lambda: f"{name} is {self.metric(name)}")

    def all_closed(self) -> bool:
        return all(call.closed.is_set() for call in self.engine.calls)


@contextlib.contextmanager
def loaded(
    tokenizer: Any, *, stall_timeout: float = 30.0, bounds: QueueBounds | None = None, **app: Any
) -> Iterator[Loaded]:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode("one two three", False), max_model_len=10**6)
    admission = None if bounds is None else AdmissionControl(bounds, lambda tokens: -(-tokens // 16), lambda: 0.5)
    application = create_app(engine, tokenizer, template=TEMPLATE, admission=admission, **app)
    with running(application, stall_timeout) as url, described_client(url) as http:
        server = Loaded(tokenizer, url, http, engine)
        yield server
        server.outputs = 10**9
        server.wait("penstock_requests_in_flight", 0)


@contextlib.contextmanager
def in_background(server: Loaded, count: int, **fields: Any) -> Iterator[list[threading.Thread]]:
    """Requests that wait for the engine; they are let go at the end."""
    server.outputs = 0

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            assert client.post("/v1/completions", json={"prompt": "hi", **fields}).status_code == 200

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.engine.calls) >= count)
    try:
        yield threads
    finally:
        server.outputs = 10**9
        for thread in threads:
            thread.join(PATIENCE)
