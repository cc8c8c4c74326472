"""What streams beside them notice of clients that stop reading, and of clients that never finish a request.

    python benchmarks/slow_clients.py [--kind stalled|dripping|both] [--rounds N] [--good N] [--stalled N] …

*stalled*: N readers start a stream (chat, 20 log probabilities a token) with a small receive buffer and read nothing,
beside good streams, one after another. While their tokens are computed they cost what any streams do, so the comparison
is readers that read all. From then on until the server cuts them off (--stall-timeout) they wait, in a line of its own;
the comparison is to have none. *dripping*: N connections send a head, or every second one a body, a byte every half
second, and are made anew when they are closed, beside good short requests; without them and with them in turn.

The tables have what the good streams and requests measured, the ratio to the comparison, and how much more memory the
server's own process had at most than before. Starts `penstock serve MODEL`; the client runs on the same machine.
"""

import argparse
import asyncio
import contextlib
import json
import math
import re
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import reporting
from http_client import Timing, complete
from serving import HOST, Server, serving

SMALL_BUFFER = 4096
PROMPT = "rain"
WAITING = "stalled, all computed"


@dataclass
class Measured:
    """Of good streams and requests, in milliseconds; of the server's memory, in MiB."""

    gaps: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    failed: int = 0
    growth: float = 0.0
    left: float = 0.0
    cut_off: int = 0

    def add(self, timing: Timing, since: float = 0.0, until: float = math.inf) -> None:
        """Take in one good stream, or of its gaps those that end in between."""
        if timing.error is not None:
            self.failed += 1
            return
        ends = zip(timing.chunks[1:], timing.gaps, strict=True)
        self.gaps += [1e3 * gap for end, gap in ends if since <= end < until]
        self.requests.append(1e3 * (timing.ended - timing.sent))


