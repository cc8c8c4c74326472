"""Does a ledger add up to the last token, whatever happens to requests, replicas and the database?

--gateways gateways with one database and one store of limits are in front of two stand-in replicas, which tell what
they have used as servers of Penstock do. --requests streams are asked for: of 100, 30 are left by their clients in the
middle, 5 break off in the middle and go on at the other replica, 5 are not begun by the first replica that is asked,
and the others run to their ends. A client that leaves does so when it has all that was sent so far.

In the middle, the database is locked for --away seconds. A tenth of the requests are one key's whose budget is enough
for a part of them. At the end a key is revoked, with its streams, on all gateways at once.

Told is: tokens that clients have got and what they cost, beside the ledger's statement; what the budget was and what
was spent of it; how many requests were answered while the database was locked; and how long it took until each gateway
refused the revoked key, and ended its streams.

    python benchmarks/gateway_ledger.py
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import reporting
import uvloop
from gateway_limits import Store
from gateway_overhead import request_in
from serving import HOST, Server, running

from penstock.core.resumption import MARK, RESUME, TRACK, Begun, Opening
from penstock.core.usage import Used
from penstock.database.connection import Database
from penstock.routing.told import ReplicaState
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings
from penstock.tenancy.statement import Statement, statement

INPUT, CACHED, OUTPUT = Decimal("0.15"), Decimal("0.03"), Decimal("0.60")
A_MILLION = 10**6
# Of 100 requests.
LEFT, BROKEN, REFUSED = 30, 5, 5
SHARE_OF_BUDGET = 0.6
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n%s\r\ntransfer-encoding: chunked\r\n\r\n"


class Asked(msgspec.Struct, frozen=True):
    """What a request is to have, in its `user`.

    Attributes:
        stop: tokens after which nothing comes until its client leaves; 0: it ends.
        breaks: tokens after which the first replica's connection is cut; 0: it is not.
        refuses: whether the first replica cuts it before its answer.
    """

    number: int
    prompt: int
    cached: int
    output: int
    stop: int = 0
    breaks: int = 0
    refuses: bool = False


class StandIn(asyncio.Protocol):
    """A replica that tracks its streams."""

    refused: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        if (request := request_in(self._got)) is None:
            return
        head, body = request
        self._got = b""
        if head.startswith(b"GET"):
            self._transport.write(HEAD % (b"application/x-ndjson", b"x-told: 1"))
            self._tell()
            return
        begun = None
        resumed = next((line for line in head.lower().split(b"\r\n") if line.startswith(RESUME + b":")), None)
        if resumed is not None:
            size = int(resumed.split(b":")[1])
            begun, body = msgspec.json.decode(body[-size:], type=Begun), body[:-size]
        self._stream(msgspec.json.decode(json.loads(body)["user"], type=Asked), begun)

    def _tell(self) -> None:
        """Say how it is, again and again, for as long as the gateway listens."""
        if self._transport.is_closing():
            return
        state = ReplicaState(at=time.monotonic(), instance="one", models=("stand-in",), identity="same")
        self._send(msgspec.json.encode(state) + b"\n")
        asyncio.get_running_loop().call_later(0.1, self._tell)

    def _stream(self, asked: Asked, begun: Begun | None) -> None:
        if asked.refuses and asked.number not in self.refused:
            self.refused.add(asked.number)
            self._transport.close()
            return
        self._transport.write(HEAD % (b"text/event-stream", TRACK + b": 1"))
        done = 0 if begun is None else len(begun.tokens)
        if begun is None:
            opening = msgspec.json.encode(Opening(f"cmpl-{asked.number}", 1, 1))
            self._send(MARK + opening + b"\n\n", Used(asked.prompt, asked.cached, 0).comment)
        cut = asked.breaks if begun is None else 0
        for token in range(done, cut or asked.stop or asked.output):
            event = {"choices": [{"index": 0, "text": "w ", "finish_reason": None}]}
            self._send(b"data: " + json.dumps(event).encode() + b"\n\n", MARK + b"%d\n\n" % token)
        if cut:
            self._transport.close()
        elif not asked.stop:
            used = Used(asked.prompt, asked.cached, asked.output)
            self._send(used.comment, b"data: [DONE]\n\n")
            self._transport.write(b"0\r\n\r\n")

    def _send(self, *parts: bytes) -> None:
        content = b"".join(parts)
        self._transport.write(b"%x\r\n%s\r\n" % (len(content), content))


@dataclass
class Got:
    """What clients have got.

    Attributes:
        outcomes: how many of each kind there were, and statuses of refusals.
        used: by the key's name.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    used: dict[str, Used] = field(default_factory=dict)
    answered: list[float] = field(default_factory=list)

    def add(self, key: str, used: Used) -> None:
        """One more answer."""
        before = self.used.get(key, Used(0, 0, 0))
        sums = (before.prompt + used.prompt, before.cached + used.cached, before.output + used.output)
        self.used[key] = Used(*sums)
        self.answered.append(time.monotonic())


