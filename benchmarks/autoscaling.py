"""What do rules that change the number of replicas reach, and cost? On a trace, in simulated time.

    python benchmarks/autoscaling.py TRACE [--from 0] [--hours 24] [--streams 4] [--peak 10] [--on 4xh100]

TRACE is a file of requests with their times and lengths (Azure's columns or Mooncake's fields). Each of `--streams`
groups of users sends it again and again, every time from another moment of it on. The part of the groups that sends
follows the day: the least at 2, the most at 14 o'clock. Half an hour past noon, `--peak` times as many send for a
quarter of an hour; it takes `--ramp` seconds until they do, and until they do no longer. Replicas are of a dense model
with 70 billion parameters; their steps take what the latency model says, and are as short as the targets ask. All
rules see the same requests. They are played at the same time, on all cores.

The oracle knows what comes. In each minute it has the fewest replicas, started in time, with which a queue of the
requests' work is short enough, and of that a multiple, the least that lets 99% of them be answered within the targets.
The calm oracle does the same, and keeps what it will need again within some minutes, as few as let it turn from more
to fewer or back at most twice an hour.
"""

import argparse
import math
import multiprocessing
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path
from typing import NamedTuple

import msgspec
import reporting
from simulated_fleet import MODEL

from penstock.bench.load.traces import TraceRequest, read_trace
from penstock.core.config import SchedulerConfig
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.observability.settings import AIM
from penstock.planning.calibration import prior_basis
from penstock.planning.deploying import deploy, replica_of
from penstock.planning.hardware import machine_of
from penstock.planning.memory import memory_of
from penstock.routing.autoscaling import Autoscaler, Rules
from penstock.routing.policies import policy_of
from penstock.routing.scaling import Targets, work_of
from penstock.routing.speed import Speed
from penstock.scheduler.build import build_scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.scaled import Decide, Ground, PlayedScaled, Watched, play_scaled, reversals
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes

HOUR = 3600.0
PEAK_AT, PEAK_SECONDS = 12.5 * HOUR, 900.0
MINUTE = 60.0
ENOUGH, STEP, MOST_REVERSALS = 0.99, 0.1, 2.0
MOST_TOKENS = 32768


class Coming(NamedTuple):
    at: float
    prompt: int
    output: int


class Reached(NamedTuple):
    """What a rule did; `within`: the part of the requests that were answered within targets."""

    within: float
    replica_hours: float
    reversals: float
    most_reversals: int
    most: int


class Setting(NamedTuple):
    """What all rules are tried on."""

    make: Callable[[int], Replica]
    requests: Sequence[Coming]
    targets: Targets
    ground: Ground

    def play(self, decide: Decide) -> PlayedScaled:
        arrivals = (_arrival(number, each) for number, each in enumerate(self.requests))
        return play_scaled(self.make, Given(arrivals), decide, policy_of("least-loaded"), self.ground)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--from", dest="begin", type=float, default=0.0, help="o'clock (default 0)")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--streams", type=float, default=4, help="that send in the mean (default 4)")
    parser.add_argument("--peak", type=float, default=10.0, help="times as many for a quarter of an hour (default 10)")
    parser.add_argument("--ramp", type=float, default=300.0, help="seconds until so many send (default 300)")
    parser.add_argument("--on", default="4xh100")
    parser.add_argument("--start-seconds", type=float, default=60.0, help="until a replica answers (default 60)")
    parser.add_argument("--slow-starts", type=float, nargs="*", default=[], help="seconds of the first starts instead")
    parser.add_argument("--deaths", type=float, nargs="*", default=[], help="hours at which the fullest replica dies")
    parser.add_argument("--ttft", type=float, default=2.0, help="seconds (default 2)")
    parser.add_argument("--tpot", type=float, default=0.08, help="seconds (default 0.08)")
    parser.add_argument("--rules", nargs="*", default=[], help="only these")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    requests = day(list(read_trace(arguments.trace)), arguments)
    targets = Targets(arguments.ttft, arguments.tpot)
    make, speed = replicas(arguments.on, targets)
    starts = (*arguments.slow_starts, arguments.start_seconds)
    deaths = tuple((at - arguments.begin) * HOUR for at in arguments.deaths)
    setting = Setting(make, requests, targets, Ground(start_seconds=starts, deaths=deaths))
    # All begin with as many as the first minutes need.
    first = max(fewest(setting, speed, 1.0)[:2])
    setting = setting._replace(ground=msgspec.structs.replace(setting.ground, first=first))
    found = played_together(setting, speed, arguments.start_seconds, arguments.rules)
    oracle = found["oracle"].replica_hours
    rows = [_row(name, each, oracle) for name, each in found.items()]
    spread = f"{len(requests):,} requests in {arguments.hours:g} hours, {arguments.streams:g} × {arguments.trace.name}"
    header = ["rule", "within targets", "replica hours", "of the oracle's", "reversals an hour", "most", "replicas"]
    print(f"\n## Rules for the number of replicas: {spread}\n\n{reporting.table(header, rows)}")


