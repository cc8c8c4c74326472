"""The simulator beside the real server, on one trace at parts of what the server can do.

    python benchmarks/simulation_server.py --large DIR --trace azure_code_2023.csv [--json FILE]

The trace's prompts and outputs are shortened until they fit the model, and its times are stretched so that it asks for
40%, 70% and 95% of what the simulation says the server finishes, by the first turn's calibration. `penstock bench
serve` replays it against `penstock serve`, and the simulation plays the same requests. Changes of the scheduler are
made in both, at 70%: fewer sequences at a time, shorter chunks of prompts, a smaller pool.

Where others use the machine, its own speed drifts by more than the errors that are looked for. So each turn calibrates
the model, as `penstock calibrate` does, and replays each load once. The simulation stands on the steps of all turns,
and what it says is compared with the medians of each load.
"""

import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import reporting
from planning_own import WARMUP, Here, bench, letters, request, warm_replica
from serving import HOST, serving

from penstock.assembly.prepare import prepare
from penstock.bench.load.traces import read_trace, scaled
from penstock.cli.answering import measure_answering
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig
from penstock.planning.calibration import Basis
from penstock.planning.latency import MeasuredStep
from penstock.planning.own import Answering
from penstock.simulation.fleet import play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Served
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes

PARTS = (0.4, 0.7, 0.95)
# Turns in which the calibration and the loads are measured.
TURNS = 3
# Of the trace's lengths, whose prompts have 2,000 tokens in the median, and its requests.
LENGTHS = 0.25
REQUESTS = {"haiku": 400, "1.24B": 40}
# The server refuses none, however long its queue gets.
SERVED = {"max_queued_requests": 100_000, "max_queued_tokens": 100_000_000}
POOL = 1 << 29
CHANGES: dict[str, dict[str, Any]] = {
    "4 sequences at a time": {"max_num_seqs": 4},
    "a chunk of 64 tokens": {"long_prefill_token_threshold": 64},
}
# A pool that holds about 4,000 tokens.
SMALL_POOL = {"haiku": 1 << 24, "1.24B": 1 << 27}
# Seconds to a first token and for each further one, of good requests; by model.
LEVELS = {"haiku": (2.0, 0.02), "1.24B": (20.0, 0.3)}


class Seen(NamedTuple):
    """What users of a run see: seconds, and the part of requests within the service levels."""

    ttft_p50: float
    ttft_p95: float
    tpot_p50: float
    tpot_p95: float
    good: float


class Case(NamedTuple):
    """The same requests at the server and in the simulation."""

    model: str
    what: str
    measured: Seen
    simulated: Seen


class Replayed:
    """A trace for a model: its first requests, with lengths that fit."""

    def __init__(self, trace: Path, model: str, count: int) -> None:
        self.trace, self.count = trace, count
        self.levels = LEVELS[model]
        lines = list(itertools.islice(read_trace(trace), count))
        self.times = [line.at - lines[0].at for line in lines]
        # As `penstock bench serve --length-scale` makes them.
        self.lengths = [(scaled(line.prompt, LENGTHS), scaled(line.output, LENGTHS)) for line in lines]
        self.longest = max(map(sum, self.lengths))

    def arrivals(self, time_scale: float) -> list[Arrival]:
        """Its requests, with times that are multiplied."""
        return [
            Arrival(at * time_scale, request(number, prompt, output, 100))
            for number, (at, (prompt, output)) in enumerate(zip(self.times, self.lengths, strict=True))
        ]

    def seen(self, served: Sequence[Served]) -> Seen:
        """What users see of a simulation."""
        ttft = sorted(each.first - each.arrived for each in served)
        tpot = sorted((each.last - each.first) / (each.output_tokens - 1) for each in served if each.output_tokens > 1)
        first, further = self.levels
        good = [
            each.first - each.arrived <= first
            and (each.output_tokens < 2 or (each.last - each.first) / (each.output_tokens - 1) <= further)
            for each in served
        ]
        ends = [values[round(share * (len(values) - 1))] for values in (ttft, tpot) for share in (0.5, 0.95)]
        return Seen(*ends, statistics.fmean(good))


def simulated(config: EngineConfig, here: Here, basis: Basis, replayed: Replayed, time_scale: float) -> list[Served]:
    """The requests of a trace in the simulation, behind a warm-up as the load generator's."""
    warmup = [request(-1 - number, prompt, output, 100) for number, (prompt, output) in enumerate(replayed.lengths)]
    replica = warm_replica(config, StepTimes(here.deployment, basis.efficiency, basis.varied), warmup[:WARMUP])
    return play_fleet([replica], Given(replayed.arrivals(time_scale))).requests


