"""What `penstock tenant price` does."""

import math
from decimal import Decimal, InvalidOperation

import typer

from penstock.cli.remote import get
from penstock.core.errors import ConfigurationError
from penstock.metering.machine_price import machine_price
from penstock.observability.stats import Stats
from penstock.routing.told import ReplicaState


def run_price(url: str, cost_per_hour: str | None, busy: float, key: str | None) -> None:
    """Print the price of the model of a running replica, by what its steps have taken so far."""
    stats, state = get(url, "/v1/stats", Stats, key=key), get(url, "/v1/replica", ReplicaState, key=key)
    if state.speed is None or not state.models:
        raise ConfigurationError(f"{url} has measured nothing yet; send it some of its usual requests first.")
    told = cost_per_hour if cost_per_hour is not None else stats.settings.cost_per_hour
    if told is None:
        raise ConfigurationError("What does the machine cost? Give --cost-per-hour, or start the replica with it.")
    try:
        cost = Decimal(str(told))
    except InvalidOperation:
        raise ConfigurationError(f"--cost-per-hour is {told!r}, and no number.") from None
    rows = stats.life.utilisation.batch or 1.0
    step = state.speed.step(math.ceil(rows), 0)
    price = machine_price(state.models[0], cost, 1 / state.speed.prefill, step / rows, busy)
    prompts = f"{state.speed.prefill:,.0f} tokens of prompts a second"
    typer.echo(f"# {rows:.1f} rows a step in the mean, {step * 1000:.2f} ms each; {prompts};")
    typer.echo(f"# {cost} an hour, with work for {100 * busy:g}% of the time.")
    typer.echo(f'[[price]]\nmodel = "{price.model}"')
    for name in ("input", "cached", "output"):
        typer.echo(f"{name} = {getattr(price, name):f}")
