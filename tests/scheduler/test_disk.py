"""Prefixes that are kept on a disk: what is written, what comes back instead of being computed, and what fails."""

import random

import pytest

from penstock.core.facts import Fetched, TierCame, TierFound
from penstock.core.plan import Shelved
from support.made_up_model import made_up_spec
from support.simulation import Disk, Simulation, config, make_request, prompt


class Silent(random.Random):
    """No transfer between memories is over."""

    def random(self) -> float:
        return 0.0


def one(disk: Disk, request_id: int = 0, blocks: int = 40, **options: object) -> Simulation:
    """A new server, which has what was left on the disk, answers one request."""
    simulation = Simulation(blocks, **{"config": config(2, 64), **options}, disk=disk)
    simulation.submit(make_request(request_id, prompt(30), 6))
    simulation.run()
    return simulation


def moved(simulation: Simulation) -> tuple[int, int]:
    """How many slots were written to the disk, and read from there."""
    transfers = [transfer for plan in simulation.plans for transfer in plan.transfers]
    written = sum(transfer.target.store == "disk" for transfer in transfers)
    return written, sum(transfer.source.store == "disk" for transfer in transfers)


def test_a_prompt_is_not_computed_again_after_a_restart() -> None:
    disk: Disk = {}
    first, second = one(disk), one(disk)
    # 35 positions are computed, in blocks of 4.
    assert moved(first) == (8, 0) and len(disk) == 8
    assert moved(second) == (0, 7)
    assert (first.cached_tokens[0], second.cached_tokens[0]) == (0, 28)
    assert second.executor.computed_tokens == first.executor.computed_tokens - 28
    assert second.outputs == first.outputs


@pytest.mark.parametrize("windows", [(None, 5), (3,), (9, None, 9)])
def test_groups_with_windows_need_their_last_one_only(windows: tuple[int | None, ...]) -> None:
    disk: Disk = {}
    one(disk, windows=windows, blocks=80)
    again = one(disk, windows=windows, blocks=80)
    assert again.cached_tokens[0] == 28
    assert 0 < moved(again)[1] < 7 * len(windows) or None not in windows


def test_records_come_back() -> None:
    disk: Disk = {}
    spec = made_up_spec(4, 8)
    one(disk, spec=spec, blocks=200)
    assert one(disk, spec=spec, blocks=200).cached_tokens[0] == 24


def test_what_the_pool_has_lost_comes_back() -> None:
    """A pool for one request at a time: the first prompt is evicted by the second, and read by the third."""
    disk: Disk = {}
    simulation = Simulation(10, config=config(1, 64), disk=disk)
    simulation.submit(
        make_request(0, prompt(30), 6), make_request(1, prompt(30, 100), 6), make_request(2, prompt(30), 6)
    )
    simulation.run()
    assert [simulation.cached_tokens[each] for each in range(3)] == [0, 0, 28]
    assert simulation.outputs[2, 0] == simulation.outputs[0, 0]


def test_salts_share_nothing() -> None:
    disk: Disk = {}
    simulation = Simulation(40, disk=disk)
    simulation.submit(make_request(0, prompt(30), 6, salt="one"))
    simulation.run()
    other = Simulation(40, disk=disk)
    other.submit(make_request(0, prompt(30), 6, salt="other"), make_request(1, prompt(30), 6))
    other.run()
    assert moved(other)[1] == 0


@pytest.mark.parametrize("lost", [0, 3, 6])
def test_a_block_that_is_gone_makes_the_hit_shorter(lost: int) -> None:
    """What stands before it is used, and what stands behind it is computed."""
    disk: Disk = {}
    one(disk)
    again = Simulation(40, config=config(2, 64), disk=disk)
    del disk[list(disk)[lost]]
    again.submit(make_request(0, prompt(30), 6))
    again.run()
    rows = [row for plan in again.plans for row in plan.rows]
    assert rows[0].start == 4 * lost
    # And it is written anew.
    assert len(disk) == 8


def test_nothing_waits_for_what_is_written() -> None:
    """However late the disk is, requests end; and what is too much for it is dropped, and told."""
    simulation = Simulation(40, disk={}, late=Silent(), most_writing=3)
    simulation.submit(make_request(0, prompt(30), 6))
    simulation.run()
    shelf = simulation.cache.shelves.ordered[0]
    assert shelf.dropped == 5 and moved(simulation) == (3, 0)


