"""What `penstock fleet …` does."""

import contextlib
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.assembly.fleet import Ground, folder_of, ground_of, keep_numbers, serve_fleet, shared
from penstock.cli.files import json_bytes
from penstock.cli.remote import over_socket
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.fleet.autoscale import Change, command_of, execute
from penstock.fleet.control import SOCKET, Draining, Scaling
from penstock.fleet.description import FleetDescription, arguments_of, read_description
from penstock.fleet.kubernetes import values_of
from penstock.fleet.sharing import Slots
from penstock.fleet.status import FleetStatus
from penstock.fleet.supervisor import Machine, Supervisor
from penstock.gateway.joining import VARIABLE
from penstock.server.serve import run_loop

# Where the output is no terminal, nothing is cut to the width of a screen.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 1000)
errors = Console(stderr=True, highlight=False)
# What is raised for a command line that is wrong. Typer has a copy of click's class that it gives no name.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]
# Between two looks at a fleet that is waited for.
_LOOK_SECONDS = 0.2


def prepare_up(file: Path, place: str, address: str | None) -> tuple[FleetDescription, Ground]:
    """What is to be started, and where. Raises StartupError where it cannot be, before anything is."""
    if address is not None and place != "ray":
        raise ConfigurationError("--address is that of a Ray cluster; it goes with --on ray.")
    described = read_description(file)
    ground = ground_of(described, place, address)
    check_commands(described, shared(described, ground.machine))
    return described, ground


def run_render(file: Path, keys_secret: str | None, machines_secret: str | None, *, no_auth: bool) -> None:
    """Print what the chart needs. Raises ConfigurationError for what a cluster cannot have."""
    described = read_description(file)
    for each in described.model:
        if Path(each.source).exists():
            raise ConfigurationError(
                f"{each.source} of {each.name} is of this machine; name the model as a hub has it, or put it into an "
                "image (modelImage of the chart)."
            )
    values = values_of(described, keys_secret=keys_secret, no_auth=no_auth, machines_secret=machines_secret)
    typer.echo(json_bytes(values), nl=False)


def run_autoscale(file: Path, gateways: list[str], command: str | None) -> None:
    """Print each number that changes as a line of JSON, and have a command carry it out, until a signal.

    Raises ConfigurationError.
    """
    described, made = read_description(file), None if command is None else command_of(command)
    token = os.environ.get(VARIABLE)
    if not gateways or not token:
        raise ConfigurationError(
            "Gateways tell what comes to those that have the token with which replicas join: name each with --gateway, "
            f"and set {VARIABLE}."
        )
    if all(each.bounds.least == each.bounds.most for each in described.model):
        raise ConfigurationError(
            f"{file} has no model whose number of replicas may change; write bounds, such as "
            "replicas = { least = 1, most = 4 }."
        )

    async def carry_out(change: Change) -> bool:
        worked = made is None or await execute(made(change))
        if worked:
            typer.echo(msgspec.json.encode(change).decode())
        return worked

    run_loop(keep_numbers(described, gateways, token, carry_out))


def run_up(described: FleetDescription, ground: Ground) -> None:
    """Keep the fleet until a signal or `down` ends it. Raises StartupError."""
    run_loop(serve_fleet(described, ground, _serves))


def _serves(supervisor: Supervisor) -> None:
    status = supervisor.status()
    models = ", ".join(f"{each.wanted} of [bold]{escape(each.name)}[/bold]" for each in status.models)
    errors.print(f"The fleet {escape(status.name)} serves {models} on {status.gateway.url}/v1", soft_wrap=True)
    if not status.settled:
        why = status.told[-1] if status.told else "a replica is not ready"
        errors.print(escape(f"Not all of it is there, and is tried again: {why}"), soft_wrap=True)


def check_commands(described: FleetDescription, slots: Slots) -> None:
    """Try what replicas and the gateway would be started with, as far as that goes without starting them.

    Raises StartupError with what is wrong: an option that there is not, a model that is not there, or does not fit.
    """
    for model in described.model:
        slot = slots[model.name][0]
        used = ["--memory", str(slot.memory), "--threads", str(len(slot.cores)), "--data-dir", "off"]
        _try(f"The model {model.name}", ["serve", *model.arguments(), *used, "--explain-config"])
    _try("The gateway", ["gateway", *arguments_of(described.gateway.options)], only_read=True)


