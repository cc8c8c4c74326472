"""Replicas on the machines of a Ray cluster.

Ray finds a machine with room, starts a process there and says when it ends. A replica is a placement group, so that its
cores and memory are its own, with an actor that starts `penstock serve`. One of several machines has an actor on each;
all but the first start `penstock join`. Requests go from the gateway straight to that server: no token passes through
Ray, whatever goes between its machines included.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from penstock.configuration.pool_size import gib
from penstock.core.errors import ConfigurationError
from penstock.fleet.local import Process, spawn, write_keys, write_private
from penstock.fleet.place import Launch

# The file with what machines of a replica have in common, in an actor's folder.
_SECRET = "machines-secret"


class Host:
    """An actor: a replica's process on the machine that it was put on."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-")
        # It keeps the port, also while an engine is started again.
        self._held: socket.socket | None = None

    async def start(self, launch: Launch, secret: str, *, alone: bool) -> tuple[str, str, str]:
        """Start it: its URL, where it is, and where it waits for other machines, with whom it has a secret.

        It listens on the loopback interface where it is `alone` with its gateway.
        """
        own = _own_address()
        address = "127.0.0.1" if alone else own
        folder = Path(self._folder.name)
        keys = write_keys(folder, launch.keys)
        kept = ["--data-dir", "off", "--api-key-file", str(keys), "--memory", str(launch.slot.memory)]
        waits = ""
        if launch.machines > 1:
            self._held = reserved_port(address)
            waits = f"{address}:{self._held.getsockname()[1]}"
            kept += ["--machines-at", waits, "--machines-secret-file", str(write_private(folder / _SECRET, secret))]
        with contextlib.closing(socket.create_server((address, 0))) as listener:
            self._process = await spawn(
                ["serve", *launch.arguments, *kept, "--join", launch.gateway],
                listener=listener,
                log=folder / "log",
                environment=launch.environment,
            )
        return self._process.url, f"{self._process.where} of {own}", waits

    async def join(self, launch: Launch, secret: str, engine: str, machine: int) -> None:
        """Start what computes with it on another machine, the `machine`th, where it waits for that at `engine`."""
        folder = Path(self._folder.name)
        told = ["--machine", str(machine), "--machines-secret-file", str(write_private(folder / _SECRET, secret))]
        self._process = await spawn(
            ["join", engine, *launch.joining, *told], listener=None, log=folder / "log", environment={}
        )

    async def ended(self) -> str:
        """Wait until it has ended: how it did."""
        assert self._process is not None, "it is started first"
        return await self._process.ended()

    async def send(self, number: int) -> None:
        """Send its process a signal, by its number."""
        if self._process is not None:
            os.kill(self._process.pid, number)


