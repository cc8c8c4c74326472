"""`penstock bench serve`: load on a server, in this process."""

import asyncio
import os
import re
import resource
import sys

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock.access.exposure import VARIABLE
from penstock.bench.drawing import check_plots
from penstock.bench.load.arrivals import Arrivals, Closed, Open, Replay
from penstock.bench.load.bodies import parse_extra
from penstock.bench.load.lengths import parse_lengths
from penstock.bench.load.outcome import Outcome
from penstock.bench.load.plan import Plan, check_plan, describe
from penstock.bench.load.plots import draw_plots
from penstock.bench.load.report import (
    as_json,
    error_table,
    figure_table,
    latency_table,
    notes,
    sweep_table,
    verdict,
)
from penstock.bench.load.session import Measurement, Stage, measure
from penstock.bench.load.workload import Shape
from penstock.cli.files import check_writable
from penstock.cli.load_options import Endpoint, LoadOptions, OutputOptions, Prompts, RequestOptions, WorkloadOptions
from penstock.cli.options import parse_batch_sizes, parse_seconds
from penstock.configuration.slo import parse_slo
from penstock.core.errors import ConfigurationError

_REQUESTS = 200
_LENGTH = "128"
_TOKEN_IDS = "100-999"
_SEARCH_SECONDS = 20.0
# The most streams to one address of a server: each needs a port of this machine.
_FILES = 65536


def run_bench_serve(
    url: str, requests: RequestOptions, workload: WorkloadOptions, load: LoadOptions, output: OutputOptions
) -> int:
    """Measure, show the figures stage by stage, and write them where asked; the exit status.

    That is 1 where nothing succeeded, or an answer was not what the protocol promises.
    """
    plan = make_plan(url, requests, workload, load)
    check_plan(plan)
    if output.records and output.json_file is None:
        raise ConfigurationError("--records go into the file of --json; say which.")
    if output.json_file is not None:
        check_writable(output.json_file)
    if output.plots is not None:
        check_plots(output.plots)
    key = read_key(requests.api_key)
    _allow_many_files()
    console = Console()
    with _Shown(plan, console) as shown, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        measurement = runner.run(measure(plan, key, shown))
    _show_end(measurement, console)
    if output.json_file is not None:
        output.json_file.write_bytes(as_json(measurement, output.records))
    if output.plots is not None:
        for path in draw_plots(measurement.stages, measurement.plan.slo, output.plots):
            console.print(f"wrote {path}", highlight=False, markup=False)
    summaries = [stage.summary for stage in measurement.stages]
    broken = any(summary.violations for summary in summaries)
    return 1 if broken or not any(summary.succeeded for summary in summaries) else 0


def make_plan(url: str, requests: RequestOptions, workload: WorkloadOptions, load: LoadOptions) -> Plan:
    """What the options say. Raises ConfigurationError where one has no meaning."""
    chat, trace, dataset = requests.endpoint is Endpoint.CHAT, workload.trace, workload.dataset
    prompts = workload.prompts or (Prompts.TEXT if chat or workload.turns > 1 else Prompts.IDS)
    _refuse_without_effect(workload, prompts)
    seconds = None if load.duration is None else parse_seconds(load.duration, "--duration", 0.1)
    count = load.requests
    if count is None and seconds is None:
        if load.find_rate:
            seconds = _SEARCH_SECONDS
        elif trace is None and dataset is None:
            count = _REQUESTS
    shape = Shape(
        input=parse_lengths(workload.input_len or _LENGTH, "--input-len"),
        output=parse_lengths(workload.output_len or _LENGTH, "--output-len"),
        prefix=workload.prefix_len,
        prefixes=workload.prefixes,
        turns=workload.turns,
    )
    return Plan(
        url=url,
        model=requests.model,
        endpoint=requests.endpoint.value,
        prompts=prompts.value,
        token_ids=_parse_ids(workload.token_ids or _TOKEN_IDS),
        stages=_parse_stages(load, replay=trace is not None),
        find_rate=load.find_rate,
        shape=shape,
        dataset=None if dataset is None else str(dataset),
        trace=None if trace is None else str(trace),
        length_scale=workload.length_scale,
        requests=count,
        seconds=seconds,
        think_time=workload.think_time,
        warmup=load.warmup,
        slo=parse_slo(load.slo),
        cancel=requests.cancel,
        timeout=parse_seconds(requests.timeout, "--timeout", 0.1),
        temperature=requests.temperature,
        ignore_eos=requests.ignore_eos,
        extra=parse_extra(requests.extra_body),
        seed=workload.seed,
    )


