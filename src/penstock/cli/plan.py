"""`penstock plan`: what a model needs of a machine, what it will do there and cost. Only headers are read."""

import sys
from math import inf
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table

from penstock.bench.load.arrivals import Open, check_arrivals
from penstock.cli.deployment import basis_of, deployed
from penstock.cli.files import check_output, write_json
from penstock.cli.plan_options import DeploymentOptions, MoneyOptions
from penstock.configuration.slo import parse_slo
from penstock.core.errors import ConfigurationError
from penstock.planning.estimates import Loop, Workload
from penstock.planning.hardware import DEVICES
from penstock.planning.money import ApiPrice
from penstock.planning.plan import Asked, Interval, Plan, make_plan

# Enough for every column; a terminal wraps what it must.
_WIDTH = 110


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for; see its options."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    concurrency: int | None
    static: bool
    slo: str | None
    rate: float | None


def run_plan(
    model: str | None, options: DeploymentOptions, wanted: Wanted, money: MoneyOptions, json_file: Path | None
) -> None:
    """Print a plan, or write it as JSON; "-" is standard output. Raises ConfigurationError and ModelFileError."""
    asked = _asked(model, options, wanted, money)
    check_output(json_file)
    plan = make_plan(asked, basis_of(asked.deployment, options.calibration))
    if json_file is None:
        _print(plan, wanted)
    else:
        write_json(plan, json_file)


def list_devices() -> None:
    """Print the table of devices."""
    table = Table(
        *(
            "device",
            Column("GB", justify="right"),
            Column("GB/s", justify="right"),
            "dense TFLOPS",
            "link, GB/s",
            "W",
            "source",
        ),
        box=None,
    )
    for device in DEVICES:
        rates = ", ".join(f"{name} {rate / 1e12:,.0f}" for name, rate in device.rates.items())
        memory = f"{device.memory / 1e9:.0f}" if device.memory else "-"
        link = f"{device.link / 1e9:.0f}" if device.link else "-"
        table.add_row(
            device.name,
            memory,
            f"{device.bandwidth / 1e9:,.0f}",
            rates,
            link,
            f"{device.watts:.0f}" if device.watts else "-",
            device.source,
        )
    Console(width=160 if not sys.stdout.isatty() else None).print(table)


def _asked(model: str | None, options: DeploymentOptions, wanted: Wanted, money: MoneyOptions) -> Asked:
    if wanted.cached_tokens >= wanted.input_tokens and wanted.cached_tokens:
        raise ConfigurationError(
            "--cached-len must be less than --input-len: a prompt's last token is always computed."
        )
    if wanted.rate is not None:
        check_arrivals(Open(wanted.rate))
    slo = parse_slo(wanted.slo)
    if slo is not None and (slo.itl is not None or slo.e2e is not None):
        raise ConfigurationError("--slo of a plan has ttft and tpot: plans tell means, and know no longest gap or end.")
    _check_money(money)
    deployment, machine = deployed(model, options)
    workload = Workload(
        input_tokens=wanted.input_tokens,
        output_tokens=wanted.output_tokens,
        concurrency=wanted.concurrency or 1,
        cached_tokens=wanted.cached_tokens,
        loop=_loop(wanted),
    )
    return Asked(
        deployment=deployment,
        machine=machine,
        workload=workload,
        ttft=None if slo is None else slo.ttft,
        tpot=None if slo is None else slo.tpot,
        rate=wanted.rate,
        device_hour=money.price,
        operations_month=money.operations,
        api=_api_price(money.api_price),
    )


def _loop(wanted: Wanted) -> Loop:
    """How requests come. Raises ConfigurationError where they would come in two ways."""
    if wanted.static:
        if wanted.rate is not None:
            raise ConfigurationError(
                "--static is a batch that begins together, and --rate requests that come; give one."
            )
        return "static"
    return "open" if wanted.rate is not None and wanted.concurrency is None else "closed"


def _check_money(money: MoneyOptions) -> None:
    """Raise ConfigurationError where a price is none, or has no effect."""
    if not (money.price or 0.0) < inf or not money.operations < inf:
        raise ConfigurationError("Prices are finite numbers of dollars.")
    if money.api_price is not None and money.price is None:
        raise ConfigurationError("--api-price is compared with one's own devices; say what they cost with --price.")
    if money.operations and money.api_price is None:
        raise ConfigurationError("--operations counts against an API; say its price with --api-price.")


