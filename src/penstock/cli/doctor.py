"""`penstock doctor`: what limits this machine, a model on it, or a running server."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.assembly.prepare import prepare
from penstock.bench.load.address import parse_address
from penstock.cli.bench_serve import read_key
from penstock.cli.files import json_bytes
from penstock.cli.options import DeviceArguments, EngineArguments, parse_seconds
from penstock.configuration.options import EngineOptions
from penstock.core.devices import LEAST_CAPABILITY, Gpu
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.text_files import without_mark
from penstock.doctor.compare import Change, Comparison, compare
from penstock.doctor.diagnosis import Diagnosis, diagnose
from penstock.doctor.finding import LAYERS, Evidence, Finding, worst
from penstock.doctor.machine import Kernels, Machine
from penstock.doctor.machine_rules import judge_machine
from penstock.doctor.model_rules import ModelSize, judge_model
from penstock.doctor.probe import read_machine
from penstock.doctor.server import look
from penstock.kernels.cpu.native import native
from penstock.loading.cache_folder import default_folder
from penstock.observability.stats import Quantiles

if TYPE_CHECKING:
    from rich.console import RenderableType

_SECONDS = 10.0
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
_STATES = {"free": "green", "busy": "cyan", "saturated": "yellow", "unknown": "dim"}
_VERDICTS = {"applies": "yellow", "does not apply": "green", "cannot be told": "dim"}


class MachineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock doctor --json` prints of a machine, and of a model on it."""

    machine: Machine
    findings: tuple[Finding, ...]
    model: str | None = None
    model_findings: tuple[Finding, ...] = ()


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock doctor --url --json` prints."""

    diagnosis: Diagnosis
    comparison: Comparison | None = None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which server is looked at, and how.

    Attributes:
        seconds: None for what is usual.
        before: a report of an earlier look.
    """

    url: str | None
    seconds: float | None
    before: Path | None
    api_key: str | None


def run_doctor(
    model: str | None, server: ServerOptions, computing: EngineArguments, max_num_seqs: int | None, *, as_json: bool
) -> int:
    """Print what was found; the exit status, which is 1 where a finding is a problem."""
    if server.url is None:
        _refuse_without_server(server)
        if model is None and (computing != _threads_only(computing) or max_num_seqs is not None):
            raise ConfigurationError(
                "Without MODEL, the options of a model have no effect; give one, or leave them out."
            )
        return _doctor_machine(model, computing, max_num_seqs, as_json=as_json)
    if model is not None or computing != EngineArguments() or max_num_seqs is not None:
        raise ConfigurationError(
            "--url asks a running server, which has its model and settings; leave out MODEL and its options."
        )
    return _doctor_server(server.url, server, as_json=as_json)


def _refuse_without_server(server: ServerOptions) -> None:
    given = {"--seconds": server.seconds, "--compare": server.before, "--api-key": server.api_key}
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(f"{name} is about a running server; say which with --url.")


def _threads_only(computing: EngineArguments) -> EngineArguments:
    return EngineArguments(
        device=DeviceArguments(threads=computing.device.threads, instruction_set=computing.device.instruction_set)
    )


def _doctor_machine(model: str | None, computing: EngineArguments, max_num_seqs: int | None, *, as_json: bool) -> int:
    processor, cache = computing.device, computing.loading.packed_cache
    if processor.threads is not None and processor.threads < 1:
        raise ConfigurationError(f"--threads is {processor.threads}; it must be at least 1.")
    # What is wrong with the model is said before anything is measured.
    options = None if model is None else EngineOptions.of(**computing.engine(model, max_num_seqs=max_num_seqs))
    size: ModelSize | None = None
    obstacle: str | None = None
    try:
        size = None if options is None else _size(options)
    except InsufficientMemory as error:
        obstacle = error.message
    folder = None if cache == "off" else Path(cache or default_folder())
    # The engine of a small model leaves a core to the API process.
    threads = processor.threads if size is None else size.config.threads
    with Console(stderr=True).status("measuring the machine"):
        machine = read_machine(
            lambda count: _kernels(count, processor.instruction_set), threads, folder, copies=_copies
        )
    model_findings: tuple[Finding, ...] = ()
    if size is not None:
        model_findings = judge_model(size, machine.kernels.ceilings, machine.disk)
    elif obstacle is not None:
        model_findings = (_no_room(obstacle),)
    report = MachineReport(machine=machine, findings=judge_machine(machine), model=model, model_findings=model_findings)
    if as_json:
        _print_json(report)
    else:
        console = _console()
        console.print(_finding_table("this machine", report.findings))
        if report.model_findings:
            console.print(_finding_table(f"{model} on it", report.model_findings))
    return int(worst((*report.findings, *report.model_findings)) == "problem")


def _size(options: EngineOptions) -> ModelSize:
    prepared = prepare(options, api_beside=True)
    declaration = prepared.declaration
    return ModelSize(
        integers=prepared.integers,
        body=declaration.used_parameters,
        late=declaration.late_parameters,
        head=declaration.decoder.output.weight.size if declaration.decoder.generates else 0,
        config=prepared.config,
    )


def _no_room(message: str) -> Finding:
    return Finding(
        subject="room for the model",
        layer="L3",
        level="problem",
        figure="it does not fit",
        meaning=message,
        advice="--quantization int4 makes weights about a quarter of bfloat16's.",
        evidence=(Evidence("parameters and types", "headers of the checkpoint"),),
    )


def _copies(gpu: Gpu) -> float | None:
    """GB/s of a GPU's memory; None where a server has taken all of it, and for a GPU that cannot be used."""
    import torch

    from penstock.runtime.gpu_ceilings import NEEDED_BYTES, measure_copies

    usable = gpu.capability >= LEAST_CAPABILITY and gpu.free_memory > NEEDED_BYTES
    return measure_copies(torch.device(gpu.device)) if usable else None


def _kernels(threads: int, instruction_set: str) -> Kernels:
    """The native kernels, and what they reach here."""
    from penstock.kernels.processor import this_processor
    from penstock.runtime.ceilings import measure_ceilings

    processor = this_processor()
    if not processor.native:
        return Kernels(obstacle=processor.obstacle)
    processor.use(threads, instruction_set)
    return Kernels(
        instruction_sets=tuple(native.instruction_sets()),
        chosen=native.instruction_set(),
        ceilings=measure_ceilings(),
    )


def _doctor_server(url: str, server: ServerOptions, *, as_json: bool) -> int:
    seconds = parse_seconds(_SECONDS if server.seconds is None else server.seconds, "--seconds", 0.5)
    before = None if server.before is None else _read_before(server.before)
    key = read_key(server.api_key)
    with Console(stderr=True).status(f"looking at {url} for {seconds:g} s") as status:

        def tick(passed: float) -> None:
            status.update(f"looking at {url}: {passed:.0f} of {seconds:g} s")

        seen = asyncio.run(look(url, key, seconds, tick))
    diagnosis = diagnose(parse_address(url).url, seen)
    comparison = None if before is None else compare(before, diagnosis)
    if as_json:
        _print_json(ServerReport(diagnosis=diagnosis, comparison=comparison))
    else:
        _console().print(_server_report(diagnosis, comparison))
    return int(worst(diagnosis.findings) == "problem")


def _read_before(path: Path) -> Diagnosis:
    try:
        return msgspec.json.decode(without_mark(path.read_bytes()), type=ServerReport).diagnosis
    except OSError as error:
        raise ConfigurationError(f"--compare {path}: it cannot be read ({error.strerror}).") from None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"--compare {path} is no report of `penstock doctor --url URL --json` of this release ({error})."
        ) from None


def _print_json(report: MachineReport | ServerReport) -> None:
    print(json_bytes(report).decode())


def _console() -> Console:
    # Where the output is no terminal, nothing is cut to the width of a screen.
    return Console(width=None if sys.stdout.isatty() else 1000, highlight=False)


def _finding_table(title: str, findings: tuple[Finding, ...]) -> Table:
    table = Table("", "what", "how it is, and what that means", title=escape(title), title_justify="left")
    table.columns[1].no_wrap = True
    for finding in findings:
        lines = [f"[bold]{escape(finding.figure)}[/bold]", escape(finding.meaning)]
        if finding.advice:
            lines.append(f"[bold]→[/bold] {escape(finding.advice)}")
        level = f"[{_COLOURS[finding.level]}]{finding.level}[/]"
        what = f"{escape(finding.subject)} ({finding.layer})"
        table.add_row(level, what, "\n".join([*lines, _read_from(finding.evidence)]))
    return table


def _read_from(evidence: tuple[Evidence, ...]) -> str:
    """A line of figures, each with its source."""
    return f"[dim]{escape('; '.join(f'{each.figure} ({each.source})' for each in evidence))}[/dim]"


def _server_report(diagnosis: Diagnosis, comparison: Comparison | None) -> Group:
    bound = diagnosis.bottleneck
    where = f" ({bound.layer}: {LAYERS[bound.layer]})" if bound.layer else ""
    name = f"Bottleneck: {bound.resource}{where}. " if bound.resource else ""
    rows = (
        f" See {'rows' if len(bound.rows) > 1 else 'row'} {' and '.join(map(str, bound.rows))}." if bound.rows else ""
    )
    heading = f"{diagnosis.model} on {diagnosis.url}, Penstock {diagnosis.version}, {diagnosis.seconds:.1f} s"
    parts: list[RenderableType] = [
        Text(heading, style="bold"),
        Text(f"{name}{bound.sentence}{rows}"),
        _latencies(diagnosis),
    ]
    parts += [_resource_table(diagnosis), _sheet_table(diagnosis)]
    if diagnosis.findings:
        parts.append(_finding_table("beside the sheet", diagnosis.findings))
    if comparison is not None:
        parts += [_change_table(comparison), Text(_moved(comparison))]
        parts += [Text(note) for note in comparison.notes]
    return Group(*parts)


def _latencies(diagnosis: Diagnosis) -> Table:
    figures = diagnosis.figures
    rates = f"{figures.requests:.3g} requests/s, {figures.output_tokens:,.0f} output tokens/s"
    if figures.goodput is not None:
        share = "" if figures.attainment is None else f" ({figures.attainment:.0%})"
        rates += f"; in the last minute, goodput {figures.goodput:.3g}/s{share}"
    table = Table("latency of the last minute, ms", title=rates, title_justify="left")
    for heading in ("p50", "p95", "p99", "count"):
        table.add_column(heading, justify="right")
    for name, found in figures.latency.items():
        table.add_row(name, *(_ms(found, quantile) for quantile in ("p50", "p95", "p99")), f"{found.count:,}")
    return table


def _ms(found: Quantiles, quantile: str) -> str:
    value = getattr(found, quantile)
    return "–" if value is None else f"{1000 * value:,.{1 if value >= 0.1 else 2}f}"


def _resource_table(diagnosis: Diagnosis) -> Table:
    table = Table("resource", "", title="what can run out", title_justify="left")
    table.add_column("used", justify="right")
    table.add_column("meaning")
    for each in diagnosis.resources:
        state = f"[{_STATES[each.state]}]{each.state}[/]"
        share = "–" if each.share is None else f"{each.share:.0%}"
        name = f"{each.name} ({each.layer})"
        table.add_row(name, state, share, f"{escape(each.meaning)}\n{_read_from(each.evidence)}")
    return table


def _sheet_table(diagnosis: Diagnosis) -> Table:
    table = Table("#", title="the cheat sheet", title_justify="left")
    table.add_column("the problem is", max_width=34)
    table.add_column("verdict", max_width=18)
    table.add_column("why, and what to try")
    for row in diagnosis.sheet:
        problem = f"{escape(row.problem)}\n[dim]{escape(row.technique)} ({row.layer}): {escape(row.setting)}[/dim]"
        lines = [escape(row.why)]
        if row.advice:
            lines.append(f"[bold]→[/bold] {escape(row.advice)}")
        if row.lacking is not None:
            lines.append(f"[dim]This release has no {escape(row.lacking)}.[/dim]")
        verdict = f"[{_VERDICTS[row.verdict]}]{row.in_words}[/]"
        table.add_row(str(row.number), problem, verdict, "\n".join([*lines, _read_from(row.evidence)]))
    return table


def _change_table(comparison: Comparison) -> Table:
    table = Table("figure", title="before and after", title_justify="left")
    for heading in ("before", "after", "after / before", ""):
        table.add_column(heading, justify="right")
    for change in comparison.changes:
        ratio = "–" if change.ratio is None else f"{change.ratio:.2f}"
        word = {True: "[green]better[/]", False: "[yellow]worse[/]", None: ""}[change.better]
        table.add_row(change.name, _value(change, change.before), _value(change, change.after), ratio, word)
    return table


def _value(change: Change, value: float | None) -> str:
    if value is None:
        return "–"
    if change.unit == "s":
        return f"{1000 * value:,.3g} ms"
    if change.unit == "1/s":
        return f"{value:,.3g}/s"
    return f"{value:.0%}" if change.unit == "share" else f"{value:,.3g} {change.unit}".strip()


def _moved(comparison: Comparison) -> str:
    words = [comparison.sentence]
    if comparison.gone:
        words.append(f"Rows that no longer apply: {', '.join(map(str, comparison.gone))}.")
    if comparison.new:
        words.append(f"Rows that apply now: {', '.join(map(str, comparison.new))}.")
    return " ".join(words)
