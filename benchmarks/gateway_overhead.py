"""What a gateway adds: time to the first byte, events a second, memory.

A stand-in replica answers with streams of made-up events, so that what is measured is the way and not a model. The
gateway runs on one core (--core), replica and client on the others.

- First bytes: --rate requests a second go straight to the replica, and as many through a gateway, in turn, so that both
  see the same machine; gateways one after the other. Told are medians and 99th percentiles, and the differences.
- Events: --streams at a time of --events events, which come as fast as they are taken: events a second, each gateway in
  turn for --rounds rounds, and the median.
- Memory: --open streams at a time that say nothing: resident bytes of the gateway.

With --tenants, gateways with a database are measured, too: the key has an organisation, a project, limits and a budget,
which are counted in memory or in a store (valkey-server or redis-server), and each request is in the ledger.

Others are measured beside it where their commands are given: `--other NAME=COMMAND`, in which {port} and {replica} are
filled in, such as --other 'smg=smg launch --worker-urls {replica} --port {port} --policy round_robin'.

    python benchmarks/gateway_overhead.py --json build/gateway.json
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import reporting
import uvloop

from penstock.http import descriptors

HOST = "127.0.0.1"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"stand-in","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
END = b"data: [DONE]\n\n"
MODELS = b'{"object":"list","data":[{"id":"stand-in","object":"model","created":1700000000,"owned_by":"nobody"}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
# Requests to each target that are not counted.
_WARM = 50
# Streams that say nothing last this long.
SILENCE = 3600.0


def request_in(got: bytes) -> tuple[bytes, bytes] | None:
    """Head and body of what has come on a connection; None until all of a request has."""
    head, found, body = got.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        return (head, unchunked(body)) if body.endswith(b"0\r\n\r\n") else None
    length = re.search(rb"content-length: (\d+)", head.lower())
    return (head, body) if found and len(body) >= (int(length[1]) if length else 0) else None


def unchunked(body: bytes) -> bytes:
    """The content of all chunks of a body."""
    found = b""
    while size := int(body.partition(b"\r\n")[0], 16):
        start = body.index(b"\r\n") + 2
        found, body = found + body[start : start + size], body[start + size + 2 :]
    return found


class StandIn(asyncio.Protocol):
    """A replica whose answers are as long and as fast as the request's `max_tokens` and `user` say."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._got = b""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._answering: asyncio.Task[None] | None = None

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if (request := request_in(self._got)) is None:
            return
        head, body = request
        self._got = b""
        if head.startswith(b"GET"):
            content = MODELS if b"/v1/models" in head else b"{}"
            status = b"404 Not Found" if b"/v1/replica" in head else b"200 OK"
            self._transport.write(
                b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (status, len(content), content)
            )
        else:
            self._answering = asyncio.ensure_future(self._answer(json.loads(body)))

    async def _answer(self, asked: dict[str, object]) -> None:
        count, kind = int(str(asked["max_tokens"])), asked.get("user")
        self._transport.write(HEAD + _chunk(EVENT))
        if kind == "silent":
            await asyncio.sleep(SILENCE)
        for _ in range(count - 1):
            if kind == "paced":
                await asyncio.sleep(0.01)
            await self._may_write.wait()
            self._transport.write(_chunk(EVENT))
        self._transport.write(_chunk(END) + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def stand_in(port: int) -> None:
    """Serve stand-in answers until the process ends."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(StandIn, HOST, port, backlog=4096)
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


class Asked(asyncio.Protocol):
    """One request on a connection that is used again."""

    def __init__(self) -> None:
        self.first: asyncio.Future[float] | None = None
        self.ended: asyncio.Future[None] | None = None
        self.events = 0
        self._tail = b""

    def leave(self) -> None:
        """Close the connection, whatever it is used for."""
        for each in (self.first, self.ended):
            if each is not None:
                each.cancel()
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.first, self.ended = loop.create_future(), loop.create_future()
        self._tail = b""
        self.transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer sk-1234\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        # One that is cut in two is not counted; there are few.
        self.events += data.count(b"data: {")
        self._tail = (self._tail + data)[-4096:]
        if self.first is not None and not self.first.done() and b"data: " in self._tail:
            self.first.set_result(time.perf_counter())
        if self.ended is not None and not self.ended.done() and self._tail.endswith(b"0\r\n\r\n"):
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for each in (self.first, self.ended):
            if each is not None and not each.done():
                each.set_exception(ConnectionError("the connection was closed"))


class Target(NamedTuple):
    """Where requests go: straight to the replica, or through a gateway, whose process is known."""

    name: str
    port: int
    process: int | None


def body(count: int, kind: str) -> bytes:
    """A request; a chat with a system prompt of two kilobytes."""
    messages = [{"role": "system", "content": "You answer. " * 170}, {"role": "user", "content": "What is a penstock?"}]
    fields = {"model": "stand-in", "messages": messages, "max_tokens": count, "stream": True, "user": kind}
    return json.dumps(fields).encode()


async def connected(port: int) -> Asked:
    """A connection to a port of this machine."""
    _, protocol = await asyncio.get_running_loop().create_connection(Asked, HOST, port)
    return protocol


async def first_bytes(targets: list[Target], rate: float, seconds: float) -> dict[str, list[float]]:
    """Seconds to the first event of each request, by target, which take turns; connections are used again."""
    loop, found = asyncio.get_running_loop(), {target.name: list[float]() for target in targets}
    idle: dict[int, list[Asked]] = {target.port: [] for target in targets}

    async def one(target: Target, number: int) -> None:
        asked = idle[target.port].pop() if idle[target.port] else await connected(target.port)
        began = time.perf_counter()
        asked.ask(body(8, "paced"))
        assert asked.first is not None and asked.ended is not None
        first = await asked.first - began
        # What came first had to connect.
        if number >= _WARM:
            found[target.name].append(first)
        await asked.ended
        idle[target.port].append(asked)

    tasks, began = [], loop.time()
    for number in range(int(rate * seconds * len(targets))):
        await asyncio.sleep(max(0.0, began + number / (rate * len(targets)) - loop.time()))
        tasks.append(asyncio.ensure_future(one(targets[number % len(targets)], number // len(targets))))
    await asyncio.gather(*tasks)
    for connections in idle.values():
        for asked in connections:
            asked.leave()
    return found


async def events(target: Target, streams: int, count: int) -> float:
    """Events a second of a number of streams at a time that are read as fast as they come."""
    connections = [await connected(target.port) for _ in range(streams)]
    began = time.perf_counter()
    for asked in connections:
        asked.ask(body(count, "fast"))
    await asyncio.gather(*(asked.ended for asked in connections if asked.ended is not None))
    seconds = time.perf_counter() - began
    for asked in connections:
        asked.leave()
    return sum(asked.events for asked in connections) / seconds


async def memory(target: Target, streams: int) -> int:
    """Resident bytes of the gateway while it has a number of open streams."""
    connections = []
    for _ in range(streams):
        asked = await connected(target.port)
        asked.ask(body(2, "silent"))
        connections.append(asked)
    await asyncio.gather(*(asked.first for asked in connections if asked.first is not None))
    resident = resident_bytes(target.process)
    for asked in connections:
        asked.leave()
    return resident


def resident_bytes(process: int | None) -> int:
    """Of a process and those that it has started."""
    status = Path(f"/proc/{process}/status").read_text()
    own = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return own + sum(resident_bytes(int(child)) for child in children)


@contextlib.contextmanager
def started(command: list[str], port: int, core: int | None, log: Path) -> Iterator[int]:
    """A process that listens on a port, bound to a core where one is given; its id."""

    def bind() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, preexec_fn=bind)
        try:
            while True:
                with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
                    break
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended; {log} says why.")
                time.sleep(0.05)
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


async def answers(target: Target) -> None:
    """Until a gateway passes requests on; it may listen before it knows its replicas."""
    while True:
        asked = await connected(target.port)
        asked.ask(body(2, "fast"))
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.shield(asked.first)  # type: ignore[arg-type]
                return
        asked.leave()
        await asyncio.sleep(0.2)


def with_tenants(stack: contextlib.ExitStack, replica: int) -> list[tuple[str, list[str], int]]:
    """Gateways that count what a key uses, in memory and in a store."""
    # Both need the extra gateway.
    from gateway_limits import Store

    from penstock.database.connection import Database
    from penstock.database.tables import keys
    from penstock.tenancy.registry import Registry
    from penstock.tenancy.settings import Settings

    where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    bounds = Settings(
        requests_per_minute=10**9,
        tokens_per_minute=10**11,
        max_concurrent_requests=10**6,
        budget_per_month=Decimal(10**6),
    )
    database = Database.open(str(where / "tenants.sqlite"))
    database.upgrade()
    registry = Registry(database)
    registry.create_organisation("benchmark", "acme", bounds)
    registry.create_project("benchmark", "acme.web", bounds)
    key, _ = registry.create_key("benchmark", "web", "acme.web", bounds)
    with database.begin() as connection:
        # The one that all gateways are shown.
        connection.execute(keys.update().where(keys.c.id == key.id).values(sha256=sha256(b"sk-1234").digest()))
    price = '[[price]]\nmodel = "stand-in"\ninput = 0.15\noutput = 0.6\n'
    (where / "fleet.toml").write_text(f'[[replica]]\nurl = "http://{HOST}:{replica}"\n{price}')
    os.environ["PENSTOCK_DATA"] = str(where)
    store = Store(str(where))
    stack.callback(store.kill)
    found = []
    for name, more in (("counted in memory", []), ("in a store", ["--limits-store", f"redis://{HOST}:{store.port}"])):
        port = free_port()
        command = [sys.executable, "-m", "penstock.cli.main", "gateway", "--port", str(port), "--policy", "round-robin"]
        command += ["--config", str(where / "fleet.toml"), "--database", str(where / "tenants.sqlite"), *more]
        found.append((f"penstock, {name}", [*command, "--log-level", "warning"], port))
    return found


def commands(arguments: argparse.Namespace, replica: int) -> list[tuple[str, list[str], int]]:
    """Name, command and port of each gateway."""
    port = free_port()
    penstock = [sys.executable, "-m", "penstock.cli.main", "gateway", "--port", str(port), "--policy", "round-robin"]
    found = [("penstock", [*penstock, "--replica", f"http://{HOST}:{replica}", "--log-level", "warning"], port)]
    for other in arguments.other:
        name, _, command = other.partition("=")
        port = free_port()
        filled = command.format(port=port, replica=f"http://{HOST}:{replica}")
        found.append((name, shlex.split(filled), port))
    return found


async def measure(arguments: argparse.Namespace, targets: list[Target]) -> dict[str, dict[str, float]]:
    """All figures, by target."""
    for target in targets:
        await answers(target)
    direct, *gateways = targets
    found: dict[str, dict[str, float]] = {}
    for target in gateways:
        # One at a time: they share a core.
        seconds = await first_bytes([direct, target], arguments.rate, arguments.seconds)
        straight, through = (sorted(seconds[each.name]) for each in (direct, target))
        found[target.name] = {
            "requests": len(through),
            **{
                f"{name}_p50_ms": 1000 * statistics.median(values)
                for name, values in (("direct", straight), ("ttft", through))
            },
            **{
                f"{name}_p99_ms": 1000 * values[int(0.99 * len(values))]
                for name, values in (("direct", straight), ("ttft", through))
            },
        }
    rates: dict[str, list[float]] = {target.name: [] for target in targets}
    for _ in range(arguments.rounds):
        for target in targets:
            rates[target.name].append(await events(target, arguments.streams, arguments.events))
    for target in gateways:
        figures = found[target.name]
        figures["added_p50_ms"] = figures["ttft_p50_ms"] - figures["direct_p50_ms"]
        figures["added_p99_ms"] = figures["ttft_p99_ms"] - figures["direct_p99_ms"]
        figures["events_per_second"] = statistics.median(rates[target.name])
        figures["resident_bytes"] = await memory(target, arguments.open)
    found[direct.name] = {"events_per_second": statistics.median(rates[direct.name])}
    return found


def tell(found: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    header = ["", "TTFT p50, ms", "p99, ms", "added to p50, ms", "to p99, ms", "events a second", "memory, MiB"]
    rows = [
        [
            name,
            *(figures.get(key) for key in ("ttft_p50_ms", "ttft_p99_ms", "added_p50_ms", "added_p99_ms")),
            figures["events_per_second"],
            figures["resident_bytes"] / 2**20 if "resident_bytes" in figures else None,
        ]
        for name, figures in found.items()
    ]
    reporting.report("What a gateway adds", header, rows)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--core", type=int, default=0, help="that gateways run on")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second to each target")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which first bytes are measured")
    parser.add_argument("--streams", type=int, default=64, help="at a time, whose events are counted")
    parser.add_argument("--events", type=int, default=2000, help="of each of these streams")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--open", type=int, default=2000, help="streams that are open when memory is looked at")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--tenants", action="store_true", help="measure gateways with a database of tenants, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stand-in", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stand_in:
        stand_in(arguments.stand_in)
        return
    descriptors.raise_limit()
    rest = set(range(os.cpu_count() or 1)) - {arguments.core}
    replica, folder = free_port(), Path("build") / "gateway"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        command = [sys.executable, __file__, "--stand-in", str(replica)]
        stack.enter_context(started(command, replica, min(rest, default=None), folder / "replica.log"))
        targets = [Target("direct", replica, None)]
        tenants = with_tenants(stack, replica) if arguments.tenants else []
        for name, command, port in (*commands(arguments, replica), *tenants):
            process = stack.enter_context(started(command, port, arguments.core, folder / f"{name}.log"))
            targets.append(Target(name, port, process))
        os.sched_setaffinity(0, rest or {0})
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(measure(arguments, targets))
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    tell(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