class RayReplica:
    """A replica that was given to Ray.

    Attributes:
        url: where it listens; empty as long as no machine has room for it.
        where: its process and machine.
    """

    def __init__(self, launch: Launch, *, alone: bool) -> None:
        self.url, self.where = "", "waits for a machine with room"
        self._launch, self._alone = launch, alone
        self._actor: Any = None
        self._live = asyncio.create_task(self._lives())

    async def _lives(self) -> str:
        launch = self._launch
        # Ray counts memory and cores; it ties no process to them.
        bundle = {"CPU": float(launch.own_cores), "memory": float(launch.slot.memory)}
        strategy = "STRICT_PACK" if launch.machines == 1 else "SPREAD"
        group = placement_group([bundle] * launch.machines, strategy=strategy, name=launch.name)
        actors: list[Any] = []
        try:
            await group.ready()
            for index in range(launch.machines):
                chosen = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
                # One call waits for the end, while others send signals.
                made = ray.remote(Host).options(
                    num_cpus=bundle["CPU"], memory=bundle["memory"], scheduling_strategy=chosen, max_concurrency=8
                )
                actors.append(made.remote())
            self._actor, secret = actors[0], secrets.token_hex(32)
            self.url, self.where, waits = await self._actor.start.remote(launch, secret, alone=self._alone)
            for machine, actor in enumerate(actors[1:], 1):
                await actor.join.remote(launch, secret, waits, machine)
            return await _first_end(actors)
        except asyncio.CancelledError:
            return "it was ended before a machine had room for it"
        except RayError as error:
            return f"Ray lost it: {str(error).splitlines()[0]}"
        finally:
            # What they have started ends with them.
            for actor in actors:
                ray.kill(actor)
            remove_placement_group(group)

    async def ended(self) -> str:
        """Wait until it has ended: how it did, in words."""
        return await asyncio.shield(self._live)

    def drain(self) -> None:
        """Have it finish its requests, and end then."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._send(signal.SIGKILL)

    def _send(self, what: signal.Signals) -> None:
        if self._actor is None:
            self._live.cancel()
        else:
            # An actor that is gone has ended already, which `ended` says.
            self._actor.send.remote(int(what))


class RayPlace:
    """Starts replicas on a Ray cluster.

    Attributes:
        host: address of this machine, at which others reach it.
        cores, memory: of all machines together, in bytes.
    """

    def __init__(self, address: str | None, *, alone: bool) -> None:
        """Connect to the cluster at an address, such as `auto`; None: one of this machine is started.

        `alone`: the gateway listens on the loopback interface, which only replicas of this machine reach. Raises
        ConfigurationError where there is no cluster, or where it has other machines then.
        """
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False, configure_logging=False)
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigurationError(f"Ray cannot be reached: {str(error).splitlines()[0]}") from None
        nodes: list[Any] = [each for each in cast(Any, ray).nodes() if each["Alive"]]
        if alone and len(nodes) > 1:
            ray.shutdown()
            raise ConfigurationError(
                f"The cluster has {len(nodes)} machines, and the gateway listens where only this one reaches it; set "
                'host = "0.0.0.0" below [gateway].'
            )
        self.host = _own_address()
        self._alone = alone
        found: dict[str, float] = cast(Any, ray).cluster_resources()
        self.cores, self.memory = int(found.get("CPU", 0)), int(found.get("memory", 0))
        self._largest = [(node["Resources"].get("CPU", 0), node["Resources"].get("memory", 0)) for node in nodes]

    def check(self, name: str, cores: int, memory: int) -> None:
        """Raises ConfigurationError where no machine can hold a replica of a model."""
        if not any(cores <= has and memory <= room for has, room in self._largest):
            raise ConfigurationError(
                f"A replica of {name} asks for {cores} cores and {gib(memory)} of memory, which no machine of the "
                "cluster has; set its `cores` and `memory` lower."
            )

    async def start(self, launch: Launch) -> RayReplica:
        """Give one to Ray, which starts it on a machine that has room."""
        return RayReplica(launch, alone=self._alone)

    async def close(self) -> None:
        """Leave the cluster, or end it where it was started here."""
        await asyncio.to_thread(ray.shutdown)


async def _first_end(actors: Sequence[Any]) -> str:
    """Wait until the first process of a replica has ended: how it did. None of them goes on alone."""
    waiting = [asyncio.ensure_future(actor.ended.remote()) for actor in actors]
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in left:
        each.cancel()
    machine, first = next((at, each) for at, each in enumerate(waiting) if each in done)
    if not machine:
        return str(first.result())
    # The first one would finish its requests, which it cannot; and its memory is to be free before another one starts.
    await actors[0].send.remote(int(signal.SIGKILL))
    await actors[0].ended.remote()
    return f"machine {machine}: {first.result()}"


def reserved_port(address: str) -> socket.socket:
    """What keeps a port of this machine from being given to others, as long as it is open.

    One that is told of the port can listen there meanwhile, with SO_REUSEADDR: this does not listen (socket(7)).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held


def _own_address() -> str:
    """Of this machine, at which others of the cluster reach it."""
    return str(cast(Any, ray.util).get_node_ip_address())
