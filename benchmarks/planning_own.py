"""How far plans are off on this machine, for configurations that no calibration has seen.

    python benchmarks/planning_own.py --large DIR [--seconds 60] [--json FILE]

Each model is calibrated in one format, as `penstock calibrate` does. Batches of other sizes, prompts and formats are
run in the same process, and requests are sent to `penstock serve`, closed loop and open loop. Beside each stands what
the simulation by that calibration says: the scheduler that serves, steps by the latency model. DIR is the checkpoint of
1.24 billion parameters that `make_checkpoints.py DIR bf16` writes.

Where others use the machine, its own speed drifts by more than the errors that are looked for. So the calibration and
all configurations take turns: each turn measures a part of either. The means of all turns' steps are calibrated with,
and what they say is compared with the means of each configuration. Both leave out what took more than twice the median
of its kind, since something else on the machine held it up; but of requests that come at random, all runs count.
"""

import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import reporting
from serving import HOST, PENSTOCK, serving
from tokenizers import Tokenizer

from penstock.assembly.build import build_engine
from penstock.assembly.prepare import Prepared, prepare
from penstock.bench.load.arrivals import Open, arrival_times
from penstock.bench.steps import CASES, means, measure_steps, undisturbed_mean, variation
from penstock.cli.answering import measure_answering
from penstock.cli.calibrate import deployment_here, engine_in, engines_in, this_device
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.planning.efficiency import Efficiency
from penstock.planning.hardware import Device
from penstock.planning.latency import MeasuredStep
from penstock.planning.own import Answering, OwnMachine, calibrated_machine, median_answering
from penstock.runtime.machine import machine_facts
from penstock.scheduler.build import build_scheduler
from penstock.simulation.fleet import play_fleet
from penstock.simulation.loop import Arrival, play
from penstock.simulation.replica import Replica, Served
from penstock.simulation.sources import ClosedLoop, Given, Source
from penstock.simulation.times import StepTimes

# Requests that begin together: how many, tokens of a prompt and of an output. None is among those of calibrations.
BATCHES = ((1, 40, 24), (1, 400, 16), (3, 48, 20), (6, 96, 16), (12, 40, 16), (24, 24, 12), (2, 300, 16))
# Concurrency, tokens of a prompt and of an output; and requests a second, as parts of what the closed loop finished.
CLOSED = ((1, 120, 32), (4, 120, 32), (12, 60, 24))
OPEN = (0.4, 0.7)
# Turns in which the calibration and the configurations are measured.
TURNS = 5
# Rounds of each batch in a turn, at least and at most, and seconds that they are to take.
ROUNDS, LEAST_SECONDS = (1, 12), 1.0
# Of keys and values, so that engines of all formats fit beside one another.
POOL = 1 << 30
# Requests of an open loop.
COMING = 40
# Requests that the load generator sends before those that count.
WARMUP = 2


class Figures(NamedTuple):
    """Seconds, means over requests."""

    ttft: float
    itl: float
    e2e: float


