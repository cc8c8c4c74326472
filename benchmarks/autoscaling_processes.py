"""Do numbers of replicas follow a load as the simulation says? Local processes and the simulation, on one trace.

    PYTHONPATH=tests python benchmarks/autoscaling_processes.py TRACE [--minutes 10] [--most 3] [--part 0.6]

`penstock fleet up` serves `haiku` by as many replicas as its requests need, each with one thread, and `penstock bench
serve` replays the trace's requests, shortened to a quarter of their tokens. The trace's times are changed so that its
requests ask for `--part` replicas in the mean, by what a calibration with one thread says. The simulation plays the
same requests by the same rules: replicas whose steps take what the calibration says, and which start in the time that
the fleet's took in the median.
"""

import argparse
import bisect
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import reporting
from autoscaling import Coming
from planning_own import Here, benched, request
from serving import HOST

from penstock.assembly.prepare import prepare
from penstock.bench.load.traces import read_trace, scaled
from penstock.cli.answering import measure_answering
from penstock.cli.remote import over_socket
from penstock.configuration.options import EngineOptions
from penstock.fleet.control import SOCKET
from penstock.fleet.description import ModelDescription, read_description
from penstock.fleet.following import rules_of
from penstock.fleet.status import FleetStatus
from penstock.routing.autoscaling import Autoscaler
from penstock.routing.policies import policy_of
from penstock.routing.scaling import work_of
from penstock.scheduler.build import build_scheduler
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.scaled import Ground, PlayedScaled, play_scaled
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes
from support.fleets import Fleet, fleet_up
from support.waiting import PATIENCE

LENGTHS = 0.25
# How requests are given to replicas, in either.
POLICY = "least-loaded"
TTFT, TPOT = 2.0, 0.1
OPTIONS = {"speculative": "off", "kv_cache_memory": 1 << 29}
# No replica refuses a request, however long its queue gets.
UNBOUNDED = {"max_queued_requests": 100_000, "max_queued_tokens": 100_000_000}
CALIBRATED_SECONDS, LOOK_SECONDS = 40.0, 0.5


class Followed(NamedTuple):
    """What a fleet did.

    Attributes:
        wanted: how many replicas there were to be, behind the seconds at which that began, in ascending order.
        good: part of the requests within the service levels.
    """

    wanted: Sequence[tuple[float, int]]
    good: float

    def at(self, seconds: float) -> int:
        """How many replicas there were to be at a time."""
        return self.wanted[max(0, bisect.bisect(self.wanted, seconds, key=lambda each: each[0]) - 1)][1]

    def within(self, seconds: float) -> list[tuple[float, int]]:
        """The changes from the first request on, until a time."""
        found = [(0.0, self.at(0.0))]
        for at, count in self.wanted:
            if 0 < at < seconds and count != found[-1][1]:
                found.append((at, count))
        return found


class Looking:
    """Notes what a fleet tells of itself, again and again, while the block runs.

    Attributes:
        wanted: how many replicas there were to be, and when, in seconds since 1970.
        starts: seconds that replicas were old when they were seen to be ready for the first time.
    """

    def __init__(self, fleet: Fleet) -> None:
        name = read_description(fleet.file).name
        self._socket = str(fleet.file.parent / "data" / "fleets" / name / SOCKET)
        self._over, self._thread = threading.Event(), threading.Thread(target=self._work)
        self.wanted: list[tuple[float, int]] = []
        self.starts: dict[str, float] = {}

    def __enter__(self) -> "Looking":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _work(self) -> None:
        # Those that are ready at once were started before.
        known = {each.name for each in self._look().replicas if each.phase == "ready"}
        while not self._over.wait(LOOK_SECONDS):
            status = self._look()
            self.wanted.append((time.time(), status.models[0].wanted))
            for each in status.replicas:
                if each.phase == "ready" and each.name not in known:
                    known.add(each.name)
                    self.starts[each.name] = each.seconds

    def _look(self) -> FleetStatus:
        return over_socket(self._socket, "GET", "/status", FleetStatus)