class Server:
    """A server of a model, maybe with a change of its scheduler."""

    def __init__(self, model: str, config: EngineConfig, replayed: Replayed, address: str) -> None:
        self.config, self.replayed, self.address, self._model = config, replayed, address, model
        self._seeds = itertools.count(1)

    def replay(self, time_scale: float) -> Seen:
        """The trace's requests. No run has the prompts of another, which the prefix cache would know."""
        first, further = self.replayed.levels
        load = ("--trace", str(self.replayed.trace), "--time-scale", f"{time_scale:.6g}", "--requests")
        load += (str(self.replayed.count), "--length-scale", str(LENGTHS), "--seed", str(next(self._seeds)))
        found = bench(self.address, *load, "--slo", f"ttft={first}s,tpot={further}s", *letters(self._model))
        return Seen(
            found["ttft"]["median"],
            found["ttft"]["p95"],
            found["tpot"]["median"],
            found["tpot"]["p95"],
            found["good"] / found["sent"],
        )


class Load:
    """A part of what a server can do."""

    def __init__(self, what: str, server: Server, part: float) -> None:
        self.what, self.server, self.part = what, server, part
        self.rounds: list[Seen] = []

    def measure(self, full: float) -> None:
        """A round more; by `full` the trace's times are multiplied where it asks for all that the server can do."""
        self.rounds.append(self.server.replay(full / self.part))

    def case(self, model: str, here: Here, basis: Basis, full: float) -> Case:
        """The median of all rounds, and what the simulation says."""
        told = simulated(self.server.config, here, basis, self.server.replayed, full / self.part)
        measured = Seen(*(statistics.median(values) for values in zip(*self.rounds, strict=True)))
        return Case(model, self.what, measured, self.server.replayed.seen(told))


@contextmanager
def served(model: str, usual: dict[str, Any], change: dict[str, Any], replayed: Replayed) -> Iterator[Server]:
    """A server with a change of its usual options."""
    options = {**usual, **change}
    config = prepare(EngineOptions.of(model=model, **options), api_beside=True).config
    assert replayed.longest <= config.scheduler.max_model_len, "the trace is too long for the model"
    with tempfile.TemporaryDirectory() as folder:
        # Several servers of one model are there at a time.
        given = {"log_level": "warning", "data_dir": folder, **SERVED, **options}
        with serving(model, [part for name, value in given.items() for part in (_option(name), str(value))]) as started:
            started.wait_until_ready()
            yield Server(model, config, replayed, f"http://{HOST}:{started.port}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def cases_of(model: str, name: str, kept: str, trace: Path, seconds: float) -> list[Case]:
    """One model at parts of what the server can do, and with changes at the middle one of them."""
    here, replayed = Here(model, kept), Replayed(trace, name, REQUESTS[name])
    usual = {"quantization": kept, "speculative": "off", "kv_cache_memory": POOL}
    changes = {**CHANGES, "a pool of 4,000 tokens": {"kv_cache_memory": SMALL_POOL[name]}}
    steps: list[list[MeasuredStep]] = []
    answering: list[Answering] = []
    full = 0.0
    with ExitStack() as stack:
        server = stack.enter_context(served(model, usual, {}, replayed))
        loads = [Load(f"{part:.0%}", server, part) for part in PARTS]
        for what, change in changes.items():
            loads.append(Load(what, stack.enter_context(served(model, usual, change, replayed)), PARTS[1]))
        for turn in range(TURNS):
            print(f"{name}: turn {turn + 1} of {TURNS}", file=sys.stderr, flush=True)
            steps.append(here.steps(seconds))
            answering.append(measure_answering(None))
            if not full:
                # All at once: how long the server takes for them when it is never idle.
                basis = here.calibrated(steps, answering).basis(here.deployment)
                last = max(each.last for each in simulated(server.config, here, basis, replayed, 0.0))
                full = last / replayed.times[-1]
                if name == "haiku":
                    # Memory of the pool that is written to for the first time costs a tenth of this model's steps.
                    for each in dict.fromkeys(load.server for load in loads):
                        each.replay(full / 100)
            for load in loads:
                load.measure(full)
                print(load.what, load.rounds[-1], file=sys.stderr, flush=True)
    basis = here.calibrated(steps, answering).basis(here.deployment)
    return [load.case(name, here, basis, full) for load in loads]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--large", type=Path, required=True, help="the checkpoint of 1.24 billion parameters")
    parser.add_argument("--trace", type=Path, required=True, help="a trace as Azure publishes them")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a turn's part of a calibration takes")
    parser.add_argument("--json", type=Path, help="write all cases there")
    arguments = parser.parse_args()
    cases: list[Case] = []
    for model, name, kept in (("haiku", "haiku", "none"), (str(arguments.large), "1.24B", "int8")):
        cases += cases_of(model, name, kept, arguments.trace, arguments.seconds)
        if arguments.json is not None:
            # What was measured is kept, whatever becomes of the next model.
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(cases), indent=1))
    header = ("model", "load or change", *(f"{name.replace('_', ' ')}, simulated" for name in Seen._fields))
    rows = [(case.model, case.what, *map(_pair, case.measured, case.simulated)) for case in cases]
    reporting.report("Seconds at the server, and in the simulation", header, rows)


def _pair(there: float, told: float) -> str:
    return f"{there:.3g}, {told:.3g} ({told / there - 1:+.0%})" if there else f"{there:.3g}, {told:.3g}"


if __name__ == "__main__":
    main()