def _try(whose: str, arguments: list[str], *, only_read: bool = False) -> None:
    from penstock.cli.main import app

    command: Any = typer.main.get_command(app)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if only_read:
                name, *rest = arguments
                command.commands[name].make_context(name, rest)
            else:
                command.main(arguments, prog_name="penstock", standalone_mode=False)
    except _UsageError as error:
        raise ConfigurationError(f"{whose}: {error.format_message().rstrip('.')}.") from None
    except PenstockError as error:
        raise ConfigurationError(f"{whose}: {error.message}") from None


def _ask(file: Path, method: str, resource: str, body: msgspec.Struct | None = None) -> FleetStatus:
    """What the fleet of a file answers. Raises ConfigurationError where it does not run."""
    name = read_description(file).name
    content = None if body is None else msgspec.json.encode(body)
    try:
        return over_socket(str(folder_of(name) / SOCKET), method, resource, FleetStatus, content)
    except OSError:
        raise ConfigurationError(f"The fleet {name} does not run; `penstock fleet up {file}` starts it.") from None


def run_status(file: Path, *, as_json: bool) -> None:
    """Print what there is. Raises ConfigurationError where the fleet does not run."""
    status = _ask(file, "GET", "/status")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(status)).decode())
    else:
        show(status)


def show(status: FleetStatus) -> None:
    """Print a fleet for people."""
    gateway = status.gateway
    console.print(f"{escape(status.name)} on {gateway.url}/v1, {gateway.where or 'no gateway'}", soft_wrap=True)
    if gateway.why:
        console.print(escape(f"gateway: {gateway.why}"), soft_wrap=True)
    table = Table("replica", "state", "requests", "cores", "where", "url", "version", "age", "why", box=SIMPLE_HEAD)
    for each in status.replicas:
        cores = ",".join(map(str, each.cores))
        age = f"{each.seconds:.0f} s"
        table.add_row(
            each.name, each.phase, str(each.requests), cores, each.where, each.url, each.version, age, escape(each.why)
        )
    console.print(table)
    for model in status.models:
        ready = sum(each.model == model.name and each.phase == "ready" for each in status.replicas)
        follows = " (follows the load)" if model.follows else ""
        why = f": {model.why}" if model.why else ""
        told = f"{model.name}: {ready} of {model.wanted} ready{follows}, {model.restarts} restarts{why}"
        console.print(escape(told), soft_wrap=True)
        if model.refused:
            console.print(escape(model.refused), soft_wrap=True)
    for what in status.told:
        console.print(escape(what), soft_wrap=True)


def run_scale(file: Path, asked: str) -> None:
    """Change a number of replicas, and wait for it. Raises ConfigurationError where it may not be."""
    name, mark, number = asked.rpartition("=")
    if not mark or not (number.isdecimal() or number == "auto"):
        raise ConfigurationError(
            f"{asked!r} does not say how many replicas; write MODEL=NUMBER, such as chat=3, or chat=auto."
        )
    count = None if number == "auto" else int(number)
    show(_settled(file, _ask(file, "POST", "/scale", Scaling(name, count))))


def run_drain(file: Path, replica: str) -> None:
    """Replace a replica, and wait for it. Raises ConfigurationError where it is not there."""
    show(_settled(file, _ask(file, "POST", "/drain", Draining(replica))))


def run_update(file: Path) -> None:
    """Raises ConfigurationError, also where the update is taken back."""
    described = read_description(file)
    before = _ask(file, "GET", "/status")
    check_commands(described, shared(described, Machine(before.cores, before.memory)))
    status = _settled(file, _ask(file, "POST", "/update", described))
    show(status)
    wanted = {each.name: each.version for each in described.model}
    if {each.name: each.version for each in status.models} != wanted:
        why = [each for each in status.told if each not in before.told]
        raise ConfigurationError(why[-1] if why else "The update was taken back.")


def _settled(file: Path, status: FleetStatus) -> FleetStatus:
    """The fleet once all is as it is described; what goes wrong meanwhile is told at once."""
    told = set(status.told)
    while not status.settled:
        time.sleep(_LOOK_SECONDS)
        status = _ask(file, "GET", "/status")
        for what in status.told:
            if what not in told:
                errors.print(escape(what), soft_wrap=True)
        told.update(status.told)
    return status


def run_down(file: Path) -> None:
    """Raises ConfigurationError where it does not run."""
    _ask(file, "POST", "/down")
    with contextlib.suppress(ConfigurationError):
        while True:
            _ask(file, "GET", "/status")
            time.sleep(_LOOK_SECONDS)
