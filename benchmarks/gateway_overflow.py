"""Own machines at twice what they can do, and a provider for the rest: who is served in time, and what does it cost?

--replicas simulated replicas of a model of 70 billion parameters, each on eight H100, and a stand-in of a hosted API,
which begins an answer after --provider-ttft seconds and then sends --provider-rate tokens a second. First the peak of
the machines is measured: the best goodput at growing numbers of chats at a time. Then chats come at --factor times that
rate, as a Poisson process that waits for nobody: once with the machines alone, once with the provider beside them. Of
all chats, --sensitive are a project's whose requests must stay on own machines; the provider looks for these in
everything that it is sent.

Served in time is who has the first token within --ttft seconds and the others within --tpot each, in the mean. Of a
request that is not answered, it is never. Costs are those of an hour of each machine (--machine-hour) for as long as
requests came, whether it had work or not, and of the provider's tokens (--input and --output for a million of them), as
the ledger has them; beside it, what all of these tokens cost at the provider.

    python benchmarks/gateway_overflow.py --json build/gateway-overflow.json
"""

import argparse
import asyncio
import gc
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import reporting
import uvloop
from gateway_overhead import request_in
from http_client import Timing, complete_over
from overload import LOAD_NICENESS
from serving import HOST, Server
from simulated_fleet import NAME, Replicas, gateway, simulated_replicas
from sqlalchemy import func, select

from penstock.bench.load.address import Address
from penstock.bench.load.client import Client
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.metering.prices import TRILLIONTHS
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings

CHAT = "/v1/chat/completions"
SECRET_WORD = "sensitive"
VARIABLE, KEY = "OVERFLOW_PROVIDER_KEY", "sk-overflow"
CONCURRENCIES = (8, 12, 16, 20)
# Of the words of a prompt, each a token of the tokenizer, about.
WORDS = ("river", "stone", "wind", "light", "cold", "tree", "bird", "moon", "rain", "hill")


class StandIn(asyncio.Protocol):
    """OpenAI's API, as fast as it is told to be."""

    first, rate, asked, sensitive = 0.0, 1.0, 0, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        if (request := request_in(self._got)) is None:
            return
        self._got, body = b"", json.loads(request[1])
        cls = type(self)
        cls.asked += 1
        cls.sensitive += SECRET_WORD in request[1].decode()
        words = sum(len(each["content"].split()) for each in body["messages"])
        asyncio.get_running_loop().create_task(self._answer(words, body["max_tokens"]))

    async def _answer(self, prompt: int, count: int) -> None:
        await asyncio.sleep(self.first)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._write(head)
        for token in range(count):
            finish = "length" if token == count - 1 else None
            self._send({"choices": [{"index": 0, "delta": {"content": "w "}, "finish_reason": finish}]})
            await asyncio.sleep(1 / self.rate)
        self._send({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": count}})
        self._write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _send(self, chunk: object) -> None:
        content = b"data: " + json.dumps(chunk).encode() + b"\n\n"
        self._write(b"%x\r\n%s\r\n" % (len(content), content))

    def _write(self, content: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(content)


@contextmanager
def provider(arguments: argparse.Namespace) -> Iterator[int]:
    """The port of the stand-in, in a thread of its own."""
    StandIn.first, StandIn.rate = arguments.provider_ttft, arguments.provider_rate
    loop, started, found = uvloop.new_event_loop(), threading.Event(), list[int]()

    async def serve() -> None:
        server = await loop.create_server(StandIn, HOST, 0)
        found.append(server.sockets[0].getsockname()[1])
        started.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.run_forever()), daemon=True)
    thread.start()
    started.wait()
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@dataclass
class World:
    """A gateway with a database, and the keys of its two projects.

    Attributes:
        keys: of the open project, and of the one whose requests stay.
    """

    passing: Server
    database: Database
    keys: dict[str, str]

    def spent_outside(self) -> Decimal:
        """The provider's part of the ledger, once that is complete."""
        entered, before = self._entered(), -1
        while entered != before:
            time.sleep(2.0)
            before, entered = entered, self._entered()
        query = select(func.sum(ledger.c.cost)).where(ledger.c.replica.startswith("provider/"))
        with self.database.begin() as connection:
            return Decimal(connection.execute(query).scalar() or 0) / TRILLIONTHS

    def _entered(self) -> int:
        with self.database.begin() as connection:
            return int(connection.execute(select(func.count()).select_from(ledger)).scalar_one())


@contextmanager
def world(fleet: Replicas, arguments: argparse.Namespace, port: int | None) -> Iterator[World]:
    """One with the provider, or without."""
    offered = f"""
[[provider]]
name = "hosted"
api = "openai"
url = "http://{HOST}:{port}/v1"
key_variable = "{VARIABLE}"
after = {arguments.after}
most_requests = 1000
[[provider.model]]
model = "{NAME}"
at = "hosted"
input = {arguments.input}
output = {arguments.output}
"""
    hold = f"free = ['{NAME}']\n[hold]\nseconds = {arguments.hold}\nahead = 2\n"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = f"{folder}/tenants.sqlite"
        database = stack.enter_context(closing(Database.open(url)))
        database.upgrade()
        registry = Registry(database)
        registry.create_organisation("benchmark", "acme", Settings())
        keys = {}
        for project, settings in (("open", Settings()), (SECRET_WORD, Settings(privacy_classes=("own",)))):
            registry.create_project("benchmark", f"acme.{project}", settings)
            keys[project] = registry.create_key("benchmark", project, f"acme.{project}", Settings())[1]
        os.environ |= {VARIABLE: KEY, "PENSTOCK_DATA": folder}
        settings = hold + (offered if port is not None else "")
        yield World(stack.enter_context(gateway(fleet.servers, settings, ["--database", url])), database, keys)


def chat(whose: str, generator: random.Random, arguments: argparse.Namespace) -> dict[str, object]:
    """A chat that nobody had before."""
    words = [str(generator.random()), whose, *generator.choices(WORDS, k=arguments.input_len)]
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": arguments.output_len,
    }


