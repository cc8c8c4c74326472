"""`penstock join`: this machine computes with an engine on another one."""

from typing import Annotated

import typer

from penstock.bundled.registry import DEFAULT
from penstock.cli import options
from penstock.configuration.machines import host_and_port
from penstock.core.config import LoadFormat
from penstock.core.errors import ConfigurationError


def register(app: typer.Typer) -> None:
    """Add the command to those of `penstock`."""
    app.command()(join)


def join(
    engine: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the engine listens (its --machines-at).")],
    model: options.Model = None,
    *,
    machine: Annotated[
        int,
        typer.Option(
            help="Which machine this is, from 1 on; the engine's is 0.",
            envvar=["LWS_WORKER_INDEX", "GROUP_RANK", "SLURM_NODEID"],
        ),
    ],
    machines_secret_file: options.MachinesSecretFile = None,
    load_format: options.LoadFormat = "auto",
) -> None:
    """Compute the layers of this machine's stages for an engine that has --machines."""
    from penstock.assembly.machine import join_engine

    if load_format not in ("auto", "dummy"):
        raise ConfigurationError(f"--load-format {load_format} is not one of auto, dummy.")
    loaded: LoadFormat = "dummy" if load_format == "dummy" else "auto"
    join_engine(host_and_port(engine), model or DEFAULT, loaded, machine, machines_secret_file, typer.echo)
