"""The simulator beside the real server, on one trace at parts of what the server can do.

    python benchmarks/simulation_server.py --large DIR --trace azure_code_2023.csv [--json FILE]

Each model is calibrated first, as `penstock calibrate` does. The trace's prompts and outputs are shortened until they
fit the model, and its times are stretched so that it asks for 40%, 70% and 95% of what the simulation says the server
finishes. Then `penstock bench serve` replays it against `penstock serve`, and the simulation plays the same requests.
Last, changes of the scheduler are made in both: fewer sequences at a time, shorter chunks of prompts, a smaller pool.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
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
from penstock.simulation.fleet import play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Served
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes

PARTS = (0.4, 0.7, 0.95)
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

    def __init__(self, trace: Path, model: str, count: int, longest: int) -> None:
        self.trace, self.count = trace, count
        self.levels = LEVELS[model]
        lines = list(itertools.islice(read_trace(trace), count))
        self.times = [line.at - lines[0].at for line in lines]
        # As `penstock bench serve --length-scale` makes them.
        self.lengths = [(scaled(line.prompt, LENGTHS), scaled(line.output, LENGTHS)) for line in lines]
        assert max(map(sum, self.lengths)) <= longest, "the trace is too long for the model"

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


def measured(address: str, model: str, replayed: Replayed, time_scale: float, seed: int) -> Seen:
    """The same requests at a server; no run has the prompts of another, which the prefix cache would know."""
    first, further = replayed.levels
    load = ("--trace", str(replayed.trace), "--time-scale", f"{time_scale:.6g}", "--length-scale", str(LENGTHS))
    load += ("--seed", str(seed), "--requests", str(replayed.count), "--slo", f"ttft={first}s,tpot={further}s")
    found = bench(address, *load, *letters(model))
    return Seen(
        found["ttft"]["median"],
        found["ttft"]["p95"],
        found["tpot"]["median"],
        found["tpot"]["p95"],
        found["good"] / found["sent"],
    )


def cases_of(model: str, name: str, kept: str, trace: Path, count: int, seconds: float) -> list[Case]:
    """One model at parts of what the server can do, and with changes at the middle one of them."""
    here = Here(model, kept)
    basis = here.calibrated(here.steps(seconds), [measure_answering(None)]).basis(here.deployment)
    usual = {"model": model, "quantization": kept, "speculative": "off", "kv_cache_memory": POOL}
    cases: list[Case] = []
    scale = 0.0
    changes = {"": {}, **CHANGES, "a pool of 4,000 tokens": {"kv_cache_memory": SMALL_POOL[name]}}
    for what, change in changes.items():
        config = prepare(EngineOptions.of(**{**usual, **change}), api_beside=True).config
        replayed = Replayed(trace, name, count, config.scheduler.max_model_len)
        if not scale:
            # All at once: how long the server takes for them when it is never idle.
            at_once = max(each.last for each in simulated(config, here, basis, replayed, 0.0))
            scale = at_once / replayed.times[-1]
        given = {**usual, "log_level": "warning", **SERVED, **change}
        del given["model"]
        command = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        with serving(model, command) as server:
            server.wait_until_ready()
            address = f"http://{HOST}:{server.port}"
            if name == "haiku":
                # Memory of the pool that is written to for the first time costs a tenth of this model's steps.
                measured(address, model, replayed, scale / 100, 100)
            for seed, part in enumerate(PARTS if not what else PARTS[1:2], 1):
                told = replayed.seen(simulated(config, here, basis, replayed, scale / part))
                case = Case(name, what or f"{part:.0%}", measured(address, model, replayed, scale / part, seed), told)
                print(case, file=sys.stderr)
                cases.append(case)
    return cases


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--large", type=Path, required=True, help="the checkpoint of 1.24 billion parameters")
    parser.add_argument("--trace", type=Path, required=True, help="a trace as Azure publishes them")
    parser.add_argument("--seconds", type=float, default=60.0, help="that each calibration takes")
    parser.add_argument("--json", type=Path, help="write all cases there")
    arguments = parser.parse_args()
    cases = []
    for model, name, kept in (("haiku", "haiku", "none"), (str(arguments.large), "1.24B", "int8")):
        cases += cases_of(model, name, kept, arguments.trace, REQUESTS[name], arguments.seconds)
    header = ("model", "load or change", *(f"{name.replace('_', ' ')}, simulated" for name in Seen._fields))
    rows = [(case.model, case.what, *map(_pair, case.measured, case.simulated)) for case in cases]
    reporting.report("Seconds at the server, and in the simulation", header, rows)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(cases), indent=1))


def _pair(there: float, told: float) -> str:
    return f"{there:.3g}, {told:.3g} ({told / there - 1:+.0%})" if there else f"{there:.3g}, {told:.3g}"


if __name__ == "__main__":
    main()