class Point(NamedTuple):
    """A configuration: measured, and estimated."""

    model: str
    kept: str
    what: str
    measured: Figures
    told: Figures

    def off(self, figure: str) -> float:
        """How far the estimate is off, as a part of what was measured."""
        return abs(getattr(self.told, figure) / getattr(self.measured, figure) - 1)


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

    def __init__(self, model: str, kept: str, threads: int | None = None) -> None:
        self.options = EngineOptions.of(
            model=model, quantization=kept, speculative="off", kv_cache_memory=POOL, threads=threads
        )
        self.prepared: Prepared = prepare(self.options, api_beside=False)
        self.built = build_engine(self.prepared.config, lambda _done, _total: None)
        assert self.built.ceilings is not None, "the native kernels run here"
        device = this_device(self.built.ceilings, machine_facts(api_beside=False).available_memory)
        self.kept = kept
        # Of requests: no two have the same prompt, which the prefix cache would know.
        self.numbers = itertools.count()
        self.on(device)

    def on(self, device: Device) -> None:
        """Plan for another device: that whose limits the calibration measured."""
        self.deployment = deployment_here(self.prepared, device, "auto")

    def steps(self, seconds: float) -> list[MeasuredStep]:
        """Of `penstock calibrate`, as many as it measures in a time."""
        server = prepare(self.options, api_beside=True).config.scheduler
        engines = engines_in(self.built, msgspec.structs.replace(self.prepared.config, scheduler=server))
        return [step for each in engines for _, found in measure_steps(each, CASES, seconds / 2) for step in found]

    def calibrated(self, turns: Sequence[Sequence[MeasuredStep]], answering: Sequence[Answering]) -> OwnMachine:
        """This machine by the steps of all turns, and by the median of what answering takes.

        Single steps vary as they do within turns: between them, the machine's speed drifts.
        """
        kept, steps = (self.kept, "auto"), list(itertools.chain.from_iterable(turns))
        varied = sorted(itertools.chain.from_iterable(map(variation, turns)))[len(turns) // 2 :: len(turns)]
        machine = calibrated_machine(self.deployment, means(steps), "today", "it", kept, tuple(varied))
        return msgspec.structs.replace(machine, answering=median_answering(answering))

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


class Batch:
    """Requests that begin together at an engine in this process."""

    def __init__(self, here: Here, rows: int, prompt: int, output: int) -> None:
        self.here, self.kept, self.what = here, here.kept, f"{rows} x {prompt} → {output}"
        self.sizes = rows, prompt, output
        self.rounds: list[Figures] = []

    def _arrivals(self) -> list[Arrival]:
        rows, prompt, output = self.sizes
        vocabulary, numbers = self.here.built.vocab_size, self.here.numbers
        return [Arrival(0.0, request(next(numbers), prompt, output, vocabulary)) for _ in range(rows)]

    def measure(self) -> None:
        """Some rounds more."""
        began, done = time.perf_counter(), 0
        while done < ROUNDS[0] or (done < ROUNDS[1] and time.perf_counter() - began < LEAST_SECONDS):
            self.rounds.append(self.here.measured(self._arrivals()))
            done += 1

    @property
    def measured(self) -> Figures:
        """The mean of all rounds."""
        return mean(self.rounds)

    def told(self, machine: OwnMachine) -> Figures:
        """What the simulation says of them."""
        return self.here.told(machine.efficiency, self._arrivals())


def warm_replica(config: EngineConfig, times: StepTimes, requests: Sequence[Request]) -> Replica:
    """One that has served the load generator's warm-up, so that its scheduler knows how long steps are."""
    replica = Replica(build_scheduler(config.scheduler, config.cache), times)
    play_fleet([replica], Given(Arrival(0.0, each) for each in requests))
    return replica


class Server:
    """A server of the same model."""

    def __init__(self, model: str, here: Here, port: int) -> None:
        options = {"model": model, "quantization": here.kept, "speculative": "off", "kv_cache_memory": POOL}
        self.config = prepare(EngineOptions.of(**options), api_beside=True).config
        self.model, self.here, self.address = model, here, f"http://{HOST}:{port}"
        # Requests a second that the last closed loop finished.
        self.most = 0.0
        self._seeds = itertools.count(1)

    def bench(self, prompt: int, output: int, count: int, seed: int, *load: str) -> dict[str, Any]:
        """Requests that are alike. No run has the prompts of another, which the prefix cache would know."""
        lengths = ("--input-len", str(prompt), "--output-len", str(output), "--requests", str(count))
        return bench(self.address, *lengths, *letters(self.model), "--seed", str(seed), *load)

    def next_seed(self) -> int:
        """One that no other run has."""
        return next(self._seeds)

    def told(
        self, machine: OwnMachine, prompt: int, output: int, source: Callable[[StepTimes, float], Source]
    ) -> Figures:
        """What the simulation says of a load."""
        basis = machine.basis(self.here.deployment)
        times = StepTimes(self.here.deployment, basis.efficiency)
        warmup = [request(-1 - number, prompt, output, 100) for number in range(WARMUP)]
        return figures_of(play_fleet([warm_replica(self.config, times, warmup)], source(times, basis.apart)).requests)


class Loop:
    """Requests of a closed loop."""

    def __init__(self, server: Server, concurrency: int, prompt: int, output: int) -> None:
        self.kept, self.what = server.here.kept, f"HTTP, {concurrency} at a time, {prompt} → {output}"
        self.server, self.concurrency, self.lengths = server, concurrency, (prompt, output)
        self.count = max(12, 4 * concurrency)
        self.rounds: list[Figures] = []

    def measure(self) -> None:
        """A run."""
        load = "--concurrency", str(self.concurrency)
        found = self.server.bench(*self.lengths, self.count, self.server.next_seed(), *load)
        self.rounds.append(seen(found))
        self.server.most = found["request_rate"]

    @property
    def measured(self) -> Figures:
        """The mean of all runs."""
        return mean(self.rounds)

    def told(self, machine: OwnMachine) -> Figures:
        """What the simulation says of one."""
        requests = [request(number, *self.lengths, 100) for number in range(self.count)]
        return self.server.told(
            machine,
            *self.lengths,
            lambda times, apart: ClosedLoop(requests, self.concurrency, times.after, apart),
        )


class Coming:
    """Requests that come at random, at a part of the rate that a closed loop finished."""

    def __init__(self, server: Server, part: float, prompt: int, output: int) -> None:
        self.kept, self.server, self.part, self.lengths = server.here.kept, server, part, (prompt, output)
        self.rounds: list[Figures] = []
        self.seeds: list[int] = []
        # The same in all turns: a part of what the first one's closed loops said.
        self._rate = ""

    @property
    def what(self) -> str:
        """In words."""
        prompt, output = self.lengths
        return f"HTTP, {float(self._rate):.2f} a second, {prompt} → {output}"

    def measure(self) -> None:
        """A run."""
        self._rate = self._rate or f"{self.part * self.server.most:.3f}"
        self.seeds.append(self.server.next_seed())
        self.rounds.append(seen(self.server.bench(*self.lengths, COMING, self.seeds[-1], "--rate", self._rate)))

    def told(self, machine: OwnMachine) -> Figures:
        """The mean of what the simulation says of the same times of arrival."""
        return mean([self._told(machine, seed) for seed in self.seeds], statistics.fmean)

    @property
    def measured(self) -> Figures:
        """The mean of all runs, whose requests come at other times in each."""
        return mean(self.rounds, statistics.fmean)

    def _told(self, machine: OwnMachine, seed: int) -> Figures:
        coming = itertools.islice(arrival_times(Open(float(self._rate)), 1000 * seed + 1), COMING)
        arrivals = [Arrival(at, request(number, *self.lengths, 100)) for number, at in enumerate(coming)]
        return self.server.told(machine, *self.lengths, lambda _times, _apart: Given(arrivals))


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
    summary: dict[str, Any] = benched(address, *load)["stages"][0]["summary"]
    return summary


def benched(address: str, *load: str) -> dict[str, Any]:
    """All that `penstock bench serve` tells."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        usual = ("--prompts", "ids", "--warmup", str(WARMUP), "--ignore-eos")
        command = [*PENSTOCK, "bench", "serve", address, *usual, *load, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def seen(summary: dict[str, Any]) -> Figures:
    """Of what the load generator measured."""
    return Figures(*(summary[name]["mean"] for name in ("ttft", "tpot", "e2e")))


def mean(rounds: Sequence[Figures], of: Callable[[Sequence[float]], float] = undisturbed_mean) -> Figures:
    """Of each figure; without another way, as calibrations take it."""
    return Figures(*(of(values) for values in zip(*rounds, strict=True)))


def points_of(model: str, name: str, calibrated: str, others: Sequence[str], seconds: float) -> list[Point]:
    """One model: calibrated in one format, and asked in all."""
    here = Here(model, calibrated)
    engines = [here, *(Here(model, kept) for kept in others)]
    for each in engines[1:]:
        each.on(here.deployment.device)
    steps: list[list[MeasuredStep]] = []
    answering: list[Answering] = []
    options = ("--quantization", calibrated, "--speculative", "off", "--kv-cache-memory", str(POOL))
    with serving(model, (*options, "--log-level", "warning")) as started:
        started.wait_until_ready()
        server = Server(model, here, started.port)
        asked: list[Batch | Loop | Coming] = [Batch(each, *sizes) for each in engines for sizes in BATCHES]
        asked += [Loop(server, *sizes) for sizes in CLOSED]
        asked += [Coming(server, part, *CLOSED[-1][1:]) for part in OPEN]
        for turn in range(TURNS):
            print(f"{name}: turn {turn + 1} of {TURNS}", file=sys.stderr, flush=True)
            steps.append(here.steps(seconds))
            answering.append(measure_answering(None))
            for each in asked:
                each.measure()
    machine = here.calibrated(steps, answering)
    return [Point(name, each.kept, each.what, each.measured, each.told(machine)) for each in asked]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--large", type=Path, required=True, help="the checkpoint of 1.24 billion parameters")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a turn's part of a calibration takes")
    parser.add_argument("--json", type=Path, help="write all points there")
    arguments = parser.parse_args()
    points: list[Point] = []
    models = (
        ("haiku", "haiku", "none", ("int8",)),
        (str(arguments.large), "1.24B", "int8", ("none", "int4")),
    )
    for model, name, calibrated, others in models:
        points += points_of(model, name, calibrated, others, arguments.seconds)
        if arguments.json is not None:
            # What was measured is kept, whatever becomes of the next model.
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(points), indent=1))
    header = ("model", "weights", "requests", *(f"{f} ms, estimated" for f in ("TTFT", "ITL", "E2E")))
    rows = [
        (point.model, point.kept, point.what, *(_pair(point, figure) for figure in Figures._fields)) for point in points
    ]
    off = _medians([[point.off(figure) for point in points] for figure in Figures._fields])
    reporting.report(f"{len(points)} configurations; off in the median: {off}", header, rows)


def _medians(errors: Sequence[Sequence[float]]) -> str:
    named = zip(("TTFT", "ITL", "E2E"), errors, strict=True)
    return ", ".join(f"{name} {statistics.median(values):.1%}" for name, values in named)


def _pair(point: Point, figure: str) -> str:
    measured, told = getattr(point.measured, figure) * 1e3, getattr(point.told, figure) * 1e3
    return f"{measured:,.1f}, {told:,.1f} ({told / measured - 1:+.0%})"


if __name__ == "__main__":
    main()