def one_by_a_slow_disk(seconds: float) -> Simulation:
    """A request that a disk has, which takes a second for a slot, and an engine `seconds` for 100 tokens."""
    disk: Disk = {}
    one(disk)
    slow = Simulation(40, config=config(2, 64), disk=disk)
    slow.cache.shelves.computed(100, seconds)
    slow.cache.shelves.ordered[0].read_takes(1.0)
    slow.submit(make_request(0, prompt(30), 6))
    slow.run()
    return slow


def test_what_is_faster_to_compute_is_computed() -> None:
    slow = one_by_a_slow_disk(0.001)
    assert moved(slow)[1] == 0 and slow.cached_tokens[0] == 0


def test_a_disk_that_does_not_answer_is_not_waited_for_long() -> None:
    """The request is computed; what was on its way keeps its blocks until it is over."""
    disk: Disk = {}
    one(disk)
    simulation = Simulation(40, config=config(2, 64), disk=disk, late=Silent())
    simulation.executor.answers = False
    simulation.submit(make_request(0, prompt(30), 6))
    for _ in range(20):
        simulation.step()
    assert simulation.finishes[0, 0] == "length" and simulation.cached_tokens[0] == 0
    assert simulation.scheduler.has_work and simulation.cache.pool.num_used == 7
    simulation.executor.answers = True
    simulation.run()


def test_a_request_that_goes_meanwhile_leaves_nothing_held() -> None:
    disk: Disk = {}
    one(disk)
    for goes in ("abort", "fails"):
        simulation = Simulation(40, config=config(2, 64), disk=disk)
        simulation.submit(make_request(0, prompt(30), 6))
        plan = simulation.plan()
        assert plan is not None and not plan.rows and plan.transfers
        if goes == "abort":
            simulation.abort(0)
        simulation.commit(fails=goes == "fails")
        simulation.run()
        assert simulation.finishes[0, 0] == ("abort" if goes == "abort" else "length")


def two(disk: Disk, shared: Disk, **options: object) -> Simulation:
    """A new server with two shelves, the disk the faster one."""
    return Simulation(40, **{"config": config(2, 64), **options}, disk=disk, shared=shared)


def read_from(simulation: Simulation) -> list[str]:
    return [each.source.store for plan in simulation.plans for each in plan.transfers if each.target.store == "pool"]


def test_what_is_published_goes_to_each_shelf() -> None:
    disk: Disk = {}
    shared: Disk = {}
    simulation = two(disk, shared)
    simulation.submit(make_request(0, prompt(30), 6))
    simulation.run()
    assert disk == shared and len(disk) == 8


def test_each_slot_comes_from_the_first_that_has_it() -> None:
    """And what one shelf gave is written to the other, which had it not."""
    disk: Disk = {}
    one(disk)
    keys = list(disk)
    first = {key: disk[key] for key in (keys[0], keys[2])}
    second = {key: disk[key] for key in keys[1:]}
    simulation = two(first, second)
    simulation.submit(make_request(0, prompt(30), 6))
    simulation.run()
    assert read_from(simulation) == ["disk", "shared", "disk", *["shared"] * 4]
    assert simulation.cached_tokens[0] == 28
    assert first.keys() == second.keys() == disk.keys()


def test_a_shelf_that_lies_costs_what_stands_behind() -> None:
    disk: Disk = {}
    one(disk)
    shared = dict(disk)
    simulation = two(disk, shared)
    # The books say that the disk has it, and it is not asked for elsewhere.
    del disk[list(disk)[3]]
    simulation.submit(make_request(0, prompt(30), 6))
    simulation.run()
    assert [each.lost for each in simulation.cache.shelves.totals()] == [1, 0]
    assert next(row.start for plan in simulation.plans for row in plan.rows) == 12
    again = two(disk, shared)
    again.submit(make_request(0, prompt(30), 6))
    again.run()
    assert set(read_from(again)) == {"disk"}, "it was written again"


def test_reading_pays_where_all_shelves_together_are_faster() -> None:
    """7 slots of 4 tokens, which take 28 ms to compute; 4 of them are on the slow shelf."""
    disk: Disk = {}
    one(disk)
    keys = list(disk)
    for slow, expected in ((0.004, 28), (0.006, 12)):
        simulation = two({key: disk[key] for key in keys[:3]}, {key: disk[key] for key in keys[3:]})
        simulation.cache.shelves.computed(100, 0.1)
        simulation.cache.shelves.ordered[0].read_takes(0.001)
        simulation.cache.shelves.ordered[1].read_takes(slow)
        simulation.submit(make_request(0, prompt(30), 6))
        simulation.run()
        assert simulation.cached_tokens[0] == expected