def in_time(timing: Timing, arguments: argparse.Namespace) -> bool:
    """Whether a request was served within the service levels; an answer may be shorter than it may be."""
    return timing.error is None and timing.ttft <= arguments.ttft and (timing.tpot or 0.0) <= arguments.tpot


async def closed_loop(made: World, count: int, arguments: argparse.Namespace) -> float:
    """The goodput with that number of chats at a time."""
    generator, timings = random.Random(time.monotonic_ns()), list[Timing]()
    begin = time.monotonic()
    end = begin + arguments.peak_seconds

    async def stream() -> None:
        while time.monotonic() < end:
            timings.append(await complete_over(client, chat("open", generator, arguments), time.monotonic(), CHAT))

    with closing(Client(Address(HOST, made.passing.port), key=made.keys["open"])) as client:
        await asyncio.gather(*(stream() for _ in range(count)))
    # Those that end early in it began before, while fewer ran.
    first = begin + arguments.peak_seconds / 3
    return sum(in_time(each, arguments) for each in timings if first <= each.ended <= end) / (end - first)


async def open_loop(made: World, rate: float, arguments: argparse.Namespace) -> list[tuple[str, Timing]]:
    """All chats, with whose they were."""
    generator, asked = random.Random(0), list[asyncio.Task[tuple[str, Timing]]]()
    clients = {name: Client(Address(HOST, made.passing.port), key=key) for name, key in made.keys.items()}

    async def one(name: str, due: float, seed: int) -> tuple[str, Timing]:
        body = chat(name, random.Random(seed), arguments)
        return name, await complete_over(clients[name], body, due, CHAT)

    start = due = time.monotonic()
    while (due := due + generator.expovariate(rate)) < start + arguments.seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        name = SECRET_WORD if generator.random() < arguments.sensitive else "open"
        asked.append(asyncio.create_task(one(name, due, len(asked))))
    found = list(await asyncio.gather(*asked))
    for client in clients.values():
        client.close()
    return found


