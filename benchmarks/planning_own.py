"""How far plans are off on this machine, for configurations that no calibration has seen.

    python benchmarks/planning_own.py --large DIR [--seconds 60] [--json FILE]

Each model is calibrated in one format, as `penstock calibrate` does. Then batches of other sizes, prompts and formats
are run in the same process, and requests are sent to `penstock serve`, closed loop and open loop. Beside each stands
what the simulation by that calibration says: the scheduler that serves, steps by the latency model. DIR is the
checkpoint of 1.24 billion parameters that `make_checkpoints.py DIR bf16` writes.

Where others use the machine, its own speed drifts. So a few of the calibration's own steps are measured again before
and after each configuration. Errors are told twice: as they are, and with estimates multiplied by how much longer these
steps take than at the calibration.
"""

import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import reporting
from serving import HOST, PENSTOCK, serving
from tokenizers import Tokenizer

from penstock.assembly.build import build_engine
from penstock.assembly.prepare import Prepared, prepare
from penstock.bench.load.arrivals import Open, arrival_times
from penstock.bench.steps import CASES, StepCase, means, measure_steps, variation
from penstock.cli.answering import measure_answering
from penstock.cli.calibrate import deployment_here, device_of_ceilings, engine_in, engines_in
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.planning.efficiency import Efficiency
from penstock.planning.hardware import Device
from penstock.planning.own import OwnMachine, calibrated_machine
from penstock.runtime.machine import machine_facts
from penstock.scheduler.build import build_scheduler
from penstock.simulation.fleet import REQUEST_SECONDS, play_fleet
from penstock.simulation.loop import Arrival, play
from penstock.simulation.replica import Replica, Served
from penstock.simulation.sources import ClosedLoop, Given
from penstock.simulation.times import StepTimes

# Requests that begin together: how many, tokens of a prompt and of an output. None is among those of calibrations.
BATCHES = ((1, 40, 24), (1, 400, 16), (3, 48, 20), (6, 96, 16), (12, 40, 16), (24, 24, 12), (2, 300, 16))
# Concurrency, tokens of a prompt and of an output; and requests a second, as parts of what the closed loop finished.
CLOSED = ((1, 120, 32), (4, 120, 32), (12, 60, 24))
OPEN = (0.4, 0.7)
# Steps that tell the machine's speed, and the part of a calibration's time that they take.
PROBE, PROBE_PART = (StepCase(1, 64), StepCase(4, 32)), 0.05
# Rounds of each batch, at least and at most, and seconds that they are to take.
ROUNDS, LEAST_SECONDS = (3, 25), 2.0
# Requests that the load generator sends before those that count.
WARMUP = 2


class Figures(NamedTuple):
    """Seconds, means over requests."""

    ttft: float
    itl: float
    e2e: float


class Point(NamedTuple):
    """A configuration: measured, and estimated; `drift`: of the machine, in time for the same steps."""

    model: str
    kept: str
    what: str
    measured: Figures
    told: Figures
    drift: float = 1.0

    def off(self, figure: str, drift: float = 1.0) -> float:
        """How far the estimate is off, as a part of what was measured."""
        measured = getattr(self.measured, figure)
        return abs(drift * getattr(self.told, figure) / measured - 1)


def request(number: int, prompt: int, output: int, vocabulary: int) -> Request:
    """One whose prompt is like no other's."""
    source = random.Random(f"{number} {prompt}")
    tokens = [source.randrange(vocabulary) for _ in range(prompt)]
    return Request(
        request_id=number,
        prompt_token_ids=tokens,
        sampling=SamplingParams(max_tokens=output, temperature=0.0, seed=0, ignore_eos=True),
    )


def figures_of(served: Sequence[Served]) -> Figures:
    """The means of requests that were served."""
    return Figures(
        statistics.fmean(each.first - each.arrived for each in served),
        statistics.fmean((each.last - each.first) / (each.output_tokens - 1) for each in served),
        statistics.fmean(each.last - each.arrived for each in served),
    )