def test_what_a_slow_shelf_has_keeps_nothing_from_being_read_from_a_fast_one() -> None:
    disk: Disk = {}
    one(disk)
    keys = list(disk)
    simulation = two({key: disk[key] for key in keys[:3]}, {key: disk[key] for key in keys[3:]})
    simulation.cache.shelves.computed(100, 0.1)
    for shelf, seconds in zip(simulation.cache.shelves.ordered, (0.001, 1.0), strict=True):
        shelf.read_takes(seconds)
    simulation.submit(make_request(0, prompt(30), 6))
    simulation.run()
    assert read_from(simulation) == ["disk"] * 3 and simulation.cached_tokens[0] == 12


def test_each_shelf_has_measures_of_its_own() -> None:
    disk: Disk = {}
    one(disk)
    keys = list(disk)
    simulation = two({key: disk[key] for key in keys[:3]}, {key: disk[key] for key in keys[3:]})
    simulation.submit(make_request(0, prompt(30), 6))
    plan = simulation.plan()
    assert plan is not None
    taken = {"disk": 0.001, "shared": 0.5}
    simulation.executor.seconds = lambda transfer: taken.get(transfer.source.store, 0.0)
    simulation.commit()
    assert [shelf.takes(1) for shelf in simulation.cache.shelves.ordered] == [0.001, 0.5]
    simulation.run()


def test_news_are_of_the_shelf_that_they_name() -> None:
    simulation = two({}, {})
    simulation.cache.shelves.told([Shelved("shared", 0, b"k", there=True), Shelved("disk", 0, b"j", there=True)])
    simulation.cache.shelves.told([Shelved("shared", 0, b"j", there=False)])
    assert [list(map(shelf.has, (0, 0), (b"k", b"j"))) for shelf in simulation.cache.shelves.ordered] == [
        [False, True],
        [True, False],
    ]


def test_what_is_written_says_whose_it_is_and_is_read_by_no_other_tenant() -> None:
    disk: Disk = {}
    simulation = Simulation(40, disk=disk)
    simulation.submit(make_request(0, prompt(30), 6, tenant="one", weight=2.0), make_request(1, prompt(30, 50), 6))
    simulation.run()
    places = [each.target for plan in simulation.plans for each in plan.transfers]
    weights = {place.key[:16]: place.weight for place in places}
    assert sorted(weights.values()) == [1.0, 2.0] and all(len(place.key) == 32 for place in places)
    for tenant, expected in (("one", 7), ("other", 0), ("", 0)):
        again = Simulation(40, disk=dict(disk))
        again.submit(make_request(0, prompt(30), 6, tenant=tenant))
        again.run()
        assert moved(again)[1] == expected


def test_a_shelf_that_was_given_up_is_not_asked_before_it_has_answered() -> None:
    """No second request waits for it, and what another shelf has is read from there."""
    left: Disk = {}
    one(left)
    keys = list(left)
    simulation = two({key: left[key] for key in keys[:3]}, dict(left), late=Silent())
    simulation.executor.answers = False
    simulation.submit(make_request(0, prompt(30), 6))
    for _ in range(20):
        simulation.step()
    assert simulation.finishes[0, 0] == "length"
    disk, shared = simulation.cache.shelves.ordered
    assert not shared.has(*keys[5]) and not disk.has(*keys[0])
    simulation.executor.answers, simulation.executor.late = True, None
    simulation.run()
    assert shared.has(*keys[5]) and disk.has(*keys[0])


def test_what_was_thought_too_slow_is_tried_again_some_time() -> None:
    """Twenty times as slow as it would have to be; and a measure of long ago is forgotten with the first new one."""
    disk: Disk = {}
    one(disk)
    simulation = Simulation(40, config=config(2, 64), disk=disk)
    shelf, shelves = simulation.cache.shelves.ordered[0], simulation.cache.shelves
    shelves.computed(100, 0.1)
    shelf.read_takes(0.8 * 0.004 * 20)
    keys = list(disk)[:1]
    assert not shelves.pays(4, keys)
    for seconds, pays in ((100.0, False), (150.0, True)):
        simulation.cache.pool.tick(seconds)
        assert shelves.pays(4, keys) is pays
    shelf.read_takes(1.0)
    assert shelf.takes(1) == 1.0


def test_only_what_was_read_tells_how_long_it_takes() -> None:
    """What fails at once says nothing of it."""
    disk: Disk = {}
    one(disk)
    simulation = Simulation(40, config=config(2, 64), disk=disk)
    kept = list(disk)[0]
    for key in list(disk)[1:]:
        del disk[key]
    simulation.executor.seconds = lambda transfer: 0.5 if transfer.source.key == kept[1] else 0.0
    simulation.submit(make_request(0, prompt(30), 6))
    plan = simulation.plan()
    assert plan is not None and len(plan.transfers) == 7
    simulation.commit()
    assert simulation.cache.shelves.ordered[0].takes(1) == 0.5
    simulation.run()