def played_together(setting: Setting, speed: Speed, ahead: float, names: Sequence[str]) -> dict[str, Reached]:
    """What oracles and the rules of these names reach, or all rules: each in a process of its own."""
    PLAYS["oracle"] = partial(enough_of, setting, speed, ahead)
    PLAYS["calm oracle"] = partial(enough_of, setting, speed, ahead, calm=True)
    for name, decide in all_rules(setting, ahead):
        if not names or name.split(",")[0] in names:
            PLAYS[name] = partial(setting.play, decide)
    with ProcessPoolExecutor(reporting.cores(), multiprocessing.get_context("fork")) as pool:
        return dict(zip(PLAYS, pool.map(partial(_reach, setting.targets), PLAYS), strict=True))


# A forked process has what cannot be sent to it.
PLAYS: dict[str, Callable[[], PlayedScaled]] = {}


def _reach(targets: Targets, name: str) -> Reached:
    played = PLAYS[name]()
    hours = max(1.0, played.seconds / HOUR)
    return Reached(
        played.attainment(targets.ttft, targets.tpot),
        played.replica_seconds / HOUR,
        len(played.reversals) / hours,
        played.most_reversals,
        max((number for _, number in played.changes), default=0),
    )


def day(trace: Sequence[TraceRequest], arguments: argparse.Namespace) -> list[Coming]:
    """What all groups send that send at a time, from the beginning of the simulation on."""
    luck, length = random.Random(arguments.seed), ceil(max(each.at for each in trace)) or 1
    begin, seconds = arguments.begin * HOUR, ceil(arguments.hours * HOUR)
    groups = [arguments.streams * sending(begin + at, arguments.peak, arguments.ramp) for at in range(seconds)]
    found: list[Coming] = []
    for number in range(ceil(max(groups))):
        for turn in range(0, seconds, length):
            moved = luck.uniform(0.0, length)
            if number >= max(groups[turn : turn + length]):
                continue
            for each in trace:
                at = turn + (each.at + moved) % length
                if at < seconds and number + 0.5 < groups[int(at)]:
                    found.append(Coming(at, min(each.prompt, MOST_TOKENS), max(1, each.output)))
    return sorted(found)


def sending(at: float, peak: float, ramp: float) -> float:
    """The part of the groups that sends at a time of the day, in seconds; 1 in the mean of a day without its peak."""
    usual = 1 + 0.7 * math.cos((at / HOUR - 14) / 24 * 2 * math.pi)
    inside = min(at - PEAK_AT, PEAK_AT + PEAK_SECONDS - at)
    return usual * (1 + (peak - 1) * min(1.0, max(0.0, inside / ramp if ramp else float(inside >= 0))))


def replicas(on: str, targets: Targets) -> tuple[Callable[[int], Replica], Speed]:
    """What makes them, with the scheduler that a server has for these targets; and how fast one is."""
    machine, split = replica_of(machine_of(on))
    deployment = deploy(MODEL, machine, split, kv_cache_dtype="bfloat16")
    basis = prior_basis(deployment)
    memory = memory_of(deployment, MOST_TOKENS, 8192)
    cache = msgspec.structs.replace(cache_of(deployment, memory.cache_bytes), prefix_caching=False)
    config = SchedulerConfig(max_model_len=2 * MOST_TOKENS, target_itl=AIM * targets.tpot, bound_batch=True)
    times = StepTimes(deployment, basis.efficiency, basis.varied, 0)

    def make(number: int) -> Replica:
        return Replica(build_scheduler(config, cache), times, number)

    return make, make(0).speed


def _arrival(number: int, each: Coming) -> Arrival:
    # Nothing is cached, so that all prompts may be alike.
    request = Request(
        request_id=number,
        prompt_token_ids=[1] * each.prompt,
        sampling=SamplingParams(max_tokens=each.output, ignore_eos=True),
    )
    return Arrival(each.at, request)


def enough_of(setting: Setting, speed: Speed, ahead: float, *, calm: bool = False) -> PlayedScaled:
    """What an oracle reaches with the least multiple of a queue of work that is enough."""
    found = None
    factor = 1.0
    while True:
        wanted = fewest(setting, speed, factor)
        played = setting.play(known(calmed(wanted) if calm else wanted, ahead))
        enough = played.attainment(setting.targets.ttft, setting.targets.tpot) >= ENOUGH
        name = "calm oracle" if calm else "oracle"
        print(f"{name}, {factor:.2f}: {'enough' if enough else 'too few'}", file=sys.stderr, flush=True)
        if not enough and found is not None:
            return found
        if enough and factor > 1.0:
            return played
        found = played if enough else None
        factor += -STEP if enough else STEP


