"""A plan in words, for a terminal."""

import sys

from rich.console import Console
from rich.table import Column, Table

from penstock.cli.plan_disk import print_disk
from penstock.planning.asked import Asked
from penstock.planning.decisions import small
from penstock.planning.hardware import Device
from penstock.planning.interval import Interval
from penstock.planning.money import Money
from penstock.planning.plan import Plan
from penstock.planning.prices import DevicePrice
from penstock.planning.ranks import BesideThreads

# Enough for every column; a terminal wraps what it must.
_WIDTH = 110
# Of layouts, those with the most tokens.
_LAYOUTS = 12


def print_plan(plan: Plan, asked: Asked, slo: str | None) -> None:
    """Print a plan; `slo` are the service levels as they were asked for."""
    console = Console(width=_WIDTH if not sys.stdout.isatty() else None, highlight=False, markup=False)
    devices = asked.deployment.devices
    # The machine says how many ranks there are.
    each = f", {devices} devices a replica" if devices > 1 and asked.machine.device.parts == 1 else ""
    console.print(
        f"{plan.parameters / 1e9:.2f}B parameters ({plan.active_parameters / 1e9:.2f}B a token) on {plan.machine}{each}"
    )
    console.print()
    _print_memory(console, plan, asked)
    if plan.estimate is not None:
        _print_speed(console, plan, asked)
        if plan.threads is not None:
            _print_threads(console, plan.threads)
        _print_sweep(console, plan, slo)
    if plan.roles is not None:
        from penstock.cli.plan_roles import print_roles

        print_roles(console, plan.roles)
    if plan.disk is not None:
        print_disk(console, plan.disk)
    if plan.levers:
        _print_levers(console, plan)
    if len(plan.layouts) > 1:
        _print_layouts(console, plan, slo)
    if plan.money is not None:
        _print_money(console, plan.money, asked)
    for note in plan.notes:
        console.print(f"Note: {note}")


def _print_memory(console: Console, plan: Plan, asked: Asked) -> None:
    memory = plan.memory
    what = "rank" if asked.machine.device.parts > 1 else "device"
    table = Table(f"memory of a {what}", Column("GB", justify="right"), box=None)
    for name, size in memory_parts(plan):
        table.add_row(name, f"{size / 1e9:.2f}")
    console.print(table)
    console.print(
        f"A token keeps {memory.kv_bytes_per_token / 1024:.1f} KiB on all {what}s; {memory.max_concurrency:,} requests "
        f"of {memory.context:,} tokens fit into a replica's cache."
    )
    console.print()


def memory_parts(plan: Plan) -> list[tuple[str, int]]:
    """What a device's memory is used for, in bytes; the first is what the others are parts of."""
    memory = plan.memory
    return [
        ("usable", memory.usable_bytes),
        ("weights", memory.device_weights_bytes),
        ("activations", memory.activation_bytes),
        ("driver and fragments", memory.overhead_bytes),
        ("left for the cache", memory.cache_bytes),
    ]


def _print_speed(console: Console, plan: Plan, asked: Asked) -> None:
    speed, bounds, workload = plan.estimate, plan.bounds, asked.workload
    assert speed is not None
    how = f"{workload.concurrency:.0f} at a time"
    if workload.loop == "open":
        how = f"{asked.rate:g} a second"
    console.print(f"At {how}, {workload.input_tokens:.0f} tokens in, {workload.output_tokens:.0f} out:")
    console.print(f"  first token     {_shown(speed.ttft_ms, 'ms')}; no engine is below {bounds.prefill_ms:.1f} ms")
    console.print(f"  each further    {_shown(speed.tpot_ms, 'ms')}; no engine is below {bounds.step_ms:.1f} ms")
    console.print(f"  output          {_shown(speed.output_tokens_per_second, 'tokens/s')}")
    if plan.most_tokens_per_second is not None:
        console.print(
            f"  at most         {_shown(plan.most_tokens_per_second, 'tokens/s')}, where requests always wait"
        )
    console.print(f"  These stand on {speed.tpot_ms.basis}.")
    for when, load in (("", plan.load), (" in the busiest minute", plan.peak)):
        if load is not None:
            console.print(
                f"  {load.rate:.4g} a second{when}    {counted(load.replicas, 'replica')}, {load.in_flight:,.1f} "
                f"requests at a time, {load.utilisation:.0%} full; 99% wait {load.waiting_p99:.2f} s or less for a "
                "place"
            )
    if plan.load is not None and plan.peak is not None and plan.peak.replicas > plan.load.replicas:
        console.print(f"  An autoscaler goes from {plan.load.replicas} to {counted(plan.peak.replicas, 'replica')}.")
    console.print()


def _print_threads(console: Console, threads: BesideThreads) -> None:
    console.print(
        f"One process with all threads: first token {threads.threads_ttft_ms:,.1f} ms, each further "
        f"{threads.threads_tpot_ms:,.1f} ms, {threads.threads_tokens_per_second:,.1f} tokens/s. With ranks, a first "
        f"token takes {threads.ttft:.2f} and a further one {threads.tpot:.2f} times that; tokens are "
        f"{threads.output:.2f} times as many."
    )
    console.print(threads.advice)
    console.print()