class Simulated:
    """Replicas of the model with one thread, as a calibration says they are."""

    def __init__(self, model: str) -> None:
        options: dict[str, Any] = {**OPTIONS, "model": model, "threads": 1}
        here = Here(model, "none", threads=1)
        basis = here.calibrated([here.steps(CALIBRATED_SECONDS)], [measure_answering(None)]).basis(here.deployment)
        self._times = StepTimes(here.deployment, basis.efficiency, basis.varied)
        self._config = prepare(EngineOptions.of(**options), api_beside=True).config

    def make(self, number: int) -> Replica:
        """One of them."""
        return Replica(build_scheduler(self._config.scheduler, self._config.cache), self._times, number)

    def work(self, lines: Sequence[Coming]) -> float:
        """Seconds of a replica that requests take."""
        speed = self.make(0).speed
        return sum(work_of(speed, each.prompt, each.output, each.prompt) for each in lines)

    def play(
        self, model: ModelDescription, lines: Sequence[Coming], scale: float, start_seconds: float
    ) -> PlayedScaled:
        """Serve requests of a trace by as many as its rules say. The trace's times are multiplied by `scale`."""
        scaler = Autoscaler(rules_of(model, start_seconds))
        ground = Ground(first=model.bounds.least, start_seconds=(start_seconds,))
        arrivals = [
            Arrival(each.at * scale, request(number, each.prompt, each.output, 100))
            for number, each in enumerate(lines)
        ]
        return play_scaled(
            self.make, Given(arrivals), lambda moment: scaler.decide(moment).replicas, policy_of(POLICY), ground
        )


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("trace", type=Path, help="a trace as Azure publishes them")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=3, help="replicas (default 3)")
    parser.add_argument("--part", type=float, default=0.6, help="replicas that are asked for in the mean (default 0.6)")
    parser.add_argument("--down-seconds", type=float, default=60.0, help="before a replica ends (default 60)")
    parser.add_argument("--port", type=int, default=8093, help="of the gateway (default 8093)")
    arguments = parser.parse_args()
    seconds, simulated = arguments.minutes * 60, Simulated("haiku")
    lines, scale = wanted_of(arguments.trace, simulated, seconds, arguments.part)
    with tempfile.TemporaryDirectory() as folder, fleet_up(Path(folder), described(arguments)) as fleet:
        with Looking(fleet) as looking:
            real = replayed(looking, arguments, len(lines), scale)
        model = read_description(fleet.file).model[0]
    if not looking.starts:
        raise SystemExit("No further replica was ready in time; give more --minutes, or a greater --part.")
    start_seconds = statistics.median(looking.starts.values())
    played = simulated.play(model, lines, scale, start_seconds)
    told = Followed([(0.0, model.bounds.least), *played.changes], played.attainment(TTFT, TPOT))
    seconds = lines[-1].at * scale
    rows = [_row("processes", real, seconds), _row("simulation", told, seconds)]
    same = sum(real.at(at) == told.at(at) for at in range(int(seconds))) / int(seconds)
    reporting.report(
        f"{len(lines):,} requests in {seconds / 60:.1f} minutes",
        ("", f"within {TTFT:g} s and {TPOT * 1000:g} ms a token", "replicas in the mean", "most", "changes", "when"),
        rows,
        f"Both want the same number in {same:.0%} of the time. Of {len(looking.starts)} starts the median is "
        f"{start_seconds:.1f} s.",
    )


def wanted_of(trace: Path, simulated: Simulated, seconds: float, part: float) -> tuple[list[Coming], float]:
    """A trace's first requests, with as much work as a part of a time, and by what its times are multiplied for it."""
    lines: list[Coming] = []
    work = 0.0
    for each in read_trace(trace):
        # As `penstock bench serve --length-scale` makes them.
        lines.append(Coming(each.at, scaled(each.prompt, LENGTHS), scaled(each.output, LENGTHS)))
        work += simulated.work(lines[-1:])
        if work >= part * seconds:
            return lines, seconds / lines[-1].at
    raise SystemExit(f"The trace asks for {work / seconds:.2f} replicas in {seconds / 60:g} minutes, not for {part:g}.")


def described(arguments: argparse.Namespace) -> str:
    """The fleet."""
    options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in {**OPTIONS, **UNBOUNDED}.items())
    return (
        f'[gateway]\nport = {arguments.port}\npolicy = "{POLICY}"\n'
        f"hold = {{ requests = 100000, seconds = {PATIENCE:g} }}\n"
        f'[[model]]\nname = "haiku"\nreplicas = {{ least = 1, most = {arguments.most} }}\n'
        f'slo = "ttft={TTFT}s,tpot={TPOT}s"\ndown_seconds = {arguments.down_seconds:g}\n'
        f"options = {{ {options} }}\n"
    )


def replayed(looking: Looking, arguments: argparse.Namespace, count: int, scale: float) -> Followed:
    """What the fleet did with a trace's first requests. Prompts are like no others."""
    load = ["--trace", str(arguments.trace), "--requests", str(count), "--time-scale", f"{scale:.6g}"]
    load += ("--length-scale", str(LENGTHS), "--slo", f"ttft={TTFT}s,tpot={TPOT}s")
    found = benched(f"http://{HOST}:{arguments.port}", *load)
    summary = found["stages"][0]["summary"]
    wanted = [(at - found["began"], number) for at, number in looking.wanted]
    return Followed(wanted, summary["good"] / summary["sent"])


def _row(name: str, followed: Followed, seconds: float) -> tuple[str, str, float, int, int, str]:
    changes = followed.within(seconds)
    spans = zip(changes, [at for at, _ in changes[1:]] + [seconds], strict=True)
    mean = sum(number * (end - at) for (at, number), end in spans) / seconds
    when = ", ".join(f"{number} at {at:.0f} s" for at, number in changes[1:])
    return name, f"{followed.good:.1%}", mean, max(number for _, number in changes), len(changes) - 1, when


if __name__ == "__main__":
    main()
