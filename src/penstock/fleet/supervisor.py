"""Keeps a fleet as it is described: starts replicas, replaces those that fail, and updates them one after the other."""

import asyncio
import hashlib
import logging
import os
import secrets
import socket
import time
from pathlib import Path

import msgspec

from penstock.access.keys import new_key
from penstock.core.errors import ConfigurationError
from penstock.core.handover import PREFIX_SECRET
from penstock.fleet.books import Books, Replica
from penstock.fleet.budget import afford, check_affordable
from penstock.fleet.description import FleetDescription, ModelDescription, arguments_of, plain_name
from penstock.fleet.following import Following
from penstock.fleet.gateway_keeper import GatewayKeeper, Spawn
from penstock.fleet.gateway_view import GatewayView, View
from penstock.fleet.habits import HABITS, KeptHabits
from penstock.fleet.local import OF_GATEWAYS, Process, spawn
from penstock.fleet.place import Launch, Place, Running
from penstock.fleet.reconcile import Drain, Phase, Start, reconcile
from penstock.fleet.sharing import Slots, share
from penstock.fleet.status import FleetStatus, GatewayStatus, ModelStatus, ReplicaStatus
from penstock.fleet.totals import Totals
from penstock.gateway.joining import VARIABLE

logger = logging.getLogger("penstock.fleet")

# Between two looks at how the gateway sees the replicas.
LOOK_SECONDS = 0.2
# A gateway that begins anew knows its replicas after a third of it.
_LEASE_SECONDS = 3.0
# Of the environment, with the key that replicas want of the gateway.
_KEY_VARIABLE = "PENSTOCK_FLEET_KEY"


class Machine(msgspec.Struct, frozen=True):
    """What a fleet may use of its machine: numbers of cores, and bytes of memory."""

    cores: tuple[int, ...]
    memory: int


