"""What a refusal costs the API process: seconds of processor time for each request that it refuses.

A retry storm is many cheap refusals, so this is what a server can bear of one. The engine is paused with a full queue
behind it, so that each request is refused with 503, unread; or with a queue that has room, but not for the prompt's
tokens, which have to be counted first. Beside these are the refusals of keys (401, and 429 beyond a key's own limit),
and a small answer for scale. Each is sent over connections that are kept, and over a new one each time.

Starts `penstock serve MODEL`, once for each kind of queue.
"""

import argparse
import asyncio
import hashlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import psutil
import reporting
from serving import HOST, Server, serving

from penstock.bench.load.address import Address
from penstock.bench.load.client import Client

AT_A_TIME = 16
KEYS = {name: f"a-key-of-{name}-for-this-run-only" for name in ("many", "one")}


@dataclass(frozen=True)
class Case:
    """What is asked, with which key, and the status that it gets; `new` where each request is another one."""

    name: str
    status: int
    key: str
    path: str = "/v1/chat/completions"
    new: bool = False


@dataclass(frozen=True)
class Queue:
    """What waits while the cases are measured: a prompt of so many tokens for each key, and what may wait."""

    tokens: int
    options: tuple[str, ...]
    cases: tuple[Case, ...]


QUEUES = (
    Queue(
        1,
        ("--max-queued-requests", "2"),
        (
            Case("queue full", 503, KEYS["many"]),
            Case("a key's own limit", 429, KEYS["one"]),
            Case("a wrong key", 401, "wrong"),
            Case("GET /version", 200, KEYS["many"], "/version"),
        ),
    ),
    # Less than four fifths, from which on chance refuses requests that are not yet read.
    Queue(
        150,
        ("--max-queued-tokens", "400"),
        (
            Case("no room for its tokens", 503, KEYS["many"], new=True),
            Case("no room for its tokens, again", 503, KEYS["many"]),
        ),
    ),
)


def chat(words: int, user: str) -> bytes:
    """A request with a prompt of about so many tokens."""
    message = {"role": "user", "content": "snow " * words}
    return msgspec.json.encode({"messages": [message], "max_tokens": 64, "user": user})


async def ask(server: Server, case: Case, arguments: argparse.Namespace, *, kept: bool) -> None:
    """Send all requests of one kind."""
    left = iter(range(arguments.requests))

    async def some() -> None:
        client = Client(Address(HOST, server.port), case.key)
        for number in left:
            body = None if case.path == "/version" else chat(arguments.words, f"{case.new and number}{kept}")
            exchange = await client.fetch("GET" if body is None else "POST", case.path, body, lambda data, now: False)
            if exchange.status != case.status:
                raise SystemExit(f"{case.name}: got {exchange.status}, not {case.status}: {exchange.body!r}")
            if not kept:
                client.close()
        client.close()

    await asyncio.gather(*(some() for _ in range(AT_A_TIME)))


async def measure(server: Server, queue: Queue, arguments: argparse.Namespace) -> list[tuple[str, float, float]]:
    """Of each case microseconds a request, over kept and over new connections."""
    process = psutil.Process(server.process.pid)
    rows = []
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=None) as http:
        waiting = [
            asyncio.ensure_future(
                http.post(
                    "/v1/completions", json={"prompt": [5] * queue.tokens, "max_tokens": 1}, headers={"x-api-key": key}
                )
            )
            for key in KEYS.values()
        ]
        await asyncio.sleep(0.5)
        for case in queue.cases:
            spent = []
            for kept in (True, False):
                before = process.cpu_times()
                await ask(server, case, arguments, kept=kept)
                after = process.cpu_times()
                seconds = after.user + after.system - before.user - before.system
                spent.append(1e6 * seconds / arguments.requests)
            rows.append((case.name, spent[0], spent[1]))
        for request in waiting:
            request.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return rows


def run(queue: Queue, arguments: argparse.Namespace) -> list[tuple[str, float, float]]:
    """A server whose queue is that."""
    with tempfile.TemporaryDirectory() as folder:
        keys, admin = Path(folder) / "keys.toml", str(Path(folder) / "admin")
        entries = [
            f'[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
            for name, key in KEYS.items()
        ]
        keys.write_text("".join(entries) + "max_concurrent_requests = 1\n")
        options = ["--api-key-file", str(keys), "--admin-socket", admin, "--data-dir", "off", "--drain-timeout", "0"]
        with serving(arguments.model, [*options, *queue.options]) as server:
            server.wait_until_ready()
            time.sleep(0.5)
            with httpx.Client(transport=httpx.HTTPTransport(uds=admin)) as operator:
                operator.post("http://admin/pause", json={"paused": True}).raise_for_status()
            return asyncio.run(measure(server, queue, arguments))


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what to serve (default haiku)")
    parser.add_argument("--requests", type=int, default=5000, help="of each kind (default 5000)")
    parser.add_argument("--words", type=int, default=100, help="of each prompt (default 100)")
    arguments = parser.parse_args()

    rows = [row for queue in QUEUES for row in run(queue, arguments)]
    header = ("", "kept connections, µs each", "new connections, µs each")
    reporting.report(f"Processor time of the API process, {arguments.requests} requests each", header, rows)


if __name__ == "__main__":
    main()
