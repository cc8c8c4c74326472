"""A gateway, its replicas and their users in one thread, on one simulated clock, from one seed.

The application, relay, dispatch, connections with their parser, and what looks after replicas are real. Sockets, the
clock and the replicas are simulated: a replica answers with tokens that its request alone determines.
"""

import asyncio
import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httptools

from penstock.core.resumption import MARK, RESUME, TRACK
from penstock.gateway.app import create_gateway
from penstock.gateway.connection import Connection
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions, HoldOptions, ReplicaOptions, RetryOptions
from penstock.gateway.pool import Pool, address_of
from penstock.routing.policies import POLICIES
from penstock.server.dialects import DIALECTS
from support.simulated_loop import simulate
from support.world_http import Exchange

OUTCOMES = ("whole", "left", "refused", "failed")
TOKEN_SECONDS = 0.1
# Tokens that a replica that goes on generates again.
REPEATED = 4
# Seconds between two events of a stream: until a silent replica is noticed, and tokens of a slow one come again.
MOST_SILENCE = 8.0


def tokens_of(name: str, count: int) -> list[int]:
    """What any replica answers."""
    return [hashlib.blake2b(f"{name} {place}".encode(), digest_size=2).digest()[0] for place in range(count)]


class Wire:
    """Both ends of a connection, as the gateway's transport."""

    def __init__(self, replica: "Replica", connection: Connection) -> None:
        self.replica, self.connection = replica, connection
        self.closed = False
        self._reading = asyncio.Event()
        self._reading.set()
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._path = self._body = b""
        self.task: asyncio.Task[None] | None = None

    @property
    def tells(self) -> bool:
        """Whether the replica tells its state on it."""
        return self._path == b"/v1/replica"

    # What the gateway calls.

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        for part in parts:
            self._parser.feed_data(part)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._headers, self._path, self._body = {}, b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self.task is None or self.task.done(), "a request is sent before the last one is answered"
        method = self._parser.get_method()
        self.task = asyncio.ensure_future(self.replica.answer(self, method, self._path, self._headers, self._body))

    # What the replica does.

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.task is not None:
                self.task.cancel()
            self.replica.wires.pop(self, None)
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    async def send(self, data: bytes) -> None:
        """In pieces, while the gateway reads and nothing holds the replica up."""
        rng = self.replica.world.rng
        cut = rng.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            await self.replica.goes.wait()
            await self._reading.wait()
            if piece and not self.closed:
                self.connection.data_received(piece)
            if rng.random() < 0.1:
                await asyncio.sleep(0)