class Here:
    """An engine in this process, and its model as plans know it."""

    def __init__(self, model: str, kept: str) -> None:
        self.options = EngineOptions.of(model=model, quantization=kept, speculative="off")
        self.prepared: Prepared = prepare(self.options, api_beside=False)
        self.built = build_engine(self.prepared.config, lambda _done, _total: None)
        assert self.built.ceilings is not None, "the native kernels run here"
        device = device_of_ceilings(self.built.ceilings, machine_facts(api_beside=False).available_memory)
        self.kept = kept
        self.on(device)

    def on(self, device: Device) -> None:
        """Plan for another device: that whose limits the calibration measured."""
        self.deployment = deployment_here(self.prepared, device, "auto")

    def drift(self, machine: OwnMachine, seconds: float) -> float:
        """By how much a few kinds of steps take longer now than at the calibration: the geometric mean."""
        # In new books, which know no prompt of the time before.
        engine = engines_in(self.built, self.prepared.config)[0]
        found = measure_steps(engine, PROBE, PROBE_PART * seconds)
        before = {step.rows: step.seconds for step in machine.steps}
        now = means([step for _, steps in found for step in steps])
        return statistics.geometric_mean(step.seconds / before[step.rows] for step in now if step.rows in before)

    def calibrate(self, seconds: float) -> OwnMachine:
        """This machine, as `penstock calibrate` measures it."""
        server = prepare(self.options, api_beside=True).config.scheduler
        engines = engines_in(self.built, msgspec.structs.replace(self.prepared.config, scheduler=server))
        steps = [step for each in engines for _, found in measure_steps(each, CASES, seconds / 2) for step in found]
        kept = self.kept, "auto"
        machine = calibrated_machine(self.deployment, means(steps), "today", "it", kept, variation(steps))
        return msgspec.structs.replace(machine, answering=measure_answering(None))

    def measured(self, arrivals: Sequence[Arrival]) -> Figures:
        """What requests that begin together see of the engine."""
        served = {each.request.request_id: Served(0.0, len(each.request.prompt_token_ids)) for each in arrivals}
        engine = engine_in(self.built)
        began = time.perf_counter()
        for step in play(engine.scheduler, arrivals, engine.execute):
            now = time.perf_counter() - began
            for output in step.outputs:
                one = served[output.request_id]
                one.first, one.last = min(one.first, now), now
                one.output_tokens += len(output.gained.tokens)
        return figures_of(list(served.values()))

    def told(self, efficiency: Efficiency, arrivals: Sequence[Arrival]) -> Figures:
        """The same, simulated."""
        config = self.prepared.config
        replica = Replica(build_scheduler(config.scheduler, config.cache), StepTimes(self.deployment, efficiency))
        return figures_of(play_fleet([replica], Given(arrivals)).requests)

    def batches(self, efficiency: Efficiency, name: str) -> Iterator[Point]:
        """Requests that begin together: the median of some rounds, and what is told of them."""
        numbers = itertools.count()
        for rows, prompt, output in BATCHES:
            rounds: list[Figures] = []
            began = time.perf_counter()
            while len(rounds) < ROUNDS[0] or (len(rounds) < ROUNDS[1] and time.perf_counter() - began < LEAST_SECONDS):
                requests = [request(next(numbers), prompt, output, self.built.vocab_size) for _ in range(rows)]
                arrivals = [Arrival(0.0, each) for each in requests]
                rounds.append(self.measured(arrivals))
            measured = Figures(*(statistics.median(values) for values in zip(*rounds, strict=True)))
            what = f"{rows} x {prompt} → {output}"
            yield Point(name, self.kept, what, measured, self.told(efficiency, arrivals))


def warm_replica(config: EngineConfig, times: StepTimes, requests: Sequence[Request]) -> Replica:
    """One that has served the load generator's warm-up, so that its scheduler knows how long steps are."""
    replica = Replica(build_scheduler(config.scheduler, config.cache), times)
    play_fleet([replica], Given(Arrival(0.0, each) for each in requests))
    return replica


def over_http(model: str, kept: str, name: str, here: Here, efficiency: Efficiency) -> Iterator[Point]:
    """Closed loops, then open loops at parts of what the last closed one finished."""
    config = prepare(EngineOptions.of(model=model, quantization=kept, speculative="off"), api_beside=True).config

    times = StepTimes(here.deployment, efficiency)

    def replica(prompt: int, output: int) -> Replica:
        return warm_replica(config, times, [request(-1 - number, prompt, output, 100) for number in range(WARMUP)])

    with serving(model, ("--quantization", kept, "--speculative", "off", "--log-level", "warning")) as server:
        server.wait_until_ready()
        address, most = f"http://{HOST}:{server.port}", 0.0
        for concurrency, prompt, output in CLOSED:
            count = max(12, 4 * concurrency)
            # No run has the prompts of another, which the prefix cache would know.
            seed = ("--seed", str(concurrency))
            lengths = (*of_lengths(prompt, output, count), *letters(model))
            found = bench(address, *lengths, *seed, "--concurrency", str(concurrency))
            requests = [request(number, prompt, output, 100) for number in range(count)]
            loop = ClosedLoop(requests, concurrency, times.after, REQUEST_SECONDS)
            told = figures_of(play_fleet([replica(prompt, output)], loop).requests)
            yield Point(name, kept, f"HTTP, {concurrency} at a time, {prompt} → {output}", seen(found), told)
            most = found["request_rate"]
        for number, part in enumerate(OPEN):
            rate, seed = part * most, 100 + number
            lengths = (*of_lengths(prompt, output, 40), *letters(model))
            found = bench(address, *lengths, "--seed", str(seed), "--rate", f"{rate:.3f}")
            coming = itertools.islice(arrival_times(Open(float(f"{rate:.3f}")), 1000 * seed + 1), 40)
            arrivals = [Arrival(at, request(number, prompt, output, 100)) for number, at in enumerate(coming)]
            told = figures_of(play_fleet([replica(prompt, output)], Given(arrivals)).requests)
            yield Point(name, kept, f"HTTP, {rate:.2f} a second, {prompt} → {output}", seen(found), told)


