"""`penstock plan`: what a model needs of a machine, what it will do there and cost. Only headers are read."""

import sys
from datetime import date
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table

from penstock.bench.load.arrivals import Open, check_arrivals
from penstock.cli.deployment import deployed
from penstock.cli.files import check_output, check_writable, write_json
from penstock.cli.plan_disk import note_of, parse_disk
from penstock.cli.plan_options import DeploymentOptions, MoneyOptions, RoleOptions
from penstock.cli.plan_prices import prices_of
from penstock.cli.plan_report import print_plan
from penstock.cli.plan_workloads import Requests
from penstock.configuration.slo import parse_slo
from penstock.core.errors import ConfigurationError
from penstock.core.text_files import shown
from penstock.planning.asked import Asked
from penstock.planning.bounding import bounded, policy_for
from penstock.planning.calibration import Basis
from penstock.planning.estimates import Loop, Workload
from penstock.planning.hardware import DEVICES
from penstock.planning.listed import LISTED
from penstock.planning.plan import make_plan
from penstock.planning.roles import RolesTold


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for; see its options."""

    requests: Requests
    concurrency: int | None
    static: bool
    slo: str | None
    rate: float | None
    roles: RoleOptions = RoleOptions()


def run_plan(
    model: str | None,
    options: DeploymentOptions,
    wanted: Wanted,
    money: MoneyOptions,
    json_file: Path | None,
    html_file: Path | None = None,
    *,
    today: date | None = None,
) -> None:
    """Print a plan, or write it as JSON or as a page. Raises ConfigurationError and ModelFileError.

    A file "-" for JSON is standard output.

    Prices are old, and models at their end, on the day `today`; None: the day that it is.
    """
    day = today or date.today()
    asked, basis = _asked(model, options, wanted, money, day)
    check_output(json_file)
    _check_page(html_file, json_file)
    plan = msgspec.structs.replace(make_plan(asked, basis), roles=_roles(asked, basis, wanted.roles))
    if asked.disk is not None and (note := note_of(asked.machine.device)) is not None:
        plan.notes.append(note)
    if html_file is not None:
        from penstock.cli.plan_page.page import page_of

        name = model if options.model_config is None else options.model_config.name
        page = page_of(plan, asked, str(name), wanted.slo, day.isoformat())
        html_file.write_text(shown(page), encoding="utf-8")
    if json_file is not None:
        write_json(plan, json_file)
    elif html_file is None:
        print_plan(plan, asked, wanted.slo)


def _roles(asked: Asked, basis: Basis, options: RoleOptions) -> RolesTold | None:
    """What roles change, where there are some. Raises ConfigurationError."""
    if options == RoleOptions():
        return None
    # It plays the requests with a scheduler, which other plans do without.
    from penstock.cli.plan_roles import roles_told

    return roles_told(asked, basis, options)


def _check_page(html_file: Path | None, json_file: Path | None) -> None:
    """Raise ConfigurationError where a page could not be written, or would be written over."""
    if html_file is None:
        return
    if str(html_file) == "-":
        raise ConfigurationError("--html writes a page to a file; give its name, such as plan.html.")
    check_writable(html_file, "--html")
    if json_file is not None and json_file.absolute() == html_file.absolute():
        raise ConfigurationError(f"--html and --json would both write {html_file}; give two files.")


def list_known() -> None:
    """Print the table of devices, and the list of prices."""
    console = Console(width=160 if not sys.stdout.isatty() else None)
    right = [Column(name, justify="right") for name in ("GB", "GB/s")]
    table = Table("device", *right, "dense TFLOPS", "link, GB/s", "W", "source", box=None)
    for device in DEVICES:
        rates = ", ".join(f"{name} {rate / 1e12:,.0f}" for name, rate in device.rates.items())
        memory = f"{device.memory / 1e9:.0f}" if device.memory else "-"
        link = f"{device.link / 1e9:.0f}" if device.link else "-"
        watts = f"{device.watts:.0f}" if device.watts else "-"
        table.add_row(device.name, memory, f"{device.bandwidth / 1e9:,.0f}", rates, link, watts, device.source)
    console.print(table)
    console.print()
    right = [Column(name, justify="right") for name in ("$ an hour", "from", "to")]
    table = Table("device", "price (--price KIND)", *right, "as of", "source", box=None)
    for row in LISTED.devices:
        ends = f"{row.low:.2f}", f"{row.high:.2f}"
        table.add_row(row.device, row.kind, f"{row.dollars:.2f}", *ends, row.as_of, row.source)
    console.print(table)
    console.print()
    right = [Column(name, justify="right") for name in ("input, $ a million", "cached", "output", "batches")]
    table = Table("model (--api-price MODEL)", *right, "served until", "as of", "source", box=None)
    for model in LISTED.models:
        cached = "-" if model.cached is None else f"{model.cached:g}"
        batches = f"-{model.batch_discount:.0%}" if model.batch_discount else "-"
        figures = f"{model.input:g}", cached, f"{model.output:g}", batches
        table.add_row(model.model, *figures, model.deprecated or "-", model.as_of, model.source)
    console.print(table)


def _asked(
    model: str | None, options: DeploymentOptions, wanted: Wanted, money: MoneyOptions, today: date
) -> tuple[Asked, Basis]:
    """What the plan is for, and what its estimates stand on."""
    requests = wanted.requests
    if requests.cached_tokens >= requests.input_tokens:
        raise ConfigurationError(
            "--cached-len must be less than --input-len: a prompt's last token is always computed."
        )
    if wanted.rate is not None:
        check_arrivals(Open(wanted.rate))
    slo = parse_slo(wanted.slo)
    if slo is not None and (slo.itl is not None or slo.e2e is not None):
        raise ConfigurationError("--slo of a plan has ttft and tpot: plans tell means, and know no longest gap or end.")
    disk, there = parse_disk(options.kv_disk), deployed(model, options, wanted.roles)
    rate = requests.rate if wanted.rate is None else wanted.rate
    prices = prices_of(money, there.machine.device, today, rate=rate)
    if prices.purchase is not None and there.machine.device.parts > 1:
        raise ConfigurationError("--buy is of whole devices, which ranks share; leave it out, or the ranks.")
    workload = Workload(
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        concurrency=wanted.concurrency or 1,
        cached_tokens=requests.cached_tokens,
        loop=_loop(wanted, rate),
    )
    asked = Asked(
        deployment=bounded(there.deployment, policy_for(options.kv_policy, there.deployment.shape)),
        machine=there.machine,
        workload=workload,
        ttft=None if slo is None else slo.ttft,
        tpot=None if slo is None else slo.tpot,
        rate=rate,
        # Of a trace that is played faster, the busiest minute is, too.
        peak_rate=None if not requests.peak or not requests.rate or not rate else requests.peak / requests.rate * rate,
        # Of ranks, each has a part of what is paid for.
        device_hour=None if prices.device_hour is None else prices.device_hour / there.machine.device.parts,
        operations_month=money.operations,
        api=prices.api,
        device_price=prices.device_price,
        reserved_hour=None if prices.reserved_hour is None else prices.reserved_hour / there.machine.device.parts,
        utilisation=money.utilisation,
        purchase=prices.purchase,
        price_notes=prices.notes,
        said=requests.said,
        disk=disk,
    )
    return asked, there.basis


def _loop(wanted: Wanted, rate: float | None) -> Loop:
    """How requests come. Raises ConfigurationError where they would come in two ways."""
    if wanted.static or wanted.requests.static:
        if rate is not None:
            raise ConfigurationError(
                "--rate, or a trace, is of requests that come one by one, which a batch that begins together has not; "
                "leave it out, or --static and --workload batch."
            )
        return "static"
    return "open" if rate is not None and wanted.concurrency is None else "closed"