def _print_sweep(console: Console, plan: Plan, slo: str | None) -> None:
    console.print("One replica:")
    right = [Column(name, justify="right") for name in ("at a time", "TTFT, ms", "TPOT, ms", "tokens/s", "gain")]
    table = Table(*right, "most of a step", *(["within"] if slo else []), box=None)
    for point in plan.sweep:
        gain = "" if point.gain is None else f"{point.gain:+.0%}"
        within = [] if point.within is None else ["yes" if point.within else "no"]
        figures = (f"{point.ttft_ms:.0f}", f"{point.tpot_ms:.1f}", f"{point.output_tokens_per_second:,.0f}", gain)
        table.add_row(str(point.concurrency), *figures, point.limit, *within)
    console.print(table)
    if plan.knee is not None:
        console.print(f"Behind {plan.knee} at a time, twice as many bring less than a fifth more tokens.")
    if slo and plan.largest is not None:
        console.print(f"{plan.largest} at a time on a replica keep {slo} by these means.")
    console.print()


def _print_levers(console: Console, plan: Plan) -> None:
    console.print("What each change alone would bring a replica, at the same requests at a time:")
    right = [Column(name, justify="right") for name in ("TTFT, ms", "TPOT, ms", "tokens/s", "gain", "fit")]
    table = Table("change", *right, box=None)
    for lever in plan.levers:
        times = (f"{lever.ttft_ms:,.0f}", f"{lever.tpot_ms:,.1f}", f"{lever.output_tokens_per_second:,.0f}")
        table.add_row(lever.what, *times, f"{lever.gain:+.0%}", f"{lever.max_concurrency:,}")
    console.print(table)
    console.print()


def _print_layouts(console: Console, plan: Plan, slo: str | None) -> None:
    """The ways to share out the devices, each with the most requests at a time that it has room and time for."""
    kept = f" and keep {slo}" if slo else ""
    console.print(f"Layouts of {plan.machine}, each with the most requests at a time that fit{kept}:")
    right = [Column(name, justify="right") for name in ("each has", "TTFT, ms", "TPOT, ms", "tokens/s", "$ a million")]
    table = Table("layout", *right, "", box=None)
    for layout in plan.layouts[:_LAYOUTS]:
        figures = ("", "", "", "", "")
        if layout.concurrency:
            dollars = "" if layout.dollars_million is None else small(layout.dollars_million)
            times = (f"{layout.ttft_ms:,.0f}", f"{layout.tpot_ms:,.1f}", f"{layout.output_tokens_per_second:,.0f}")
            figures = (f"{layout.concurrency:,}", *times, dollars)
        table.add_row(str(layout), *figures, layout.why)
    console.print(table)
    if len(plan.layouts) > _LAYOUTS:
        console.print(f"{len(plan.layouts) - _LAYOUTS} others yield less, or do not fit; --json has them all.")
    console.print()


def _print_money(console: Console, money: Money, asked: Asked) -> None:
    console.print(f"Money, at {priced(money.device_hour, money.device_price, asked.machine.device)}:")
    million = money.million
    operations = f" and ${asked.operations_month:,.0f} for operations" if asked.operations_month else ""
    paid = counted(money.devices, "device" if asked.machine.device.parts == 1 else "rank")
    console.print(
        f"  a month         ${money.month:,.0f} for {paid}{operations}, for "
        f"{money.requests_a_month:,.0f} requests at {money.utilisation:.0%} utilisation"
    )
    console.print(
        f"  a million       {small(money.output_million)} for output tokens, where these bear all; "
        "shared out by device seconds:"
    )
    table = Table("  dollars a million", *(Column(name, justify="right") for name in ("", "from", "to")), box=None)
    for name, cost in (("input", million.input), ("cached input", million.cached), ("output", million.output)):
        if cost is not None:
            table.add_row(f"  {name}", *(small(end) for end in (cost.value, cost.low, cost.high)))
    console.print(table)
    if money.against_api is not None and money.api is not None:
        against = money.against_api
        where = f"less than an API from {against.requests_a_month:,.0f} requests a month on"
        if not against.comes:
            where = f"more than an API, up to the {against.most_a_month:,.0f} requests a month that they serve"
        console.print(f"  These devices cost {where}{_of_api(money)}.")
    console.print()
    for decision in money.decisions:
        console.print(f"{decision.question} {decision.answer}: {decision.because}")
    if money.decisions:
        console.print()


def priced(dollars: float, price: DevicePrice | None, device: Device) -> str:
    """What a device costs an hour, and where and of when that is from; of a rank's part, what all of it costs."""
    said = f"${dollars * device.parts:,.2f} an hour for one {device.name}"
    if price is None:
        return said
    when = f", as of {price.as_of}" if price.as_of else ""
    ends = f", {price.low:.2f} to {price.high:.2f}" if price.low < price.high else ""
    return f"{said} ({price.kind}{when}{ends})"


def _of_api(money: Money) -> str:
    """Which API, its prices and their date."""
    api = money.api
    assert api is not None
    prices = f"${api.input:g} a million input tokens, ${api.output:g} output"
    if not api.model:
        return f" at {prices}"
    when = f", as of {api.as_of}" if api.as_of else ""
    return f" ({api.model}: {prices}{when})"


def counted(number: int, what: str) -> str:
    """A number of things in words, also where it is one."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _shown(figure: Interval, unit: str) -> str:
    return f"{figure.value:,.1f} {unit} ({figure.low:,.1f} to {figure.high:,.1f})"