class Supervisor:
    """Keeps one fleet, in a folder of its own.

    Attributes:
        first_tried: set once all replicas of each model can be asked, or one has failed to start.

    Args:
        place: where replicas run; the gateway runs beside this process.
        folder: for logs and the gateway's file.
        host: address of this machine, at which replicas reach a gateway that listens on all of them.
    """

    def __init__(
        self, fleet: FleetDescription, machine: Machine, place: Place, folder: Path, host: str = "127.0.0.1"
    ) -> None:
        """Raises ConfigurationError where the fleet cannot be on the machine."""
        self._host = host
        self._machine, self._place, self._folder = machine, place, folder
        self._slots: Slots = share(fleet, machine.cores, machine.memory)
        self._books = Books(fleet)
        self._kept = KeptHabits(folder / HABITS)
        self._following, self._totals = Following(self._kept.habits), Totals()
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed, self.first_tried = asyncio.Event(), asyncio.Event()
        self._ending = False
        self._token, self._key = secrets.token_hex(32), new_key()
        self._prefix_secret = secrets.token_hex(32)
        # The gateway asks replicas for all tenants, and no client reaches them beside it.
        digest = hashlib.sha256(self._key.encode()).hexdigest()
        self._keys = f'[[key]]\nname = "gateway"\nsha256 = "{digest}"\nfor_others = true\n'
        self._listener: socket.socket | None = None
        self._view: GatewayView | None = None
        self._keeper: GatewayKeeper | None = None
        self._updating = asyncio.Lock()

    @property
    def url(self) -> str:
        """Where clients of this machine reach the fleet, once it runs."""
        return self._url("127.0.0.1")

    @property
    def _advertised(self) -> str:
        """Where replicas reach the gateway."""
        return self._url(self._host)

    def _url(self, everywhere: str) -> str:
        """That of the gateway, where it listens on all addresses with this one of them."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        host = everywhere if host in ("0.0.0.0", "::") else host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def run(self, listener: socket.socket) -> None:
        """Keep the fleet, whose gateway listens on a socket, until `end` is called.

        Raises ConfigurationError, OSError where the gateway does not begin.
        """
        self._listener = listener
        (self._folder / "logs").mkdir(mode=0o700, exist_ok=True)
        self._view = GatewayView(self.url, self._token)
        self._keeper = GatewayKeeper(self._spawn_gateway(self._books.fleet))
        # Replicas take longer, and join the gateway when both are there.
        begun = asyncio.ensure_future(self._keeper.start())
        try:
            await self._act()
            await begun
            while not self._ending:
                await self._look()
                await self._act()
                if self._books.tried:
                    self.first_tried.set()
                await self._news()
        finally:
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)
            await self._close()

    def end(self) -> None:
        """Have all replicas finish their requests, and end."""
        self._ending = True
        self._changed.set()

    def scale(self, name: str, count: int | None) -> None:
        """Change the number of replicas of a model, or leave it to the load, where it has bounds.

        Raises ConfigurationError where it may not have them.
        """
        if count is not None:
            self._books.fleet.of(name)
            check_affordable(self._books.fleet, self._books.counts, {**self._books.counts, name: count})
            self._books.scale(name, count)
        elif (bounds := self._books.fleet.of(name).bounds).least == bounds.most:
            raise ConfigurationError(
                f"{name} has {bounds.most} replicas by its description; write bounds there, such as "
                "replicas = { least = 1, most = 4 }, and update the fleet."
            )
        self._following.fix(name, fixed=count is not None)
        self._changed.set()

    def drain(self, name: str) -> None:
        """Have a replica finish its requests, and another one in its place. Raises ConfigurationError."""
        replica = self._books.replicas.get(name)
        if replica is None:
            there = ", ".join(self._books.replicas) or "none"
            raise ConfigurationError(f"The fleet has no replica {name!r}; there are {there}.")
        self._drain(replica, "it was asked to")
        self._changed.set()

    async def update(self, fleet: FleetDescription) -> None:
        """Make the fleet as it is described now.

        Raises ConfigurationError where it cannot be, and changes nothing then.
        """
        async with self._updating:
            before = self._books.fleet
            if fleet.name != before.name:
                raise ConfigurationError(f"The fleet's name is {before.name}; start one with another name beside it.")
            if (fleet.gateway.host, fleet.gateway.port) != (before.gateway.host, before.gateway.port):
                raise ConfigurationError("Where the gateway listens is not updated; end the fleet and start it again.")
            slots = share(fleet, self._machine.cores, self._machine.memory)
            check_affordable(fleet, self._books.counts, self._books.counts_by(fleet))
            if (_gateway_file(fleet), fleet.gateway.options) != (_gateway_file(before), before.gateway.options):
                assert self._keeper is not None
                if why := await self._keeper.replace(self._spawn_gateway(fleet)):
                    raise ConfigurationError(f"Nothing is updated: {why}.")
            self._slots = slots
            self._books.describe(fleet)
            self._changed.set()

    def status(self) -> FleetStatus:
        """The gateway, models and replicas as they are now."""
        now, keeper = time.monotonic(), self._keeper
        process = None if keeper is None else keeper.process
        return FleetStatus(
            name=self._books.fleet.name,
            settled=self._books.settled and process is not None,
            cores=self._machine.cores,
            memory=self._machine.memory,
            gateway=GatewayStatus(
                url=self.url,
                where="" if process is None else process.where,
                restarts=0 if keeper is None else keeper.restarts,
                why="" if keeper is None else keeper.why,
            ),
            models=tuple(
                ModelStatus(
                    name=name,
                    version=each.wanted.version,
                    wanted=each.count,
                    restarts=each.restarts,
                    follows=self._following.follows(each.wanted),
                    why=each.why,
                    refused=each.refused,
                )
                for name, each in self._books.models.items()
            ),
            replicas=tuple(self._replica_status(each, now) for each in self._books.replicas.values()),
            told=tuple(self._books.told),
        )

    def _replica_status(self, replica: Replica, now: float) -> ReplicaStatus:
        running = self._running.get(replica.name)
        slot = self._slots.get(replica.model.name, ())
        return ReplicaStatus(
            name=replica.name,
            model=replica.model.name,
            version=replica.model.version,
            phase=replica.phase,
            requests=replica.requests,
            url="" if running is None else running.url,
            where="" if running is None else running.where,
            cores=slot[replica.slot].cores if replica.slot < len(slot) else (),
            seconds=now - replica.since,
            why=replica.why,
        )

    async def _news(self) -> None:
        """Wait until something has changed, or it is time to look."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def _look(self) -> None:
        """Learn from the gateway which replicas can be asked."""
        assert self._view is not None
        seen, now = await self._view.look(), time.monotonic()
        # A gateway that does not answer, or has begun just now, says nothing of them.
        if seen is not None:
            self._learn(seen, now)
        self._end_overdue(now)

    def _end_overdue(self, now: float) -> None:
        for name, why in self._books.overdue(now):
            logger.warning("%s is ended: %s", name, why)
            if (running := self._running.get(name)) is not None:
                running.kill()

    def _learn(self, view: View, now: float) -> None:
        for name, running in self._running.items():
            replica, found = self._books.replicas.get(name), view.replicas.get(running.url)
            if replica is None or found is None:
                continue
            was, ready = replica.phase, found.state in ("ready", "stale")
            if self._books.seen(name, ready=ready, why=found.why, requests=found.requests, now=now):
                logger.info("%s is %s%s", name, replica.phase, f": {found.why}" if found.why else "")
                if was == Phase.STARTING:
                    self._following.started(replica.model.name, now - replica.since)
        # A gateway that takes another one's place counts from 0.
        demands = {
            name: msgspec.structs.replace(each, counted=self._totals.add(0, name, each.counted))
            for name, each in view.demands.items()
        }
        counts, there = self._books.counts, self._books.ready
        decisions = self._following.decide(self._books.fleet, counts, there, demands, now, time.time())
        self._kept.look(now)
        afforded = afford(self._books.fleet, counts, decisions)
        for name, decision in afforded.decisions.items():
            if self._books.refuse(name, refused := afforded.refused.get(name, "")):
                logger.warning("%s", refused)
            if self._books.follow(name, decision.replicas, decision.why):
                logger.info("%s has %d replicas from now on: %s", name, decision.replicas, decision.why)

    async def _act(self) -> None:
        """Do what is to be done now."""
        now = time.monotonic()
        for action in reconcile(self._books.wanted(), self._books.members(), now):
            match action:
                case Drain(name, why):
                    self._drain(self._books.replicas[name], why)
                case Start(model):
                    await self._start(model, now)

    def _drain(self, replica: Replica, why: str) -> None:
        if replica.phase != Phase.DRAINING:
            logger.info("%s ends: %s", replica.name, why)
            self._books.draining(replica.name, why, time.monotonic())
            if (running := self._running.get(replica.name)) is not None:
                running.drain()

    async def _start(self, name: str, now: float) -> None:
        model, slots = self._books.models[name].wanted, self._slots[name]
        slot = self._books.free_slot(name, len(slots))
        own = f"{plain_name(name)}-{secrets.token_hex(3)}"
        arguments = [*model.arguments(), "--threads", str(len(slots[slot].cores))]
        environment = {VARIABLE: self._token, **self._shared(model)}
        launch = Launch(
            name=own,
            arguments=arguments,
            gateway=self._advertised,
            slot=slots[slot],
            own_cores=model.cores or 0,
            keys=self._keys,
            environment=environment,
            machines=model.machines,
            joining=model.joining,
        )
        self._books.started(own, model, slot, now)
        try:
            running = await self._place.start(launch)
        except (OSError, ConfigurationError) as error:
            self._books.ended(own, f"it cannot be started: {error}", time.monotonic())
            return
        self._running[own] = running
        logger.info("%s starts: %s", own, running.where)
        task = asyncio.create_task(self._until_it_ends(own, running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _shared(self, model: ModelDescription) -> dict[str, str]:
        """The secret that replicas with roles have in common, where nothing else gives them one."""
        given = PREFIX_SECRET in os.environ or any("prefix" in each and "secret" in each for each in model.options)
        return {} if model.role == "both" or given else {PREFIX_SECRET: self._prefix_secret}

    async def _until_it_ends(self, name: str, running: Running) -> None:
        how = await running.ended()
        asked = self._books.replicas[name].phase == Phase.DRAINING
        logger.log(logging.INFO if asked else logging.WARNING, "%s has ended: %s", name, how)
        del self._running[name]
        self._books.ended(name, how, time.monotonic())
        self._changed.set()

    def _spawn_gateway(self, fleet: FleetDescription) -> Spawn:
        content = _gateway_file(fleet)
        path = self._folder / f"gateway-{hashlib.blake2b(content, digest_size=4).hexdigest()}.json"
        arguments = ["gateway", "--config", str(path), *arguments_of(fleet.gateway.options)]

        async def spawn_gateway(environment: dict[str, str]) -> Process:
            assert self._listener is not None
            path.write_bytes(content)
            return await spawn(
                arguments,
                listener=self._listener,
                log=self._folder / "logs" / "gateway.log",
                environment={VARIABLE: self._token, _KEY_VARIABLE: self._key, **environment},
                own=OF_GATEWAYS,
            )

        return spawn_gateway

    async def _close(self) -> None:
        """Replicas end before the gateway, so that streams reach their clients."""
        self._kept.keep()
        for replica in self._books.replicas.values():
            self._drain(replica, "the fleet ends")
        while self._running:
            self._end_overdue(time.monotonic())
            await self._news()
        if self._keeper is not None:
            await self._keeper.close()
        if self._view is not None:
            self._view.close()
        await self._place.close()


def _gateway_file(fleet: FleetDescription) -> bytes:
    """The gateway's file: what the description says, and what the fleet knows better."""
    file = fleet.gateway.file
    file = msgspec.structs.replace(
        file,
        key_variable=file.key_variable or _KEY_VARIABLE,
        join=msgspec.structs.replace(file.join, lease=min(file.join.lease, _LEASE_SECONDS)),
        # One that has no replica for a moment is not unknown.
        expect=tuple(dict.fromkeys((*file.expect, *(each.served_name for each in fleet.model)))),
    )
    return msgspec.json.encode(file)