def _api_price(text: str | None) -> ApiPrice | None:
    """Dollars a million input and output tokens, as in "0.5,1.5", and of cached input ones behind them."""
    if text is None:
        return None
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if len(prices) not in (2, 3) or not all(0 <= price < inf for price in prices):
        raise ConfigurationError(f"--api-price {text!r} is no pair of prices; write dollars as in 0.5,1.5.")
    return ApiPrice(*prices)


def _print(plan: Plan, wanted: Wanted) -> None:
    console = Console(width=_WIDTH if not sys.stdout.isatty() else None, highlight=False, markup=False)
    memory = plan.memory
    each = f", {plan.split} devices a replica" if plan.split > 1 else ""
    console.print(
        f"{plan.parameters / 1e9:.2f}B parameters ({plan.active_parameters / 1e9:.2f}B a token) on {plan.machine}{each}"
    )
    console.print()
    rows = [
        ("usable", memory.usable_bytes),
        ("weights", memory.device_weights_bytes),
        ("activations", memory.activation_bytes),
        ("driver and fragments", memory.overhead_bytes),
        ("left for the cache", memory.cache_bytes),
    ]
    table = Table("memory of a device", Column("GB", justify="right"), box=None)
    for name, size in rows:
        table.add_row(name, f"{size / 1e9:.2f}")
    console.print(table)
    console.print(
        f"A token keeps {memory.kv_bytes_per_token / 1024:.1f} KiB on all devices; {memory.max_concurrency:,} requests "
        f"of {memory.context:,} tokens fit into a replica's cache."
    )
    console.print()
    if plan.estimate is not None:
        _print_speed(console, plan, wanted)
    for note in plan.notes:
        console.print(f"Note: {note}")


def _print_speed(console: Console, plan: Plan, wanted: Wanted) -> None:
    speed, bounds = plan.estimate, plan.bounds
    assert speed is not None
    how = f"{wanted.concurrency or 1} at a time"
    if _loop(wanted) == "open":
        how = f"{wanted.rate:g} a second"
    console.print(f"At {how}, {wanted.input_tokens} tokens in, {wanted.output_tokens} out:")
    console.print(f"  first token     {_shown(speed.ttft_ms, 'ms')}; no engine is below {bounds.prefill_ms:.1f} ms")
    console.print(f"  each further    {_shown(speed.tpot_ms, 'ms')}; no engine is below {bounds.step_ms:.1f} ms")
    console.print(f"  output          {_shown(speed.output_tokens_per_second, 'tokens/s')}")
    console.print(f"  These stand on {speed.tpot_ms.basis}.")
    if plan.money is not None:
        money = plan.money
        console.print(
            f"  cost            ${money.output_million:.2f} a million output tokens, ${money.month:,.0f} a month"
        )
        if money.against_api is not None:
            against = money.against_api
            where = f"less than an API from {against.requests_a_month:,.0f} requests a month on"
            if not against.comes:
                where = f"more than an API, up to the {against.most_a_month:,.0f} requests a month that they serve"
            console.print(f"  {where}")
    if plan.load is not None:
        load = plan.load
        console.print(
            f"  {load.rate:g} a second    {load.replicas} replicas, {load.in_flight:,.1f} requests at a time, "
            f"{load.utilisation:.0%} full; 99% wait {load.waiting_p99:.2f} s or less for a place"
        )
    console.print()
    console.print("One replica:")
    right = [Column(name, justify="right") for name in ("at a time", "TTFT, ms", "TPOT, ms", "tokens/s", "gain")]
    table = Table(*right, "most of a step", *(["within"] if wanted.slo else []), box=None)
    for point in plan.sweep:
        gain = "" if point.gain is None else f"{point.gain:+.0%}"
        within = [] if point.within is None else ["yes" if point.within else "no"]
        figures = (f"{point.ttft_ms:.0f}", f"{point.tpot_ms:.1f}", f"{point.output_tokens_per_second:,.0f}", gain)
        table.add_row(str(point.concurrency), *figures, point.limit, *within)
    console.print(table)
    if plan.knee is not None:
        console.print(f"Behind {plan.knee} at a time, twice as many bring less than a fifth more tokens.")
    if wanted.slo and plan.largest is not None:
        console.print(f"{plan.largest} at a time on a replica keep {wanted.slo} by these means.")


def _shown(figure: Interval, unit: str) -> str:
    return f"{figure.value:,.1f} {unit} ({figure.low:,.1f} to {figure.high:,.1f})"