def figures_of(found: list[tuple[str, Timing]], spent: Decimal, arguments: argparse.Namespace) -> dict[str, object]:
    """What became of all chats."""

    def part(timings: list[Timing]) -> float:
        return sum(in_time(each, arguments) for each in timings) / max(1, len(timings))

    every = [timing for _, timing in found]
    stayed = [timing for name, timing in found if name == SECRET_WORD]
    hours = Decimal(arguments.seconds) / 3600
    own = Decimal(arguments.replicas) * Decimal(arguments.machine_hour) * hours
    million = Decimal(10**6)
    tokens = Decimal(arguments.input) * sum(each.prompt_tokens for each in every)
    tokens += Decimal(arguments.output) * sum(each.output_tokens for each in every)
    served = [each.ttft for each in every if each.error is None]
    return {
        "requests": len(every),
        "in_time": part(every),
        "sensitive_in_time": part(stayed),
        "ttft_p50_s": reporting.median(served),
        "ttft_p95_s": reporting.percentile(served, 0.95),
        "machines_cost": float(own),
        "provider_cost": float(spent),
        "all_outside_cost": float(tokens / million),
        "outcomes": Counter("served" if each.error is None else str(each.status or each.error) for each in every),
        "by_provider": StandIn.asked,
        "sensitive_by_provider": StandIn.sensitive,
    }


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """The peak, and both worlds at a multiple of it."""
    bounds = ["--max-num-seqs", str(arguments.max_num_seqs), "--log-level", "warning"]
    with provider(arguments) as port, simulated_replicas(arguments.replicas, bounds, tokenizer=True) as fleet:
        with world(fleet, arguments, None) as alone:
            os.nice(LOAD_NICENESS)
            peaks = {count: uvloop.run(closed_loop(alone, count, arguments)) for count in CONCURRENCIES}
            rate = arguments.factor * max(peaks.values())
            without = figures_of(uvloop.run(open_loop(alone, rate, arguments)), Decimal(0), arguments)
        with world(fleet, arguments, port) as both:
            found = uvloop.run(open_loop(both, rate, arguments))
            beside = figures_of(found, both.spent_outside(), arguments)
    return {"peaks": peaks, "rate": rate, "alone": without, "with_provider": beside}


def main() -> None:
    gc.disable()
    parser = reporting.parser(__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--factor", type=float, default=2.0, help="load, in times of the peak (default 2)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of that load (default 60)")
    parser.add_argument("--peak-seconds", type=float, default=15.0, help="for each number of chats (default 15)")
    parser.add_argument("--sensitive", type=float, default=0.2, help="part of all chats (default 0.2)")
    parser.add_argument("--after", type=float, default=0.5, help="seconds to wait for machines (default 0.5)")
    parser.add_argument("--hold", type=float, default=5.0, help="seconds that one waits at the gateway (default 5)")
    parser.add_argument("--ttft", type=float, default=2.0, help="service level: seconds to a first token (default 2)")
    parser.add_argument("--tpot", type=float, default=0.1, help="service level: seconds a token (default 0.1)")
    parser.add_argument("--input-len", type=int, default=3000, help="words of a prompt (default 3000)")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an answer (default 64)")
    parser.add_argument("--max-num-seqs", type=int, default=32, help="that a replica runs at a time (default 32)")
    parser.add_argument("--machine-hour", type=float, default=16.0, help="price of a machine (default 16)")
    parser.add_argument("--input", type=float, default=0.60, help="price of the provider's input (default 0.60)")
    parser.add_argument("--output", type=float, default=0.90, help="price of its output (default 0.90)")
    parser.add_argument("--provider-ttft", type=float, default=0.5, help="seconds (default 0.5)")
    parser.add_argument("--provider-rate", type=float, default=60.0, help="tokens a second (default 60)")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()

    figures = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    alone, beside = figures.pop("alone"), figures.pop("with_provider")
    assert isinstance(alone, dict) and isinstance(beside, dict)
    reporting.report(
        f"{arguments.replicas} simulated replicas, {arguments.factor:g} times their peak for {arguments.seconds:g} s",
        ("", "machines alone", "with a provider"),
        [
            *((name, each, each) for name, each in figures.items()),
            *((name, alone[name], beside[name]) for name in alone),
        ],
    )


if __name__ == "__main__":
    main()
