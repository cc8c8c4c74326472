"""Sequences with a source: it is encoded whole, in the step in which they come in, and shared."""

import pytest

from penstock.core.beam_search import BeamSearch
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, RequestTooLarge
from penstock.core.plan import StepPlan
from support.made_up_model import kv_spec, sourced_spec
from support.simulation import Simulation, config, make_request, prompt

SPEC = kv_spec(4, sources=True)
START = [1]


def simulation(num_blocks: int = 100, **options: float) -> Simulation:
    return Simulation(num_blocks, spec=SPEC, config=config(max_source=40, **options))


def encoded(plans: list[StepPlan]) -> list[list[int]]:
    """Of each plan, the lengths of the sources that it encodes."""
    return [[row.encodes for row in plan.rows if row.encodes] for plan in plans]


def test_a_source_is_encoded_once_in_the_step_that_begins() -> None:
    world = simulation()
    world.submit(make_request(0, START, 5, source=prompt(10)))
    world.run()
    assert encoded(world.plans) == [[10], [], [], [], []]
    assert world.cached_tokens == {0: 0}
    assert world.facts[0].chunk_tokens == 11
    assert world.scheduler.snapshot().prefill_tokens == 11


def test_requests_with_the_same_source_share_it() -> None:
    """The second waits for the first one's step; what is found is told, and not charged."""
    world = simulation()
    world.submit(*(make_request(number, START, 3, source=prompt(10), seed=number) for number in range(3)))
    world.run()
    assert encoded(world.plans)[0] == [10] and sum(map(len, encoded(world.plans))) == 1
    assert world.cached_tokens == {0: 0, 1: 10, 2: 10}
    assert [fact.prefix.found for facts in world.facts for fact in facts.admissions] == [0, 10, 10]
    assert world.scheduler.snapshot().prefix_hit_tokens == 20


@pytest.mark.parametrize("other", [{"source": prompt(11)}, {"source": prompt(10), "salt": "other"}])
def test_another_source_or_salt_shares_nothing(other: dict[str, object]) -> None:
    """Not the decoder's tokens either, whose keys and values depend on the source."""
    world = simulation()
    beginning = prompt(9)
    world.submit(make_request(0, beginning, 3, source=prompt(10)))
    world.run()
    world.submit(make_request(1, beginning, 3, **other))  # type: ignore[arg-type]
    world.run()
    assert sum(map(len, encoded(world.plans))) == 2
    assert [row.start for plan in world.plans for row in plan.rows if row.encodes] == [0, 0]


def test_what_a_decoder_computed_is_found_with_its_source() -> None:
    world = simulation()
    for number in range(2):
        world.submit(make_request(number, prompt(9), 3, source=prompt(10)))
        world.run()
    assert [row.start for plan in world.plans for row in plan.rows if row.count > 1 or row.encodes] == [0]


def test_samples_share_a_source() -> None:
    world = simulation()
    world.submit(make_request(0, START, 6, n=3, source=prompt(10)))
    world.run()
    assert sum(map(len, encoded(world.plans))) == 1
    forked = world.plans[1].rows
    assert len(forked) == 3 and len({update.blocks[0] for row in forked for update in row.blocks if update.group}) == 1


def test_without_a_prefix_cache_each_encodes() -> None:
    world = Simulation(100, spec=SPEC, config=config(max_source=40), prefix_caching=False)
    world.submit(*(make_request(number, START, 3, source=prompt(10)) for number in range(2)))
    world.run()
    assert encoded(world.plans)[0] == [10, 10]


def test_sources_count_in_a_step() -> None:
    """In order, each whole; what does not fit behind others waits for the next step."""
    world = simulation(budget=32)
    for number, length in enumerate((10, 10, 15, 5)):
        world.submit(make_request(number, START, 2, source=prompt(length, start=50 * number)))
    world.run()
    assert encoded(world.plans)[:2] == [[10, 10], [15, 5]]
    assert all(plan.num_tokens <= 32 for plan in world.plans)


def test_a_source_that_is_longer_than_a_step_comes_in_beside_decodes() -> None:
    world = simulation(budget=16)
    world.submit(make_request(0, START, 30, source=prompt(5)))
    world.step()
    world.submit(*(make_request(number, START, 3, source=prompt(40, start=100 * number)) for number in (1, 2)))
    world.run()
    assert encoded(world.plans)[:3] == [[5], [40], [40]]
    assert len(world.plans[1].rows) == 2


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_sequence_finds_its_source_or_encodes_it_again(caching: bool) -> None:
    """It is charged once: what is computed again was the engine's own choice."""
    world = Simulation(14, spec=SPEC, config=config(max_source=40), prefix_caching=caching)
    world.submit(make_request(0, START, 20, source=prompt(16)))
    world.submit(make_request(1, START, 20, source=prompt(16, start=100), seed=1))
    world.run()
    load = world.scheduler.snapshot()
    assert load.preemptions > 0
    assert load.prefill_tokens == 34
    again = [fact.prefix.found for facts in world.facts for fact in facts.admissions if fact.again]
    assert again and set(again) == {16 if caching else 0}
    assert (load.recomputed_tokens >= 16) != caching


def test_a_source_is_swapped_with_its_sequence() -> None:
    """What comes back is not encoded again."""
    world = Simulation(14, spec=SPEC, config=config(max_source=40), swap_blocks=40, prefix_caching=False)
    world.submit(make_request(0, START, 20, source=prompt(16)))
    world.submit(make_request(1, START, 20, source=prompt(16, start=100), seed=1))
    world.run()
    assert world.scheduler.snapshot().preemptions > 0
    assert sum(facts.swapped_in for facts in world.facts) > 4
    assert sum(map(len, encoded(world.plans))) == 2


def test_a_failing_step_offers_nothing() -> None:
    world = simulation()
    world.submit(make_request(0, START, 3, source=prompt(10)))
    world.step(fails=True)
    assert world.finishes == {(0, 0): "error"}
    world.submit(make_request(1, START, 3, source=prompt(10)))
    world.run()
    assert encoded(world.plans)[:2] == [[10], [10]]


def test_slots_of_several_blocks() -> None:
    world = Simulation(200, spec=sourced_spec(4), config=config(max_source=40))
    assert max(group.width for group in world.spec.groups) > 1
    world.submit(*(make_request(number, START, 20, source=prompt(13), seed=number) for number in range(3)))
    world.run()
    assert sum(map(len, encoded(world.plans))) == 1


def test_what_cannot_be_served() -> None:
    world = simulation(num_blocks=10)
    with pytest.raises(InvalidParameter, match="at least one token"):
        world.submit(make_request(0, START, 3))
    with pytest.raises(ContextLengthExceeded, match="41 tokens, and this model's encoder reads at most 40"):
        world.submit(make_request(0, START, 3, source=prompt(41)))
    with pytest.raises(RequestTooLarge, match="up to 11 KV blocks"):
        world.submit(make_request(0, START, 4, source=prompt(40)))
    with pytest.raises(InvalidParameter, match="no encoder"):
        Simulation(10).submit(make_request(0, START, 3, source=prompt(4)))


def test_beams_share_a_source() -> None:
    """Also behind a preemption, and with several requests."""
    world = Simulation(38, spec=SPEC, config=config(max_source=40, max_num_seqs=12))
    for number in range(4):
        source = prompt(16, start=100 * (number // 2))
        world.submit(make_request(number, START, 24, n=2, source=source, beam=BeamSearch(width=3), seed=number))
    world.run()
    assert world.scheduler.snapshot().preemptions > 0
    assert 2 <= sum(map(len, encoded(world.plans))) < 12
