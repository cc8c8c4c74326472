"""`penstock fleet …`: a gateway and its replicas, from one description."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.groups import with_groups
from penstock.cli.serve_options import LogOptions

fleet = typer.Typer(no_args_is_help=True, help="A gateway and its replicas on this machine, from one file.")
File = Annotated[Path, typer.Argument(metavar="[FILE]", help="The description of the fleet.")]
NAMED = Path("fleet.toml")
Described = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The description of the fleet.")]


@fleet.command()
@with_groups
def up(
    file: File = NAMED,
    on: Annotated[
        str, typer.Option(metavar="local|ray", help="Where replicas run: as processes here, or on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster, such as auto for the one that this machine is in; a new one without."),
    ] = None,
    *,
    log: LogOptions,
) -> None:
    """Start a fleet, and keep it as it is described until a signal or `penstock fleet down` ends it."""
    from penstock.cli.fleet import prepare_up, run_up
    from penstock.cli.log_format import set_up_logging
    from penstock.cli.log_stream import unfailing_stderr

    described = prepare_up(file, on, address)
    with unfailing_stderr():
        set_up_logging(log.log_level, log.log_format)
        run_up(*described)


@fleet.command()
def render(
    file: File = NAMED,
    keys_secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a secret in the cluster with the gateway's keys (keys.toml).")
    ] = None,
    machines_secret: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a secret in the cluster that machines of a replica have in common."),
    ] = None,
    *,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let everybody ask who reaches the gateway.")] = False,
) -> None:
    """Print the values with which the Helm chart runs the same fleet on Kubernetes, in JSON."""
    from penstock.cli.fleet import run_render

    run_render(file, keys_secret, machines_secret, no_auth=no_auth)


@fleet.command()
@with_groups
def autoscale(
    file: File = NAMED,
    gateway: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Of a gateway; once for each that the fleet has.")
    ] = None,
    execute: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Has a number be so, such as 'kubectl scale deployment/{name} --replicas={replicas}'. Without it, "
            "numbers are only printed.",
        ),
    ] = None,
    *,
    log: LogOptions,
) -> None:
    """Decide how many replicas a fleet is to have that others start, from what its gateways tell."""
    from penstock.cli.fleet import run_autoscale
    from penstock.cli.log_format import set_up_logging
    from penstock.cli.log_stream import unfailing_stderr

    with unfailing_stderr():
        set_up_logging(log.log_level, log.log_format)
        run_autoscale(file, gateway or [], execute)


@fleet.command()
def status(
    file: File = NAMED, *, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """What there is: the gateway, each replica with its state, and what went wrong lately."""
    from penstock.cli.fleet import run_status

    run_status(file, as_json=as_json)


@fleet.command()
def scale(
    model: Annotated[
        str, typer.Argument(metavar="MODEL=NUMBER|auto", help="Such as chat=3; auto: it follows the load again.")
    ],
    file: Described = NAMED,
) -> None:
    """Change the number of replicas of a model, within the bounds of its description."""
    from penstock.cli.fleet import run_scale

    run_scale(file, model)


@fleet.command()
def drain(
    replica: Annotated[str, typer.Argument(help="Its name, as `penstock fleet status` tells it.")],
    file: Described = NAMED,
) -> None:
    """Have a replica finish its requests and end; another one takes its place."""
    from penstock.cli.fleet import run_drain

    run_drain(file, replica)


@fleet.command()
def update(file: File = NAMED) -> None:
    """Make a running fleet as its file describes it now: replicas are replaced one after the other."""
    from penstock.cli.fleet import run_update

    run_update(file)


@fleet.command()
def down(file: File = NAMED) -> None:
    """Have all replicas finish their requests, and end the fleet."""
    from penstock.cli.fleet import run_down

    run_down(file)