def cost(used: Used) -> Decimal:
    """At the prices of the gateways' file."""
    return ((used.prompt - used.cached) * INPUT + used.cached * CACHED + used.output * OUTPUT) / A_MILLION


async def ask(port: int, secret: str, asked: Asked) -> tuple[int, int, bool]:
    """The status, tokens that have come, and whether the stream came to its end; left as `asked` says."""
    body = {
        "model": "stand-in",
        "prompt": "w " * (2 * asked.prompt),
        "stream": True,
        "max_tokens": asked.output,
        "user": msgspec.json.encode(asked).decode(),
    }
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (secret.encode(), len(content), content)
    )
    status, tokens, whole = int((await reader.readline()).split()[1]), 0, False
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            tokens += line.startswith(b'data: {"choices"')
            whole = whole or line.startswith(b"data: [DONE]")
            if asked.stop and tokens == asked.stop:
                break
    writer.close()
    return status, tokens, whole


def made_up(number: int, chance: random.Random) -> Asked:
    """The next request."""
    prompt, output, kind = chance.randint(1, 400), chance.randint(2, 60), chance.randrange(100)
    plain = Asked(number, prompt, chance.randint(0, prompt), output)
    middle = chance.randint(1, output - 1)
    if kind < LEFT:
        return msgspec.structs.replace(plain, stop=middle)
    if kind < LEFT + BROKEN:
        return msgspec.structs.replace(plain, breaks=middle)
    return msgspec.structs.replace(plain, refuses=kind < LEFT + BROKEN + REFUSED)


async def client(ports: list[int], keys: dict[str, str], work: Iterator[Asked], got: Got) -> None:
    """Ask for one after the other; every tenth with the key that has a budget."""
    for asked in work:
        key = "bounded" if asked.number % 10 == 0 else "free"
        status, tokens, whole = await ask(random.choice(ports), keys[key], asked)
        expected = asked.stop or asked.output
        if status != 200:
            got.outcomes[f"status {status}"] += 1
        elif tokens != expected or whole != (not asked.stop):
            got.outcomes["other tokens than were made"] += 1
        else:
            kinds = (("left", asked.stop), ("went on elsewhere", asked.breaks), ("begun elsewhere", asked.refuses))
            got.outcomes[next((name for name, applies in kinds if applies), "whole")] += 1
            got.add(key, Used(asked.prompt, asked.cached, tokens))


async def lock(path: Path, seconds: float, got: Got, after: int) -> tuple[float, float]:
    """Keep everyone else from the database, once some requests were answered."""
    while len(got.answered) < after:
        await asyncio.sleep(0.01)

    def work() -> tuple[float, float]:
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        time.sleep(seconds)
        connection.execute("ROLLBACK")
        connection.close()
        return began, time.monotonic()

    return await asyncio.to_thread(work)


async def revoked(
    ports: list[int], registry: Registry, identifier: str, secret: str
) -> tuple[list[float], list[float]]:
    """Seconds until each gateway refused a key, and until its stream there ended."""
    waiting = Asked(-1, 10, 0, 50, stop=10)

    async def ended(port: int) -> float:
        reader, writer = await asyncio.open_connection(HOST, port)
        body = {"model": "stand-in", "prompt": "w", "stream": True, "user": msgspec.json.encode(waiting).decode()}
        content = json.dumps(body).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-type: application/json"
            b"\r\ncontent-length: %d\r\n\r\n%s" % (secret.encode(), len(content), content)
        )
        while b"key_revoked" not in await reader.readline():
            pass
        writer.close()
        return time.monotonic()

    async def refused(port: int) -> float:
        while (await ask(port, secret, msgspec.structs.replace(waiting, stop=1)))[0] != 401:
            await asyncio.sleep(0.02)
        return time.monotonic()

    streams = [asyncio.create_task(ended(port)) for port in ports]
    await asyncio.sleep(1)
    await asyncio.to_thread(registry.revoke_key, "benchmark", identifier, ends_streams=True)
    began = time.monotonic()
    at = await asyncio.gather(*map(refused, ports))
    return [each - began for each in at], [each - began for each in await asyncio.gather(*streams)]


@contextlib.contextmanager
def gateways(count: int, replicas: list[int], store: Store, folder: Path) -> Iterator[list[Server]]:
    """So many of them, with one database."""
    prices = f'[[price]]\nmodel = "stand-in"\ninput = {INPUT}\ncached = {CACHED}\noutput = {OUTPUT}\n'
    (folder / "fleet.toml").write_text(
        "".join(f'[[replica]]\nurl = "http://{HOST}:{each}"\n' for each in replicas) + prices
    )
    options = ["--config", str(folder / "fleet.toml"), "--policy", "round-robin", "--log-level", "warning"]
    shared = ["--database", str(folder / "tenants.sqlite"), "--limits-store", f"redis://{HOST}:{store.port}"]
    with ExitStack() as stack:
        found = [stack.enter_context(running("gateway", *options, *shared)) for _ in range(count)]
        for each in found:
            each.wait_until_ready()
        yield found