class Replica:
    """A server of the fleet.

    Attributes:
        alive: whether it takes connections.
        goes: whether it does anything.
        trouble: what it answers all requests with, if anything: a status.
        slow: by how much longer its tokens take.
        running: names of the requests that it computes.
    """

    def __init__(self, world: "FleetWorld", number: int) -> None:
        self.world, self.number = world, number
        self.alive, self.ending = True, False
        self.trouble: int | None = None
        self.slow = 1.0
        self.starts = 0
        self.wires: dict[Wire, None] = {}
        self.goes = asyncio.Event()
        self.goes.set()
        self.running: Counter[str] = Counter()
        self.most_running = world.rng.choice([0, 2, 8])

    @property
    def works(self) -> bool:
        """Whether what it computes can reach anyone."""
        return self.alive and self.goes.is_set()

    def kill(self) -> None:
        self.alive = False
        self.starts += 1
        for wire in tuple(self.wires):
            wire.close()
        self.goes.set()

    def blink(self) -> None:
        """Only what it tells of itself breaks off."""
        for wire in tuple(self.wires):
            if wire.tells:
                wire.close()

    async def answer(self, wire: Wire, method: bytes, path: bytes, headers: dict[bytes, bytes], body: bytes) -> None:
        await asyncio.sleep(0.001)
        if method == b"GET":
            await self._tell(wire) if path == b"/v1/replica" else await self._whole(wire, b"{}", 404)
            return
        size = len(body) - int(headers.get(RESUME, b"0"))
        asked, begun = json.loads(body[:size]), json.loads(body[size:] or b"null")
        if self.trouble is not None or self.ending:
            await self._whole(wire, b'{"error": {"message": "trouble"}}', self.trouble or 503)
            return
        name = asked["prompt"]
        for other in self.world.replicas:
            assert not (other.works and other.running[name]), f"{name} is computed twice at a time"
        self.running[name] += 1
        try:
            await self._generate(wire, asked, begun, tracked=TRACK in headers)
        finally:
            self.running[name] -= 1

    async def _tell(self, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            state = {
                "at": asyncio.get_running_loop().time() + self.world.skew,
                "instance": str(self.starts),
                "ending": self.ending,
                "models": ["m"],
                "running": sum(self.running.values()),
                "most_running": self.most_running,
                "identity": "alike",
            }
            await wire.send(chunk(json.dumps(state).encode() + b"\n"))
            if self.ending:
                await wire.send(b"0\r\n\r\n")
                return
            await asyncio.sleep(0.3)

    async def _generate(self, wire: Wire, asked: dict[str, Any], begun: Any, *, tracked: bool) -> None:
        name, count = asked["prompt"], asked["max_tokens"]
        tokens = tokens_of(name, count)
        await asyncio.sleep(TOKEN_SECONDS * self.slow)
        if not asked.get("stream"):
            for _ in tokens:
                await asyncio.sleep(TOKEN_SECONDS * self.slow)
            await self._whole(wire, json.dumps({"id": f"cmpl-{name}", "tokens": tokens}).encode())
            return
        assert tracked, "a replica of Penstock is asked which tokens events hold"
        response = {"id": f"cmpl-{name}-{self.number}-{self.starts}", "created": 1, "seed": 2}
        known = 0
        if begun is not None:
            if self.world.rng.random() < 0.1:
                await self._whole(wire, b'{"error": {"message": "busy"}}', 503)
                return
            known = len(begun["tokens"])
            assert begun["tokens"] == tokens[:known] and known < count, "the gateway knows other tokens"
            response = {key: begun[key] for key in response}
            for _ in range(min(REPEATED, known)):
                await asyncio.sleep(TOKEN_SECONDS * self.slow)
        await wire.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-penstock-track: 1\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        content = MARK + json.dumps(response, separators=(",", ":")).encode() + b"\n\n"
        for place in range(known, count):
            await asyncio.sleep(TOKEN_SECONDS * self.slow)
            event = {"id": response["id"], "token": tokens[place]}
            content += b"data: " + json.dumps(event).encode() + b"\n\n"
            if place < count - 1:
                await wire.send(chunk(content + MARK + str(tokens[place]).encode() + b"\n\n"))
                content = b""
        await wire.send(chunk(content + b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def _whole(self, wire: Wire, body: bytes, status: int = 200) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await wire.send(head.encode() + body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class WorldPool(Pool):
    """Connects to a simulated replica."""

    def __init__(self, replica: Replica, url: str) -> None:
        super().__init__(address_of(url))
        self._replica = replica

    async def _connect(self) -> Connection:
        await asyncio.sleep(0.001)
        if not self._replica.alive:
            raise ReplicaBroken("it cannot be reached (Connection refused)")
        connection = Connection(self._free, self._lost)
        wire = Wire(self._replica, connection)
        self._replica.wires[wire] = None
        connection.connection_made(wire)  # type: ignore[arg-type]
        self._open.add(connection)
        return connection


class Reader(Exchange):
    """A client that notes how long it has waited for more at most, once there was something."""

    longest = 0.0

    async def _some(self) -> None:
        began, begun = self.loop.time(), bool(self.body)
        await super()._some()
        if begun:
            self.longest = max(self.longest, self.loop.time() - began)


@dataclass
class Job:
    """A request of a user.

    Attributes:
        leaves: after how many events the user has enough; None: never.
        pause: seconds between two reads.
    """

    name: str
    at: float
    tokens: int
    stream: bool
    leaves: int | None
    pause: float
    priority: int = 0
    outcome: str = ""


@dataclass
class FleetWorld:
    """Everything that a seed decides, and what becomes of it.

    Attributes:
        mild: at most one replica is in trouble at a time, so that no request may fail.
    """

    seed: int
    rng: random.Random = field(init=False)
    replicas: list[Replica] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.mild = self.rng.random() < 0.6
        # The replicas' clocks are not the gateway's.
        self.skew = self.rng.uniform(-100, 100)

    async def run(self) -> None:
        rng = self.rng
        self.replicas = [Replica(self, number) for number in range(rng.randint(2, 4))]
        fleet = FleetOptions(
            replica=tuple(ReplicaOptions(url=f"http://r{each.number}") for each in self.replicas),
            policy=rng.choice(list(POLICIES)),
            hold=HoldOptions(seconds=1000.0 if self.mild else rng.choice([0.0, 2.0, 60.0]), requests=100, ahead=1),
            retries=RetryOptions(most=4, part=1.0 if self.mild else rng.choice([0.0, 0.2, 1.0])),
        )
        dispatch = Dispatch(fleet, first=rng.randrange(1000))
        by_host = {f"r{each.number}": each for each in self.replicas}
        members = Members(dispatch, fleet, lambda address: WorldPool(by_host[address.host], str(address)))
        app = create_gateway(dispatch, DIALECTS, local=True)
        async with members.looked_after():
            self.jobs = [self._job(number) for number in range(rng.randint(5, 20))]
            starting = rng.random() < 0.3
            if starting:
                # Requests wait for the first of them.
                for replica in self.replicas:
                    replica.kill()
                    asyncio.get_running_loop().call_later(rng.uniform(1, 6), self._heal, replica)
            # While one alone has started, its trouble is everybody's.
            trouble = asyncio.ensure_future(self._trouble(10.0 if starting else 0.0))
            users = [asyncio.ensure_future(self._user(app, job)) for job in self.jobs]
            await asyncio.gather(*users)
            trouble.cancel()
            await asyncio.gather(trouble, return_exceptions=True)
            for replica in self.replicas:
                self._heal(replica)
            await asyncio.sleep(60)
            self._check_idle(dispatch)
            last = Job("last", asyncio.get_running_loop().time(), 3, True, None, 0.0)
            await self._user(app, last)
            assert last.outcome == "whole", "nothing is served when all is well again"
            await asyncio.sleep(5)
            self._check_idle(dispatch)
        self.outcomes.update(job.outcome for job in self.jobs)
        self.resumed = dispatch.figures.retries["resumed"]
        self.retried = dispatch.figures.retries["sent"]

    def _job(self, number: int) -> Job:
        rng = self.rng
        return Job(
            f"job{number}",
            rng.uniform(0, 15),
            rng.randint(1, 60),
            stream=rng.random() < 0.7,
            leaves=rng.randint(0, 20) if rng.random() < 0.15 else None,
            pause=rng.choice([0.0, 0.0, 0.2]),
            priority=rng.choice([-1, 0, 0, 1]),
        )

    async def _user(self, app: Any, job: Job) -> None:
        await asyncio.sleep(max(0.0, job.at - asyncio.get_running_loop().time()))
        asked = {
            "model": "m",
            "prompt": job.name,
            "max_tokens": job.tokens,
            "stream": job.stream,
            "priority": job.priority,
        }
        exchange = Reader(
            app, "POST", "/v1/completions", json.dumps(asked).encode(), headers={"host": "localhost"}, room=400
        )
        if job.leaves == 0:
            await asyncio.sleep(self.rng.uniform(0, 2))
            await self._leave(exchange)
            job.outcome = "left"
        elif not await exchange.read(job.pause, job.leaves):
            await self._leave(exchange)
            job.outcome = "left"
        else:
            job.outcome = self._judge(job, exchange)
        if job.outcome == "left":
            await asyncio.sleep(0.01)
            assert not any(each.works and each.running[job.name] for each in self.replicas), "nobody wants it"
        assert not self.mild or exchange.longest < MOST_SILENCE, f"{job} was held up for {exchange.longest} s"
        assert not self.mild or job.outcome in ("whole", "left"), f"{job} failed: {exchange.body!r}"
        self.notes.append(f"{asyncio.get_running_loop().time():.3f} {job.name} {job.outcome}")

    async def _leave(self, exchange: Reader) -> None:
        """The gateway notices at once, whatever it waits for."""
        began = asyncio.get_running_loop().time()
        await exchange.leave()
        assert asyncio.get_running_loop().time() - began < 0.1, "it is served on though it has left"

    def _judge(self, job: Job, exchange: Exchange) -> str:
        tokens = tokens_of(job.name, job.tokens)
        if exchange.status != 200:
            assert json.loads(exchange.body)["error"]["message"]
            assert exchange.status in (500, 502, 503, 529), exchange.status
            return "refused" if exchange.status in (503, 529) else "failed"
        if not job.stream:
            assert json.loads(exchange.body)["tokens"] == tokens
            return "whole"
        *events, last = exchange.body.removesuffix(b"\n\n").split(b"\n\n")
        assert last == b"data: [DONE]" and all(event.startswith(b"data: ") for event in events), exchange.body
        told = [json.loads(event[6:]) for event in events]
        failed = bool(told) and "error" in told[-1]
        told = told[:-1] if failed else told
        assert [event["token"] for event in told] == tokens[: len(told)], "tokens are lost, doubled or others"
        assert len({event["id"] for event in told}) <= 1, "an answer has two ids"
        assert failed or len(told) == job.tokens, "an answer ends too soon"
        return "failed" if failed else "whole"

    async def _trouble(self, after: float) -> None:
        rng = self.rng
        await asyncio.sleep(after + rng.uniform(0, 7))
        while True:
            await asyncio.sleep(rng.uniform(0.2, 2))
            replica = rng.choice(self.replicas)
            kind = rng.choice(["kill", "hang", "busy", "errors", "slow", "end", "blink"])
            self.faults[kind] += 1
            self.notes.append(f"{asyncio.get_running_loop().time():.3f} {kind} {replica.number}")
            if kind == "kill":
                replica.kill()
            elif kind == "hang":
                replica.goes.clear()
            elif kind == "busy":
                replica.trouble = 503
            elif kind == "errors":
                replica.trouble = 500
            elif kind == "slow":
                replica.slow = 10.0
            elif kind == "blink":
                replica.blink()
            else:
                # It takes on nothing more, and what still runs after a while is cut off.
                replica.ending = True
                await asyncio.sleep(rng.uniform(0, 3))
                replica.kill()
            if self.mild or rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0.5, 6) if rng.random() < 0.5 else 12)
                self._heal(replica)
                # Until it is known to be well.
                await asyncio.sleep(4)

    def _heal(self, replica: Replica) -> None:
        replica.alive, replica.ending, replica.trouble, replica.slow = True, False, None, 1.0
        replica.goes.set()
        names = Counter(name for each in self.replicas if each.works for name, count in each.running.items() if count)
        assert not names or max(names.values()) == 1, "a replica that is well again computes what another one does"

    def _check_idle(self, dispatch: Dispatch) -> None:
        loads = dispatch.router.loads
        own = [sum(each.running.values()) for each in self.replicas]
        assert not any(own), "a replica computes what nobody wants"
        assert not any([*loads.reading, *loads.uncached, *loads.context, *loads.requests]), "a load is never released"
        assert not any(replica.under_way for replica in dispatch.replicas.all), "a request is never let go"
        assert dispatch.hold.line.unused, "a turn never ends"
        assert dispatch.hold.waiting == 0 and not dispatch.outliers.out(asyncio.get_running_loop().time())


def run_fleet(seed: int) -> FleetWorld:
    """The world of a seed, when all is over."""
    world = FleetWorld(seed)
    simulate(world.run())
    return world