def found(simulation: Simulation, request_id: int = 0) -> list[tuple[TierFound, ...]]:
    """Where the tokens of a request were found, at each of its admissions."""
    admissions = [fact for step in simulation.facts for fact in step.admissions if fact.request_id == request_id]
    return [fact.prefix.tiers for fact in admissions]


def fetched(simulation: Simulation) -> list[Fetched]:
    return [fact for step in simulation.facts for fact in step.fetched]


def test_what_came_from_where_is_told() -> None:
    disk: Disk = {}
    first = one(disk)
    block = first.spec.block_bytes
    assert found(first) == [(TierFound("pool"),)] and not fetched(first)
    assert sum(step.stored.get("disk", 0) for step in first.facts) == 8 * block
    again = one(disk)
    assert found(again) == [(TierFound("pool"), TierFound("disk", 28, 7 * block))]
    assert fetched(again) == [Fetched(0, 0, [TierCame("disk", 28, bytes=7 * block)])]
    again.submit(make_request(1, [*prompt(20), *prompt(12, 100)], 2))
    again.run()
    assert found(again, 1) == [(TierFound("pool", 20, 5 * block),)]


def test_what_is_left_on_the_disk_is_told_with_the_reason() -> None:
    slow = one_by_a_slow_disk(0.5)
    assert found(slow)[0][1] == TierFound("disk", 0, 0, 28, "slower", pytest.approx(7.0, rel=0.1), pytest.approx(0.14))
    assert not fetched(slow)


def test_what_stands_behind_a_block_that_is_not_there_is_told() -> None:
    disk: Disk = {}
    one(disk)
    del disk[list(disk)[2]]
    gap = one(disk)
    assert found(gap)[0][1] == TierFound("disk", 8, 2 * gap.spec.block_bytes)
    del disk[list(disk)[0]]
    assert found(one(disk))[0][1] == TierFound("disk", 0, 0, 24, "gone")


def test_what_could_not_be_read_is_told_and_what_came_before_it_is_used() -> None:
    disk: Disk = {}
    one(disk)
    again = Simulation(40, config=config(2, 64), disk=disk)
    del disk[list(disk)[3]]
    again.submit(make_request(0, prompt(30), 6))
    again.run()
    block = again.spec.block_bytes
    assert fetched(again) == [Fetched(0, 0, [TierCame("disk", 12, 16, "failed", 6 * block)])]
    # It comes in once more, with what came.
    assert found(again) == [
        (TierFound("pool"), TierFound("disk", 28, 7 * block)),
        (TierFound("pool", 12, 3 * block),),
    ]


def test_what_is_late_is_told_at_once_and_its_bytes_once_it_is_over() -> None:
    disk: Disk = {}
    one(disk)
    simulation = Simulation(40, config=config(2, 64), disk=disk, late=Silent())
    simulation.executor.answers = False
    simulation.submit(make_request(0, prompt(30), 6))
    for _ in range(20):
        simulation.step()
    assert fetched(simulation) == [Fetched(0, 0, [TierCame("disk", left=28, why_left="late")])]
    simulation.executor.answers = True
    simulation.run()
    block = simulation.spec.block_bytes
    assert fetched(simulation)[1:] == [Fetched(0, 0, [TierCame("disk", why_left="late", bytes=7 * block)])]


def test_with_several_tiers_tokens_come_from_the_slowest_that_they_need() -> None:
    disk: Disk = {}
    one(disk)
    keys = list(disk)
    first = {key: disk[key] for key in (keys[0], keys[2])}
    simulation = two(first, {key: disk[key] for key in keys[1:]})
    simulation.submit(make_request(0, prompt(30), 6))
    simulation.run()
    block = simulation.spec.block_bytes
    assert found(simulation) == [
        (TierFound("pool"), TierFound("disk", 8, 2 * block), TierFound("shared", 20, 5 * block))
    ]
    (fact,) = fetched(simulation)
    assert fact.came == [TierCame("disk", 8, bytes=2 * block), TierCame("shared", 20, bytes=5 * block)]


def test_what_a_window_has_passed_comes_with_what_it_shows() -> None:
    disk: Disk = {}
    one(disk, windows=(5,))
    again = one(disk, windows=(5,))
    assert [(each.tier, each.tokens) for each in found(again)[0]] == [("pool", 0), ("disk", 28)]