def known(wanted: Sequence[int], ahead: float) -> Decide:
    """As many as are wanted in the minutes from now on until those that start now are there."""

    def decide(moment: Watched) -> int:
        first, last = int(moment.at / MINUTE), int((moment.at + ahead + 5) / MINUTE)
        return max([1, *wanted[first : last + 1]])

    return decide


def calmed(wanted: Sequence[int]) -> list[int]:
    """What is wanted, and kept where as many are wanted again within some minutes: as few that it seldom turns."""
    for minutes in count(1):
        found = closed(wanted, minutes)
        if len(reversals(list(enumerate(found)))) <= MOST_REVERSALS * len(wanted) / 60:
            return found
    raise AssertionError("a number that never changes never turns")


def closed(wanted: Sequence[int], minutes: int) -> list[int]:
    """The most of all minutes that are near, and of that the least (a morphological closing)."""

    def near(numbers: Sequence[int], of: Callable[[Sequence[int]], int]) -> list[int]:
        return [of(numbers[max(0, at - minutes) : at + minutes + 1]) for at in range(len(numbers))]

    return near(near(wanted, max), min)


def fewest(setting: Setting, speed: Speed, factor: float) -> list[int]:
    """For each minute, the fewest replicas with which no request's work waits beyond the target, as a queue of work."""
    minutes: list[list[tuple[float, float]]] = [[] for _ in range(int(setting.requests[-1].at / MINUTE) + 1)]
    for each in setting.requests:
        minutes[int(each.at / MINUTE)].append((each.at, work_of(speed, each.prompt, each.output, each.prompt)))
    found, waiting, since = [], 0.0, 0.0
    for number, minute in enumerate(minutes):
        for replicas in count(1):
            left, late = after(minute, waiting, since, replicas / factor, setting.targets.ttft / 2)
            if late <= 0.005 * len(minute):
                break
        found.append(replicas)
        waiting, since = left, minute[-1][0] if minute else number * MINUTE
    return found


def after(
    minute: Sequence[tuple[float, float]], waiting: float, since: float, replicas: float, most: float
) -> tuple[float, int]:
    """The work that waits behind a minute, and how many of its requests waited longer than that."""
    late = 0
    for at, work in minute:
        waiting = max(0.0, waiting - (at - since) * replicas) + work
        since = at
        late += waiting / replicas > most
    return waiting, late


def all_rules(setting: Setting, start_seconds: float) -> list[tuple[str, Decide]]:
    scaler = Autoscaler(Rules(targets=setting.targets, start_seconds=start_seconds))
    return [
        ("penstock", lambda moment: scaler.decide(moment).replicas),
        ("hpa-cpu, 80%", Horizontal(0.8, Busy(), every=15.0)),
        ("hpa-queue, 10 per replica", Horizontal(10.0, lambda moment: moment.running + moment.held, every=15.0)),
        ("keda, 10 per replica", Horizontal(10.0, lambda moment: moment.running + moment.held, every=30.0)),
    ]


class Busy:
    """The part of the time that replicas computed, summed over them, since this was asked before."""

    def __init__(self) -> None:
        self._at = self._busy = 0.0

    def __call__(self, moment: Watched) -> float:
        passed, busy = moment.at - self._at, moment.busy - self._busy
        self._at, self._busy = moment.at, moment.busy
        return max(0.0, busy / passed) if passed else 0.0


class Horizontal:
    """Kubernetes' HorizontalPodAutoscaler with its defaults (autoscaling/v2): ⌈sum of a metric / target⌉.

    It changes nothing within a tenth of the target, doubles at most or adds four in 15 s, and goes down to the most of
    what the last 300 s asked for. KEDA has it do so with a metric that it polls every 30 s.
    """

    def __init__(self, target: float, metric: Callable[[Watched], float], every: float) -> None:
        self._target, self._metric, self._every = target, metric, every
        self._next = 0.0
        self._asked: list[tuple[float, int]] = []
        self._count = 0

    def __call__(self, moment: Watched) -> int:
        have = moment.ready + moment.starting
        self._count = self._count or have
        if moment.at < self._next:
            return self._count
        self._next = moment.at + self._every
        value = self._metric(moment)
        ratio = value / self._target / max(1, moment.ready)
        asked = have if abs(ratio - 1) <= 0.1 else max(1, ceil(value / self._target))
        self._asked = [each for each in self._asked if each[0] > moment.at - 300.0] + [(moment.at, asked)]
        if asked > have:
            self._count = min(asked, max(2 * have, have + 4))
        else:
            self._count = min(have, max(each for _, each in self._asked))
        return self._count


def _row(name: str, each: Reached, oracle: float) -> list[str]:
    return [
        name,
        f"{each.within:.2%}",
        f"{each.replica_hours:.1f}",
        f"{each.replica_hours / oracle:.2f}",
        f"{each.reversals:.2f}",
        str(each.most_reversals),
        str(each.most),
    ]


if __name__ == "__main__":
    main()