def letters(model: str) -> tuple[str, ...]:
    """Options by which a checkpoint of random weights says one letter only.

    Its tokens would be parts of characters, which a server keeps back until they are whole, so that a client would see
    several tokens at a time.
    """
    file = Path(model) / "tokenizer.json"
    if not file.is_file():
        return ()
    token = Tokenizer.from_file(str(file)).token_to_id("a")
    return "--extra-body", json.dumps({"logit_bias": {str(token): 100}})


def bench(address: str, *load: str) -> dict[str, Any]:
    """The summary of `penstock bench serve`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        usual = ("--prompts", "ids", "--warmup", str(WARMUP), "--ignore-eos")
        command = [*PENSTOCK, "bench", "serve", address, *usual, *load, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads(file.read_text())["stages"][0]["summary"]
        return summary


def of_lengths(prompt: int, output: int, count: int) -> tuple[str, ...]:
    """Options of requests that are alike."""
    return ("--input-len", str(prompt), "--output-len", str(output), "--requests", str(count))


def seen(summary: dict[str, Any]) -> Figures:
    """Of what the load generator measured."""
    return Figures(*(summary[name]["mean"] for name in ("ttft", "tpot", "e2e")))


def points_of(model: str, name: str, calibrated: str, others: Sequence[str], seconds: float) -> Iterator[Point]:
    """One model: calibrated in one format, and asked in all."""
    here = Here(model, calibrated)
    machine, device = here.calibrate(seconds), here.deployment.device
    efficiency = machine.efficiency

    def with_drift(points: Iterator[Point]) -> Iterator[Point]:
        before = here.drift(machine, seconds)
        for point in points:
            after = here.drift(machine, seconds)
            yield point._replace(drift=(before + after) / 2)
            before = after

    yield from with_drift(here.batches(efficiency, name))
    behind = machine.basis(here.deployment).efficiency
    yield from with_drift(over_http(model, calibrated, name, here, behind))
    for kept in others:
        other = Here(model, kept)
        other.on(device)
        yield from with_drift(other.batches(efficiency, name))


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--large", type=Path, required=True, help="the checkpoint of 1.24 billion parameters")
    parser.add_argument("--seconds", type=float, default=60.0, help="that each calibration takes")
    parser.add_argument("--json", type=Path, help="write all points there")
    arguments = parser.parse_args()
    points: list[Point] = []
    models = (
        ("haiku", "haiku", "none", ("int8",)),
        (str(arguments.large), "1.24B", "int8", ("none", "int4")),
    )
    for model, name, calibrated, others in models:
        for point in points_of(model, name, calibrated, others, arguments.seconds):
            points.append(point)
            off = (f"{point.off(f):.0%} {point.off(f, point.drift):.0%}" for f in Figures._fields)
            print(point.model, point.kept, point.what, *off, f"{point.drift:.2f}", file=sys.stderr, flush=True)
    header = ("model", "weights", "requests", *(f"{f} ms, estimated" for f in ("TTFT", "ITL", "E2E")), "drift")
    rows = [
        (point.model, point.kept, point.what, *(_pair(point, figure) for figure in Figures._fields), point.drift)
        for point in points
    ]
    as_it_is = _medians([[point.off(figure) for point in points] for figure in Figures._fields])
    without = _medians([[point.off(figure, point.drift) for point in points] for figure in Figures._fields])
    reporting.report(
        f"{len(points)} configurations; off in the median: {as_it_is}; with the machine's drift taken out: {without}",
        header,
        rows,
    )
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(points), indent=1))


def _medians(errors: Sequence[Sequence[float]]) -> str:
    named = zip(("TTFT", "ITL", "E2E"), errors, strict=True)
    return ", ".join(f"{name} {statistics.median(values):.1%}" for name, values in named)


def _pair(point: Point, figure: str) -> str:
    measured, told = getattr(point.measured, figure) * 1e3, getattr(point.told, figure) * 1e3
    return f"{measured:,.1f}, {told:,.1f} ({told / measured - 1:+.0%})"


if __name__ == "__main__":
    main()
