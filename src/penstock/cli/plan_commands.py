"""The commands that say what there would be, before anything is loaded: plan, calibrate, simulate."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options, plan_options
from penstock.cli.groups import with_groups
from penstock.core.errors import ConfigurationError


def register(app: typer.Typer) -> None:
    """Add the commands to those of `penstock`."""
    for command in (plan, simulate, calibrate):
        app.command()(with_groups(command))


def plan(
    model: plan_options.PlannedModel = None,
    list_: Annotated[bool, typer.Option("--list", help="List known devices and prices, and exit.")] = False,
    workload: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="chat, code, agent, rag, batch, or a trace.")
    ] = None,
    input_len: Annotated[int | None, typer.Option(help="Tokens of a prompt; 1024 without.", min=1)] = None,
    output_len: Annotated[int | None, typer.Option(help="Tokens of an output; 256 without.", min=1)] = None,
    cached_len: Annotated[
        int | None, typer.Option(help="Tokens of a prompt that the prefix cache has; 0 without.", min=0)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests at a time; 1 without, or what --rate comes to.", min=1)
    ] = None,
    static: Annotated[bool, typer.Option("--static", help="All begin together, and no other comes.")] = False,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second: what they come to, and how many replicas they need.")
    ] = None,
    slo: Annotated[str | None, typer.Option(help="What must hold, such as ttft=500ms,tpot=40ms.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE|-", help="Write the plan as JSON.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the plan as a page with plots.")
    ] = None,
    *,
    deployment: plan_options.DeploymentOptions,
    money: plan_options.MoneyOptions,
    roles: plan_options.RoleOptions,
) -> None:
    """Say what a model needs of a machine, what it will do there and cost; before anything is loaded."""
    from penstock.cli.plan import Wanted, list_known, run_plan
    from penstock.cli.plan_workloads import requests_of

    if list_:
        list_known()
        return
    wanted = Wanted(
        requests=requests_of(workload, input_len, output_len, cached_len),
        concurrency=concurrency,
        static=static,
        slo=slo,
        rate=rate,
        roles=roles,
    )
    run_plan(model, deployment, wanted, money, json_file, html_file)


def calibrate(
    model: options.Model = None,
    seconds: Annotated[float, typer.Option(help="For about how long steps are measured.")] = 60.0,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; for --on this without.")] = None,
    *,
    computing: options.EngineArguments,
) -> None:
    """Measure this machine, and steps of a model on it, so that plans know what they take: `--on this`."""
    from penstock.cli.calibrate import run_calibrate

    run_calibrate(computing.engine(model), seconds, to)


def simulate(
    model: plan_options.PlannedModel = None,
    slo: Annotated[str | None, typer.Option(help="What must hold, such as ttft=500ms,tpot=40ms.")] = None,
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Look for the largest rate that meets --slo at p99.")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the figures; needs matplotlib (the extra bench).")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE|-", help="Write the figures.")] = None,
    *,
    deployment: plan_options.DeploymentOptions,
    fleet: plan_options.FleetOptions,
    traffic: plan_options.TrafficOptions,
) -> None:
    """Play requests through the scheduler that serves, in simulated time: what would their users see?"""
    from penstock.cli.simulate import Output, Sought, run_simulate
    from penstock.cli.simulate_fluid import run_fluid

    if fleet.fluid:
        if slo is not None or find_rate or plots is not None:
            raise ConfigurationError(
                "--slo, --find-rate and --plots are of single requests, which --fluid does not play."
            )
        run_fluid(model, deployment, fleet, traffic, json_file)
        return
    run_simulate(model, deployment, fleet, traffic, Sought(slo, find_rate), Output(json_file, plots))