def _refuse_without_effect(workload: WorkloadOptions, prompts: Prompts) -> None:
    """Raise ConfigurationError for an option that would change nothing."""
    dataset, trace = workload.dataset is not None, workload.trace is not None
    refusals = {
        "--input-len is of random prompts; a --dataset or a --trace has its own.": workload.input_len is not None
        and (dataset or trace),
        "--output-len does not go with a --trace, which has its own; --length-scale changes them.": trace
        and workload.output_len is not None,
        "--prompts is about random prompts, and a --dataset has its own.": dataset and workload.prompts is not None,
        "--token-ids is for random prompts of token ids; these are text.": workload.token_ids is not None
        and (dataset or prompts is Prompts.TEXT),
        "--prefixes says how many different ones there are; say how long with --prefix-len.": workload.prefixes > 1
        and not workload.prefix_len,
    }
    for sentence, refused in refusals.items():
        if refused:
            raise ConfigurationError(sentence)


def read_key(option: str | None) -> str | None:
    """The API key that options or the environment say. Raises ConfigurationError."""
    key = sys.stdin.readline().strip() if option == "-" else option or os.environ.get(VARIABLE)
    if option == "-" and not key:
        raise ConfigurationError("--api-key - reads a key from standard input, and there was none.")
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigurationError("The API key has characters that no header can have.")
    return key or None


def _parse_stages(load: LoadOptions, *, replay: bool) -> tuple[Arrivals, ...]:
    ways = [name for name in ("rate", "concurrency", "time_scale") if getattr(load, name) is not None]
    if len(ways) > 1:
        first, second, *_ = (f"--{name.replace('_', '-')}" for name in ways)
        raise ConfigurationError(f"{first} and {second} both say when requests come; give one.")
    if load.burstiness != 1 and (load.concurrency is not None or load.time_scale is not None):
        raise ConfigurationError("--burstiness is of requests that come at a --rate.")
    if load.concurrency is not None:
        return tuple(Closed(size) for size in parse_batch_sizes(load.concurrency, "--concurrency"))
    if load.rate is not None:
        return tuple(Open(rate, load.burstiness) for rate in _parse_rates(load.rate))
    if load.find_rate:
        return (Open(1.0, load.burstiness),)
    if replay or load.time_scale is not None:
        return (Replay(1.0 if load.time_scale is None else load.time_scale),)
    raise ConfigurationError(
        "Say how much load there is to be: --concurrency 32 for requests at a time, --rate 4 for requests a second, or "
        "--find-rate with --slo."
    )


def _parse_rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"--rate {text!r} is no list of numbers such as 1,2.5,4.") from None


def _parse_ids(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*-\s*([0-9]{1,9})\s*", text)
    if match is None:
        raise ConfigurationError(f"--token-ids {text!r} is no range such as 100-999.")
    return int(match[1]), int(match[2]) + 1


def _allow_many_files() -> None:
    """Each stream is an open file, and the usual limit is 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Shown:
    """Tells how it goes: a bar in a terminal, and each stage's figures when it has ended."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        watched = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[flight]}"),
            console=watched,
            transient=True,
            disable=not watched.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "_Shown":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, arrivals: Arrivals, warmup: bool) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        total = self._plan.warmup if warmup else self._plan.requests
        turns = None if total is None else total * self._plan.shape.turns
        self._task = self._progress.add_task("warm-up" if warmup else describe(arrivals), total=turns, flight="")

    def outcome(self, _: Outcome, in_flight: int) -> None:
        if self._task is not None and not self._progress.disable:
            self._progress.update(self._task, advance=1, flight=f"{in_flight:,} in flight")

    def end(self, stage: Stage) -> None:
        self._progress.stop()
        self._console.print(latency_table(stage.summary), figure_table(stage.summary, self._plan))
        errors = error_table(stage.summary)
        if errors is not None:
            self._console.print(errors)
        for note in notes(stage.summary, self._plan):
            self._console.print(note, highlight=False, markup=False)
        self._progress.start()


def _show_end(measurement: Measurement, console: Console) -> None:
    if len(measurement.stages) > 1:
        console.print(sweep_table([stage.summary for stage in measurement.stages], measurement.plan))
    answer = verdict(measurement)
    if answer is not None:
        typer.echo(answer)