def memory(server: Server, name: str) -> float:
    """MiB of the server's own process: VmRSS is what it has, VmHWM the most since `forget`."""
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@contextlib.asynccontextmanager
async def watched(server: Server, measured: Measured) -> AsyncIterator[None]:
    """Note how the server's memory grows in the block."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    before = memory(server, "VmRSS")
    yield
    measured.growth = max(measured.growth, memory(server, "VmHWM") - before)
    measured.left = memory(server, "VmRSS") - before


async def in_flight(server: Server) -> float:
    """Requests that have not ended."""
    return await asyncio.to_thread(server.metric, "penstock_requests_in_flight")


async def reader(server: Server, tokens: int, reads: bool, gone: asyncio.Event) -> bool:
    """Start a stream, read all of it or nothing; whether the server cut it off."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "ignore_eos": True}
    content = json.dumps({**body, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    connection, loop = socket.socket(), asyncio.get_running_loop()
    with contextlib.closing(connection):
        if not reads:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setblocking(False)
        await loop.sock_connect(connection, (HOST, server.port))
        await loop.sock_sendall(connection, head.encode() + content)
        if not reads:
            await gone.wait()
        last = b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(connection, 1 << 16):
                last = (last + data)[-200:]
        return b"[DONE]" not in last


async def good_streams(server: Server, count: int, tokens: int, ended: asyncio.Event) -> list[Timing]:
    """So many streams at a time, one after another, until it has ended."""
    timings = []

    async def one(number: int) -> None:
        while not ended.is_set():
            body = {"prompt": PROMPT, "max_tokens": tokens, "seed": number, "ignore_eos": True}
            timings.append(await complete(server.port, body, time.monotonic()))

    await asyncio.gather(*map(one, range(count)))
    return timings


async def beside_readers(server: Server, arguments: argparse.Namespace, kind: str, found: dict[str, Measured]) -> None:
    """The good streams beside readers that read, that do not, or for a while beside none."""
    ended, gone, measured = asyncio.Event(), asyncio.Event(), found[kind]
    begun, computed, over = False, math.inf, math.inf
    async with watched(server, measured):
        readers = [
            asyncio.create_task(reader(server, arguments.tokens, kind == "read", gone))
            for _ in range(0 if kind == "none" else arguments.stalled)
        ]
        good = asyncio.create_task(good_streams(server, arguments.good, arguments.good_tokens, ended))
        if readers:
            while await in_flight(server) < arguments.stalled:
                await asyncio.sleep(0.05)
            while await in_flight(server) > arguments.good:
                await asyncio.sleep(0.1)
                running = await asyncio.to_thread(server.metric, "penstock_requests_running")
                # The first snapshots come from before the readers did.
                begun = begun or running > arguments.good
                if begun and computed == math.inf and running <= arguments.good:
                    computed = time.monotonic()
            over = time.monotonic()
        else:
            await asyncio.sleep(arguments.seconds)
        ended.set()
        timings = await good
        gone.set()
        measured.cut_off += sum(await asyncio.gather(*readers))
    for timing in timings:
        measured.add(timing, until=computed)
        if kind == "stalled":
            found[WAITING].add(timing, since=computed, until=over)
    while await in_flight(server):
        await asyncio.sleep(0.05)
    used = await asyncio.to_thread(server.metric, "penstock_kv_blocks_used")
    if used:
        raise SystemExit(f"{used:.0f} KV blocks are still used by requests that have ended.")


async def drip(server: Server, number: int, ended: asyncio.Event, closed: list[int]) -> None:
    """Send a request byte by byte, again when the connection is closed."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n"
    while not ended.is_set():
        with contextlib.suppress(OSError):
            stream, writer = await asyncio.open_connection(HOST, server.port)
            try:
                writer.write(head + b"\r\n{" if number % 2 else head[:20])
                while not ended.is_set() and not stream.at_eof():
                    writer.write(b" " if number % 2 else b"a")
                    await writer.drain()
                    await asyncio.sleep(0.5)
            finally:
                closed[0] += not ended.is_set()
                writer.close()
        await asyncio.sleep(0.01)


async def beside_dripping(server: Server, arguments: argparse.Namespace, kind: str, measured: Measured) -> None:
    """Good requests beside connections that drip, or for as long beside none."""
    ended, closed = asyncio.Event(), [0]
    async with watched(server, measured):
        dripping = [
            asyncio.create_task(drip(server, number, ended, closed))
            for number in range(arguments.dripping if kind == "dripping" else 0)
        ]
        # All of them are connected.
        await asyncio.sleep(2)
        good = asyncio.create_task(good_streams(server, arguments.good, 8, ended))
        await asyncio.sleep(arguments.seconds)
        ended.set()
        timings, *_ = await asyncio.gather(good, *dripping)
    for timing in timings:
        measured.add(timing)
    measured.cut_off += closed[0]


def rows(found: dict[str, Measured], values: str, against: dict[str, str]) -> list[list[object]]:
    """A line for each kind, with its ratios to the one that `against` names."""

    def of(kind: str, share: float) -> float | None:
        return reporting.percentile(getattr(found[kind], values), share)

    def ratio(kind: str, share: float) -> float | None:
        value, other = of(kind, share), of(against[kind], share) if kind in against else None
        return None if value is None or not other else value / other

    shares = (0.5, 0.99)
    return [
        [
            kind,
            len(getattr(each, values)),
            *(of(kind, share) for share in shares),
            *(ratio(kind, share) for share in shares),
            each.failed,
            each.cut_off,
            each.growth,
            each.left,
        ]
        for kind, each in found.items()
    ]


HEADER = ["p50, ms", "p99, ms", "p50, ratio", "p99, ratio", "failed", "cut off", "memory at most, MiB", "left, MiB"]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku")
    parser.add_argument("--kind", choices=("stalled", "dripping", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--good", type=int, default=4, help="good streams, or requests, at a time (default 4)")
    parser.add_argument("--good-tokens", type=int, default=200, help="of each good stream (default 200)")
    parser.add_argument("--stalled", type=int, default=200, help="readers (default 200)")
    parser.add_argument("--tokens", type=int, default=250, help="of each of their streams (default 250)")
    parser.add_argument("--dripping", type=int, default=500, help="connections (default 500)")
    parser.add_argument("--stall-timeout", type=float, default=20.0, help="seconds (default 20)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of phases that nothing else ends (default 20)")
    arguments = parser.parse_args()
    options = ["--data-dir", "off", "--log-level", "warning", "--stall-timeout", str(arguments.stall_timeout)]
    with serving(arguments.model, options) as server:
        server.wait_until_ready()
        asyncio.run(beside_dripping(server, argparse.Namespace(good=4, seconds=2.0), "none", Measured()))
        if arguments.kind != "dripping":
            found = {kind: Measured() for kind in ("none", "read", "stalled", WAITING)}
            for _ in range(arguments.rounds):
                for kind in ("none", "read", "stalled"):
                    asyncio.run(beside_readers(server, arguments, kind, found))
            title = f"{arguments.good} streams beside {arguments.stalled} readers, {arguments.rounds} rounds"
            reporting.report(
                title, ["readers", "gaps", *HEADER], rows(found, "gaps", {"stalled": "read", WAITING: "none"})
            )
        if arguments.kind != "stalled":
            found = {kind: Measured() for kind in ("none", "dripping")}
            for _ in range(arguments.rounds):
                for kind, measured in found.items():
                    asyncio.run(beside_dripping(server, arguments, kind, measured))
            title = f"Requests beside {arguments.dripping} connections that drip, {arguments.rounds} rounds"
            reporting.report(title, ["connections", "requests", *HEADER], rows(found, "requests", {"dripping": "none"}))


if __name__ == "__main__":
    main()
