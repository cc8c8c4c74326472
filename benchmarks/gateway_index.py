"""How well a gateway knows what replicas have in their caches, and what that costs.

- Loss: a replica's events go to two gateways' readers over real sockets. A tenth of the batches is dropped, a tenth
  sent twice, a tenth sent late, for --seconds, while blocks come and go, and the replica begins anew in the midst. Told
  is how long after the last event each reader knows exactly what the replica has.
- Memory: resident bytes that --blocks blocks of one replica take, of the index and of what the replica calls them.
- A stalled reader: tokens a second of two real replicas that tell their events, in turn. A stopped gateway (SIGSTOP)
  reads those of one, and nothing those of the other; the median of the ratios of neighbouring rounds.

    python benchmarks/gateway_index.py
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any

import reporting
from http_client import run_load
from serving import HOST, running
from simulated_fleet import gateway

from penstock.core.kv_events import KVEvent, Removed, Stored
from penstock.gateway.kv import KVReader, make_context
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.keys import keys_of, token_root
from penstock.routing.stream import EventStream, Exactness
from penstock.server.kv_publisher import KVPublisher

BLOCK = 16
NUMBERS = 5000


class Lossy:
    """A socket that drops messages, and sends them twice or late."""

    def __init__(self, socket: Any, draw: random.Random) -> None:
        self._socket, self._draw = socket, draw
        self._late: list[Any] = []
        self.good = False

    def send_multipart(self, parts: Any) -> None:
        """Send it, or not."""
        kind = 1.0 if self.good else self._draw.random()
        late, self._late = self._late, []
        if kind < 0.2 and kind >= 0.1:
            self._late.append(parts)
        elif kind >= 0.1:
            self._socket.send_multipart(parts)
        if 0.2 <= kind < 0.3:
            self._socket.send_multipart(parts)
        for each in late:
            self._socket.send_multipart(each)

    def close(self) -> None:
        """As a socket is closed."""
        self._socket.close()


class Cache:
    """Prompts of one block each."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.has: set[int] = set()

    def step(self) -> list[KVEvent]:
        """Some come, some go."""
        events: list[KVEvent] = []
        for number in self._draw.sample(range(NUMBERS), 20):
            key = number.to_bytes(8)
            if number in self.has:
                self.has.remove(number)
                events.append(Removed(key))
            else:
                self.has.add(number)
                events.append(Stored(key, None, number.to_bytes(4, "little") * BLOCK))
        return events


class Reader:
    """What a gateway knows."""

    def __init__(self, context: Any, places: Any) -> None:
        self._holdings = Holdings(1_000_000)
        self.stream = EventStream(Feed(self._holdings, 0))
        at = f"tcp://{HOST}"
        self.reader = KVReader(context, self.stream, f"{at}:{places.events}", f"{at}:{places.replay}")

    def knows(self, cache: Cache) -> bool:
        """Whether it knows exactly what the cache has."""
        if self.stream.exactness != Exactness.EXACT or len(self._holdings) != len(cache.has):
            return False
        return all(self._holdings.hits(keys_of([n] * BLOCK, BLOCK, token_root()).keys) for n in cache.has)


def lasting_port() -> int:
    """A port that a reader, which connects again and again, is not given for its own end while nothing listens."""
    for port in range(20_000, 30_000, 2):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind((HOST, port))
            other.bind((HOST, port + 1))
            return port
    raise RuntimeError("no port below 30,000 is free")


async def loss(seconds: float) -> list[float]:
    """Seconds until each reader knows all, after the last event."""
    draw, context = random.Random(1), make_context()
    found: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        readers: list[Reader] = []
        tasks = []
        port = lasting_port()
        for start in range(2):
            cache, publisher = Cache(draw), KVPublisher(BLOCK)
            async with publisher.publishing(lambda _watcher: None, HOST, port):
                places = publisher.places
                assert places is not None
                lossy = Lossy(publisher._told, draw)
                publisher._told = lossy
                if not readers:
                    readers = [Reader(context, places) for _ in range(2)]
                    tasks = [asyncio.create_task(each.reader.read()) for each in readers]
                ends = time.monotonic() + seconds / 2
                while time.monotonic() < ends:
                    publisher._changed(cache.step())
                    for each in readers:
                        told = publisher.places
                        each.reader.told(told.told if told else 0)
                    await asyncio.sleep(0.005)
                if start == 1:
                    began = time.monotonic()
                    while len(found) < len(readers):
                        found += [time.monotonic() - began for each in readers[len(found) :] if each.knows(cache)]
                        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stack.callback(context.term)
    return found


def resident() -> int:
    """Bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def memory(blocks: int) -> tuple[int, int]:
    """Resident bytes that blocks take, and those once as many others have come in their place."""
    before, holdings = resident(), Holdings(blocks)
    feed = Feed(holdings, 0)

    def come(first: int) -> None:
        for number in range(first, first + blocks):
            feed.take([Stored(number.to_bytes(16), None, number.to_bytes(4, "little") * BLOCK)])

    come(0)
    once = resident() - before
    for number in range(blocks):
        feed.take([Removed(number.to_bytes(16))])
    come(blocks)
    return once, resident() - before


async def speed(port: int, streams: int) -> float:
    """Tokens a second."""
    draw = random.Random(time.monotonic_ns())
    bodies = [
        {"prompt": draw.choices(range(10, 2000), k=64), "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        for _ in range(streams)
    ]
    timings, seconds = await run_load(port, bodies)
    return sum(timing.output_tokens for timing in timings) / seconds


def stalled(rounds: int) -> Sequence[float]:
    """Ratios of the tokens a second: of a replica whose events a stopped gateway reads, to one whose nothing reads."""
    options = ["--kv-events", f"{HOST}:0", "--speculative", "off", "--log-level", "warning", "--data-dir", "off"]
    ratios: list[float] = []
    with running("serve", "haiku", *options) as read, running("serve", "haiku", *options) as unread:
        for each in (read, unread):
            each.wait_until_ready()
        with gateway([read], options=["--prompts", "haiku"]) as reading:
            while b'"exact"' not in reading.get("/v1/fleet")[1].encode():
                time.sleep(0.1)
            for each in (read, unread):
                asyncio.run(speed(each.port, 16))
            reading.process.send_signal(signal.SIGSTOP)
            for number in range(rounds):
                order = (read, unread) if number % 2 else (unread, read)
                figures = {each.port: asyncio.run(speed(each.port, 16)) for each in order}
                ratios.append(figures[read.port] / figures[unread.port])
            reading.process.send_signal(signal.SIGCONT)
    return ratios


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of losses (default 20)")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="in the index (default a million)")
    parser.add_argument("--rounds", type=int, default=15, help="beside a stopped gateway (default 15)")
    arguments = parser.parse_args()
    # First, while nothing else has grown.
    once, later = memory(arguments.blocks)
    known = asyncio.run(loss(arguments.seconds))
    ratios = stalled(arguments.rounds)
    rows = [
        ("exact after the last event, two gateways, s", ", ".join(f"{seconds:.2f}" for seconds in known)),
        (f"memory of {arguments.blocks:,} blocks, MiB", once / 2**20),
        ("the same, after as many others have come in their place, MiB", later / 2**20),
        ("tokens a second where a stopped gateway reads, of those where nothing reads", statistics.median(ratios)),
        ("the same, lowest and highest", f"{min(ratios):.3f}, {max(ratios):.3f}"),
    ]
    reporting.report("What is in whose cache", ("", "value"), rows)


if __name__ == "__main__":
    main()
