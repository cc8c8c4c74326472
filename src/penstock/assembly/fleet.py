"""Starts a fleet on this machine."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import ConfigurationError
from penstock.fleet.autoscale import CarryOut, Outside
from penstock.fleet.control import SOCKET, Control
from penstock.fleet.description import FleetDescription
from penstock.fleet.following import Following
from penstock.fleet.gateway_view import GatewayView
from penstock.fleet.habits import HABITS, KeptHabits
from penstock.fleet.local import LocalPlace
from penstock.fleet.place import Place
from penstock.fleet.sharing import Slots, share
from penstock.fleet.supervisor import Machine, Supervisor
from penstock.runtime.machine import machine_facts
from penstock.server.admin import admin_socket
from penstock.server.notify import READY, notify
from penstock.server.serve import beside, bind
from penstock.storage.directory import DataDirectory, data_root


def folder_of(name: str) -> Path:
    """Where the fleet of a name keeps its logs, and where it is asked."""
    return data_root() / "fleets" / name


def this_machine() -> Machine:
    """What a fleet may use here."""
    facts = machine_facts(api_beside=False)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(facts.cores))
    return Machine(tuple(cores[: facts.cores]), facts.available_memory)


def shared(fleet: FleetDescription, machine: Machine) -> Slots:
    """What each replica may use. Raises ConfigurationError where the fleet cannot be on the machine."""
    return share(fleet, machine.cores, machine.memory)


@dataclass(frozen=True)
class Ground:
    """Where a fleet's replicas run, with what there is for them.

    Attributes:
        place: makes what starts them, in the fleet's folder.
        host: address of this machine, at which they reach a gateway that listens on all of them.
    """

    machine: Machine
    place: Callable[[Path], Place]
    host: str = "127.0.0.1"


def ground_of(fleet: FleetDescription, name: str, address: str | None = None) -> Ground:
    """Where a fleet is to run: on `local` processes, or on `ray`, whose cluster has an address.

    Raises ConfigurationError where there is no such place, or none of its machines can hold a replica.
    """
    if name == "local":
        for each in fleet.model:
            if each.machines > 1:
                raise ConfigurationError(
                    f"{each.name} has {each.machines} machines, and --on local has one; leave `machines` out, or take "
                    "--on ray, or `penstock fleet render` for Kubernetes."
                )
        return Ground(this_machine(), LocalPlace)
    if name != "ray":
        raise ConfigurationError(f"--on {name!r} is no place for a fleet; there are local and ray.")
    for each in fleet.model:
        if each.role != "both":
            raise ConfigurationError(
                f"{each.name} has a role, and --on ray does not know at which address of its machine a replica could "
                "offer blocks; leave the role out, or take --on local."
            )
    try:
        from penstock.fleet.ray_place import RayPlace
    except ImportError:
        raise ConfigurationError("--on ray needs the extra ray: pip install 'penstock[ray]'.") from None
    place = RayPlace(address, alone=fleet.gateway.host in ("127.0.0.1", "localhost", "::1"))
    machine = Machine(tuple(range(place.cores)), place.memory)
    for model, slots in shared(fleet, machine).items():
        place.check(model, fleet.of(model).cores or 0, slots[0].memory)
    return Ground(machine, lambda _folder: place, place.host)


async def serve_fleet(
    fleet: FleetDescription, ground: Ground, on_change: Callable[[Supervisor], None] = lambda _supervisor: None
) -> None:
    """Keep a fleet until a signal, or `penstock fleet down`, ends it.

    `on_change` is called once each model serves, or has failed to. Raises ConfigurationError where it cannot begin.
    """
    with contextlib.ExitStack() as open_:
        directory = DataDirectory.open(folder_of(fleet.name))
        open_.callback(directory.close)
        place = ground.place(directory.path)
        supervisor = Supervisor(fleet, ground.machine, place, directory.path, ground.host)
        # The port is taken first: if it is in use, nothing needs to be started to say so.
        listener = open_.enter_context(contextlib.closing(bind(fleet.gateway.host, fleet.gateway.port)))
        asked = open_.enter_context(admin_socket(directory.path / SOCKET))
        _at_a_signal(open_, supervisor.end)
        async with beside(Control(supervisor).application(), asked):
            telling = asyncio.create_task(_tell(supervisor, on_change))
            try:
                await supervisor.run(listener)
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)


async def keep_numbers(fleet: FleetDescription, gateways: Sequence[str], token: str, carry_out: CarryOut) -> None:
    """Decide how many replicas a fleet has that others start, until a signal. Raises ConfigurationError."""
    with contextlib.ExitStack() as open_:
        directory = DataDirectory.open(folder_of(fleet.name))
        open_.callback(directory.close)
        kept = KeptHabits(directory.path / HABITS)
        open_.callback(kept.keep)
        views = [GatewayView(each, token) for each in gateways]
        for view in views:
            open_.callback(view.close)
        ending = asyncio.Event()
        _at_a_signal(open_, ending.set)
        await Outside(fleet, views, carry_out, Following(kept.habits), kept.look).run(ending)


def _at_a_signal(open_: contextlib.ExitStack, end: Callable[[], None]) -> None:
    """Have it called at each until the stack is left."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
        open_.callback(loop.remove_signal_handler, number)


async def _tell(supervisor: Supervisor, on_change: Callable[[Supervisor], None]) -> None:
    await supervisor.first_tried.wait()
    notify(READY)
    on_change(supervisor)