async def measure(
    found: list[Server], database: Database, registry: Registry, arguments: argparse.Namespace, path: Path
) -> None:
    """All requests, and what is told of them."""
    chance, got = random.Random(1), Got()
    wanted = [made_up(number, chance) for number in range(arguments.requests)]
    bounded = [cost(Used(each.prompt, each.cached, each.output)) for each in wanted if each.number % 10 == 0]
    budget = (sum(bounded, Decimal(0)) * Decimal(SHARE_OF_BUDGET)).quantize(Decimal("0.000001"))
    keys, ids = {}, {}
    for name, settings in (
        ("free", Settings()),
        ("bounded", Settings(budget_per_month=budget)),
        ("revoked", Settings()),
    ):
        key, keys[name] = registry.create_key("benchmark", name, "acme.web", settings)
        ids[name] = key.id
    ports, work = [each.port for each in found], iter(wanted)
    for port, secret in ((port, secret) for port in ports for secret in keys.values()):
        while (await ask(port, secret, Asked(-2, 1, 0, 2, stop=1)))[0] == 401:
            await asyncio.sleep(0.05)
    before = await settled(database, len(ports) * len(keys))
    async with asyncio.TaskGroup() as group:
        locked = group.create_task(lock(path, arguments.away, got, arguments.requests // 5))
        clients = [group.create_task(client(ports, keys, work, got)) for _ in range(arguments.clients)]
        await asyncio.wait(clients)
        await locked
    since, until = locked.result()
    told = await settled(database, before.requests + len(got.answered))
    report(got, told, before, ids, budget, max(bounded))
    answered = sum(since <= at <= until for at in got.answered)
    print(f"\nWhile the database was locked, for {until - since:.0f} s, {answered:,} requests were answered.")
    refused, ended = await revoked(ports, registry, ids["revoked"], keys["revoked"])
    print(
        f"A revoked key was refused by all {len(ports)} gateways after {max(refused):.2f} s, and its streams had ended "
        f"after {max(ended):.2f} s."
    )


async def settled(database: Database, requests: int) -> Statement:
    """The ledger of this month, once it has so many requests; or a minute later, what it has."""
    end, period = time.monotonic() + 60, time.strftime("%Y-%m", time.gmtime())
    while True:
        found = await asyncio.to_thread(statement, database, period)
        if found.requests >= requests or time.monotonic() > end:
            return found
        await asyncio.sleep(0.1)


def report(
    got: Got, told: Statement, before: Statement, ids: dict[str, str], budget: Decimal, dearest: Decimal
) -> None:
    """Tables of both sides."""
    reporting.report("Requests", ("outcome", "requests"), [[name, count] for name, count in got.outcomes.most_common()])
    rows: list[list[object]] = []
    for key, used in got.used.items():
        now = [line for line in told.lines if line.key == ids[key]]
        then = [line for line in before.lines if line.key == ids[key]]

        def more(name: str, now: Any = now, then: Any = then) -> Any:
            return sum(getattr(line, name) for line in now) - sum(getattr(line, name) for line in then)

        rows.append([key, "clients", used.prompt, used.cached, used.output, f"{cost(used):f}", ""])
        counts = [more(name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")]
        rows.append([key, "ledger", *counts, f"{more('cost'):f}", more("estimated_requests")])
    header = ("key", "", "prompt tokens", "cached", "output tokens", "cost", "estimated")
    reporting.report("What clients have got, and what the ledger has", header, rows)
    spent = sum((line.cost for line in told.lines if line.key == ids["bounded"]), Decimal(0))
    print(f"\nOf a budget of {budget:f}, {spent:f} were spent; the dearest request could cost {dearest:f}.")


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--away", type=float, default=60.0, help="seconds (default 60)")
    arguments = parser.parse_args()

    async def run(folder: Path) -> None:
        os.environ["PENSTOCK_DATA"] = str(folder / "data")
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(StandIn, HOST, 0, backlog=1024) for _ in range(2)]
        replicas = [each.sockets[0].getsockname()[1] for each in servers]
        path = folder / "tenants.sqlite"
        database = Database.open(str(path))
        database.upgrade()
        registry = Registry(database)
        registry.create_organisation("benchmark", "acme", Settings())
        registry.create_project("benchmark", "acme.web", Settings())
        store = Store(str(folder))
        # Its health is asked for on this loop, which must not wait for them meanwhile.
        started = gateways(arguments.gateways, replicas, store, folder)
        found = await asyncio.to_thread(started.__enter__)
        try:
            await measure(found, database, registry, arguments, path)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
            store.kill()

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(folder)))


if __name__ == "__main__":
    main()
