"""Names that strangers make up cost a server nothing that lasts: no series of metrics, no memory.

`--names` says how many of each kind; `make soak` has 100,000.
"""

import asyncio
import contextlib
import gc
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.types import ASGIApp, Message

from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Tenant
from penstock.server.app import create_app
from penstock.storage.store import Store
from support.scripted_engine import ScriptedEngine

KEY = "a-key-that-is-long-enough"
MEBIBYTE = 1 << 20
# Resident memory that may come in so many requests of each kind, after the first of them.
PER_NAMES, GROWTH = 10_000, 0.5 * MEBIBYTE
ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/responses")


class Asked:
    """One request without a network: its parts, and the status that it has to get."""

    def __init__(self, status: int, method: str, path: str, body: object = None, key: str = KEY) -> None:
        self.status = status
        self._body = b"" if body is None else json.dumps(body).encode()
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"authorization", f"Bearer {key}".encode()),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }

    async def of(self, app: ASGIApp) -> tuple[int, bytes]:
        """The answer."""
        status, answer = 0, b""
        received = iter([{"type": "http.request", "body": self._body, "more_body": False}])

        async def receive() -> Message:
            return next(received, None) or await asyncio.Future()

        async def send(message: Message) -> None:
            nonlocal status, answer
            status = message.get("status", status)
            answer += message.get("body", b"")

        await app(self._scope, receive, send)
        return status, answer


def _model(name: str, number: int) -> Asked:
    return Asked(404, "POST", ENDPOINTS[number % len(ENDPOINTS)], _body(number) | {"model": name})


def _body(number: int) -> dict[str, Any]:
    """One that the endpoint of this number takes."""
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    bodies: tuple[dict[str, Any], ...] = ({"prompt": [5]}, chat, {"input": [5]}, chat, {"input": "x"})
    return bodies[number % len(bodies)]


def _served(name: str, number: int) -> Asked:
    """What clients may name as they like."""
    return Asked(
        200,
        "POST",
        "/v1/completions",
        {"prompt": [5], "user": name, "cache_salt": name, "metadata": {name: name}},
    )


KINDS: dict[str, Callable[[str, int], Asked]] = {
    "models": _model,
    "models by path": lambda name, number: Asked(404, "GET", f"/v1/models/{name}"),
    "users, salts and metadata": _served,
    "keys": lambda name, number: Asked(401, "POST", "/v1/completions", {"prompt": [5]}, key=name),
    "paths": lambda name, number: Asked(404, "GET", f"/{name}/{name}"),
    "methods": lambda name, number: Asked(405, name.upper(), "/v1/completions"),
    "files": lambda name, number: Asked(404, "GET", f"/v1/files/{name}"),
    "responses": lambda name, number: Asked(404, "GET", f"/v1/responses/{name}"),
    "fields": lambda name, number: Asked(400, "POST", "/v1/completions", {"prompt": [5], name: name}),
}


def test_names_of_strangers_leave_nothing(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    count = pytestconfig.getoption("names")
    engine = ScriptedEngine(None, [5])
    process = psutil.Process()

    async def series(app: ASGIApp) -> set[str]:
        status, text = await Asked(200, "GET", "/metrics").of(app)
        assert status == 200
        return {line.rsplit(b" ", 1)[0].decode() for line in text.splitlines()}

    async def main() -> None:
        keyring = Keyring([Key(Tenant(name="alice"), hashlib.sha256(KEY.encode()).digest())])
        with contextlib.closing(Store.open(tmp_path)) as store:
            app = create_app(engine, None, store=store, keys=keyring)
            before = await series(app)
            resident, told = [], set()
            for number in range(count):
                name = f"{number:06d}-{hashlib.sha256(number.to_bytes(4, 'big')).hexdigest()[:50]}"
                for kind, asked in KINDS.items():
                    request = asked(name, number)
                    status, answer = await request.of(app)
                    assert status == request.status, (kind, answer)
                # What the test's own engine keeps.
                engine.calls.clear()
                if (number + 1) % max(1, min(PER_NAMES, count // 2)) == 0:
                    gc.collect()
                    resident.append(process.memory_info().rss)
                    told = await series(app)
            assert told == before
        growth = resident[-1] - resident[0]
        first, last = resident[0] / MEBIBYTE, resident[-1] / MEBIBYTE
        print(f"\n{count} names of {len(KINDS)} kinds: {len(before)} lines of metrics, {first:.1f} to {last:.1f} MiB")
        assert growth <= max(4 * MEBIBYTE, GROWTH * (len(resident) - 1)), resident

    asyncio.run(main())
