"""A disk beside a simulated pool: what comes back from there, when, and what has to go."""

from collections.abc import Sequence

import pytest

from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.kv import LayerState, Plane, Visibility, lay_out
from penstock.core.plan import StepPlan
from penstock.loading.hub import resolve_model
from penstock.loading.json_file import read_json
from penstock.planning.disk import Disk
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.scheduler.build import build_scheduler
from penstock.simulation.disk import SimulatedDisk
from penstock.simulation.fleet import Played, play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes
from support.simulation import make_request

DEPLOYMENT = Deployment(shape_of(read_json(resolve_model("haiku") / "config.json")), device_of("h100"))
SPEC = lay_out([LayerState((Plane("tokens", (65536,), "uint8"),), Visibility())], 16)
SLOT = SPEC.groups[0].width * SPEC.block_bytes
# A token of a prompt takes so many seconds to compute, and a block an eighth of that to read.
TOKEN = 0.001
FAST = Disk(1e12, 8 * SLOT / (16 * TOKEN), 8 * SLOT / (16 * TOKEN))


class Times(StepTimes):
    """Steps that take as long as their tokens."""

    def __init__(self) -> None:
        super().__init__(DEPLOYMENT, TYPICAL)
        self.after = 0.0

    def of(self, plan: StepPlan) -> tuple[float, float]:
        return TOKEN * plan.num_tokens, 0.0


def play(prompts: Sequence[list[int]], disk: Disk | None, apart: float = 10.0) -> Played:
    """Prompts one behind the other, each of which ends before the next comes; the pool has room for one."""
    limits = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=512, max_model_len=512, target_itl=None)
    scheduler = build_scheduler(limits, CacheConfig(SPEC, 17))
    beside = None if disk is None else SimulatedDisk(disk, scheduler)
    replica = Replica(scheduler, Times(), 0, beside)
    arrivals = [Arrival(apart * number, make_request(number, tokens, 2)) for number, tokens in enumerate(prompts)]
    return play_fleet([replica], Given(arrivals))


def prompt(number: int, length: int = 257) -> list[int]:
    return [number * 10_000 + place for place in range(length)]


def cached(played: Played) -> list[int]:
    return [each.cached_tokens for each in played.requests]


def test_what_the_pool_has_lost_is_read_in_the_time_that_it_takes() -> None:
    prompts = [prompt(each) for each in (0, 1, 0)]
    without, found = play(prompts, None), play(prompts, FAST)
    assert cached(without) == [0, 0, 0] and cached(found) == [0, 0, 256]
    computed, read = without.requests[2], found.requests[2]
    assert computed.first - computed.arrived == pytest.approx(257 * TOKEN)
    assert read.first - read.arrived == pytest.approx(256 / 8 * TOKEN + TOKEN)
    figures = found.figures
    assert (figures.disk_hit_tokens, figures.disk_written, figures.disk_dropped) == (256, 32, 0)
    # Nobody computes while the disk is waited for.
    assert figures.busy == pytest.approx(without.figures.busy - 256 * TOKEN)
    assert figures.steps == without.figures.steps


def test_those_that_were_used_least_recently_make_room() -> None:
    """There is room for two prompts of 16 blocks each."""
    prompts = [prompt(each) for each in (0, 1, 2, 1, 3, 1, 2, 3)]
    room = Disk(32 * SLOT, FAST.read, FAST.write)
    assert cached(play(prompts, FAST)) == [0, 0, 0, 256, 0, 256, 256, 256]
    # What was read lately stays, and the others go by turns.
    assert cached(play(prompts, room)) == [0, 0, 0, 256, 0, 256, 0, 0]


def test_what_is_computed_faster_is_not_read() -> None:
    prompts = [prompt(each) for each in (0, 1, 0, 1)]
    slow = Disk(1e12, SLOT / (32 * TOKEN), FAST.write)
    # Nothing was read before the third, so that this is tried.
    assert cached(play(prompts, slow)) == [0, 0, 256, 0]


def test_what_comes_too_fast_is_not_written() -> None:
    """Of 256 MiB that may be on their way, a block a second is written."""
    most = (256 << 20) // SLOT
    count = most // 16 + 3
    found = play([prompt(each) for each in range(count)], Disk(1e12, FAST.read, SLOT / 1e9), apart=1.0)
    assert found.figures.disk_written == 0
    assert found.figures.disk_dropped == count * 16 - most


def test_requests_that_come_while_a_disk_is_waited_for_are_served() -> None:
    prompts = [prompt(each) for each in (0, 1, 2)]
    slow = Disk(1e12, SLOT / 0.02, FAST.write)
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=512, max_model_len=512, target_itl=None)
    scheduler = build_scheduler(limits, CacheConfig(SPEC, 20))
    replica = Replica(scheduler, Times(), 0, SimulatedDisk(slow, scheduler))
    arrivals = [Arrival(10.0 * number, make_request(number, tokens, 2)) for number, tokens in enumerate(prompts)]
    # The first again, whose blocks are read for 0.32 s; and a short one meanwhile.
    arrivals += [Arrival(30.0, make_request(3, prompts[0], 2)), Arrival(30.06, make_request(4, prompt(9, 20), 2))]
    figures = (played := play_fleet([replica], Given(arrivals))).figures
    read, other = played.requests[3:]
    # The pool still had a few of them.
    assert read.cached_tokens == 256 and 200 < figures.disk_hit_tokens <= 256
    assert read.first == pytest.approx(30.0 + figures.disk_hit_tokens / 16 * 0.02 + TOKEN)
    assert 30.06 < other.first < 30.15
