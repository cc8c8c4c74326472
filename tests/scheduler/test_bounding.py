"""Bounded contexts: what is held, what a window does with its sinks, what is shared, and who is not concerned."""

import random

import msgspec
import pytest

from penstock.cache.bounded import Attention, Bounded
from penstock.core.kv_policy import POLICY_KINDS, WEIGHED, KVPolicy, PolicyKind
from penstock.core.plan import RowPlan
from penstock.scheduler.fairness import OUTPUT_COST, PROMPT_COST
from support.simulation import Simulation, config, make_request, prompt

SIZE = 4


def policy(kind: PolicyKind, tokens: int = 32, **options: int) -> KVPolicy:
    return KVPolicy(kind=kind, tokens=tokens, **({"sinks": 4, "recent": 8} | options))


def served(
    kind: PolicyKind | None, length: int = 100, output: int = 60, outstanding: int = 1, **options: int
) -> Simulation:
    """One request alone."""
    simulation = Simulation(200, config=config(2, 64, max_outstanding=outstanding))
    bounds = None if kind is None else policy(kind, **options)
    simulation.submit(make_request(0, prompt(length), output, kv_policy=bounds))
    simulation.run()
    return simulation


def again(row: RowPlan) -> bool:
    """Whether it computes a window's sinks once more."""
    return bool(row.dropped) and row.start == row.dropped[0]


@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_what_fits_is_not_touched(kind: PolicyKind) -> None:
    """A context that its policy has room for is computed as without one; its blocks are shared unless sinks move."""
    bounded, free = served(kind, tokens=160), served(None)
    assert bounded.outputs == free.outputs and bounded.dropped == {0: 0}
    assert bool(bounded.cache.pool.num_cached) == (kind != "window")


@pytest.mark.parametrize("kind", [kind for kind in POLICY_KINDS if kind != "snapkv"])
def test_what_is_held_is_bounded(kind: PolicyKind) -> None:
    simulation = served(kind)
    held = [row.start + row.count - row.dropped[0] for plan in simulation.plans for row in plan.rows if row.dropped]
    assert max(held) <= 32 and len(held) > 60
    # 159 positions are computed, of which at most 32 are held.
    assert 159 - 32 <= simulation.dropped[0] <= 159 - 8


@pytest.mark.parametrize("kind", [kind for kind in POLICY_KINDS if kind != "scissorhands"])
def test_what_is_dropped_is_told_when_it_changes(kind: PolicyKind) -> None:
    """Not with each token: these events do not fit the columns of a step's message."""
    simulation = served(kind)
    sampled = [row.dropped for plan in simulation.plans for row in plan.rows if row.samples]
    assert simulation.told_dropped[0, 0] == len(set(sampled) - {()}) < 60 // 3


def test_a_prompt_is_compressed_once_at_its_end() -> None:
    simulation = served("snapkv")
    dropped = [row.dropped for plan in simulation.plans for row in plan.rows if row.sequence == 0]
    assert dropped[:2] == [(), ()] and set(dropped[2:]) == {(100 - 32,)}
    weighed = [row.weighed for plan in simulation.plans for row in plan.rows]
    assert sum(weighed) == 8, "the prompt's last positions are asked, and no others"


def test_sinks_are_computed_again_right_before_the_window() -> None:
    simulation = served("window")
    moved = [row for plan in simulation.plans for row in plan.rows if again(row)]
    assert len(moved) > 10
    for row in moved:
        assert (row.tokens, row.count, row.samples, row.blocks) == ([0, 1, 2, 3], 4, (), ())
    starts = [row.start for row in moved]
    assert starts == sorted(set(starts)), "each time the window has gone on, and once"


def test_long_sinks_are_computed_in_pieces() -> None:
    simulation = Simulation(200, config=config(2, 8))
    simulation.submit(make_request(0, prompt(100), 60, kv_policy=policy("window", 64, sinks=32)))
    simulation.run()
    moved = [row for plan in simulation.plans for row in plan.rows if not row.samples and row.dropped]
    assert {row.count for row in moved} == {8}
    assert simulation.dropped[0] > 90


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_plans_wait_for_others_only_where_something_is_to_be_dropped(kind: PolicyKind, depth: int) -> None:
    """So the same is dropped, and at the same positions, as where each plan waits for the one before."""
    ahead, alone = served(kind, outstanding=depth), served(kind)

    def rows(simulation: Simulation) -> list[tuple[object, ...]]:
        found = [row for plan in simulation.plans for row in plan.rows]
        return [(row.start, row.count, row.dropped, row.weighed) for row in found if row.start + row.count < 160]

    assert rows(ahead) == rows(alone) and ahead.outputs == alone.outputs
    # Attention may have scissorhands drop something after any step.
    going = sum(row.source is not None for plan in ahead.plans for row in plan.rows)
    assert going == 0 if kind == "scissorhands" else going > 30


@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_nothing_is_published_behind_what_was_dropped(kind: PolicyKind) -> None:
    """What was published before is right, and another request, without a policy, gets no wrong token of it."""
    simulation = Simulation(200, config=config(1, 64))
    simulation.submit(make_request(0, prompt(100), 60, kv_policy=policy(kind)))
    simulation.submit(make_request(1, prompt(100), 60))
    simulation.run()
    assert simulation.dropped == {0: simulation.dropped[0], 1: 0} and simulation.dropped[0]
    assert simulation.cached_tokens[1] == {"window": 0, "h2o": 32, "scissorhands": 32, "snapkv": 99}[kind]


@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_what_the_cache_may_give(kind: PolicyKind) -> None:
    """No more than may be held, of `snapkv` none of what is asked at the prompt's end, and of a window nothing."""
    simulation = Simulation(200, config=config(1, 64))
    simulation.submit(make_request(1, prompt(100), 8))
    simulation.submit(make_request(0, prompt(100), 60, kv_policy=policy(kind)))
    simulation.run()
    assert simulation.cached_tokens[0] == {"window": 0, "h2o": 28, "scissorhands": 28, "snapkv": 92}[kind]


@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_those_who_lose_their_blocks_start_again(kind: PolicyKind) -> None:
    simulation = Simulation(20, config=config(4, 64))
    for number in range(4):
        bounds = policy(kind) if number % 2 else None
        simulation.submit(make_request(number, prompt(20, 10 * number), 50, kv_policy=bounds))
    simulation.run()
    assert any(facts.preempted for facts in simulation.facts)
    assert all(len(output) == 50 for output in simulation.outputs.values())


@pytest.mark.parametrize("budget", [5, 8, 64])
@pytest.mark.parametrize("sinks", [24, 40, 56])
def test_sinks_may_be_nearly_all_that_is_held(sinks: int, budget: int) -> None:
    """Something behind them is kept all the same, and they are not written over, wherever a chunk begins."""
    simulation = Simulation(200, config=config(4, budget))
    simulation.submit(make_request(1, prompt(30, 400), 90))
    simulation.submit(make_request(0, prompt(101), 150, kv_policy=policy("window", 64, sinks=sinks)))
    simulation.run()
    [bounded] = {row.sequence for plan in simulation.plans for row in plan.rows if row.dropped}
    rows = [row for plan in simulation.plans for row in plan.rows if row.sequence == bounded and row.dropped]
    assert all(row.start - row.dropped[0] > sinks for row in rows if row.samples)
    assert len(simulation.outputs[0, 0]) == 150


def test_an_endless_output_needs_no_more_than_its_window() -> None:
    """Its positions are beyond what the server's context has."""
    simulation = Simulation(10, config=config(1, 64, max_model_len=64))
    simulation.submit(make_request(0, prompt(30), 400, kv_policy=policy("window")))
    simulation.run()
    assert len(simulation.outputs[0, 0]) == 400
    assert simulation.scheduler.snapshot().preemptions == 0


def test_sinks_that_move_are_charged_like_a_prompt() -> None:
    simulation = Simulation(200, config=config(2, 64))
    simulation.submit(make_request(0, prompt(100), 60, tenant="a", kv_policy=policy("window")))
    counters = simulation.scheduler._waiting._priorities[0].counters
    simulation.run()
    moved = sum(row.count for plan in simulation.plans for row in plan.rows if again(row))
    assert moved > 40
    assert counters.counter("a") == (100 + moved) * PROMPT_COST + 60 * OUTPUT_COST


def test_sinks_that_a_preemption_moves_once_more_are_not_charged() -> None:
    """As little as its prompt is: the tenant has paid for all that it had before."""
    simulation = Simulation(20, config=config(1, 64))
    simulation.submit(make_request(0, prompt(20), 90, priority=1, tenant="a", kv_policy=policy("window")))
    counters = simulation.scheduler._waiting._priorities[1].counters
    for _ in range(70):
        simulation.step()
    simulation.submit(make_request(1, prompt(70, 500), 8, tenant="b"))
    simulation.run()
    moved, anew = 0, 0
    computed: dict[int, int] = {}
    rows = [row for plan in simulation.plans for row in plan.rows]
    for place, row in enumerate(rows):
        if not again(row):
            computed[row.sequence] = max(computed.get(row.sequence, 0), row.start + row.count)
            continue
        goes_on_at = next(one.start for one in rows[place:] if one.sequence == row.sequence and not again(one))
        moved += row.count if goes_on_at >= computed[row.sequence] else 0
        anew += row.count if goes_on_at < computed[row.sequence] else 0
    assert moved and anew and any(facts.preempted for facts in simulation.facts)
    assert counters.counter("a") == (20 + moved) * PROMPT_COST + 90 * OUTPUT_COST


# The choice.


def attention(masses: list[float], queries: int = 1) -> Attention:
    found = Attention()
    found.add(masses, queries)
    return found


def chosen(kind: PolicyKind, masses: list[list[float]], wanted: int, **options: int) -> list[int]:
    """What goes of the slots that got `masses`, one query after the other, so that there may be `wanted`."""
    bounded = Bounded(policy(kind, **options), [0], SIZE, prompt=1000)
    for each in masses:
        bounded.add(0, each, 1)
    return bounded.to_drop(0, len(masses[-1]), 2000 if kind == "snapkv" else 500, wanted)


def test_the_least_attended_slots_go() -> None:
    # 8 slots may be held, of which the first and the last three are protected.
    masses = [0.0, 5.0, 1.0, 4.0, 0.5, 3.0, 0.0, 0.0, 0.0]
    assert chosen("h2o", [masses], 10) == [2, 4]
    assert chosen("snapkv", [masses], 10) == [4]
    assert chosen("window", [masses], 10) == [1, 2]
    assert chosen("h2o", [masses], 8) == []


def test_attention_counts_by_those_who_gave_it() -> None:
    """A slot that came later has been seen by fewer, and is no worse for that."""
    early = [[1.0] * 5] * 10
    late = [[1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]] * 2
    assert chosen("h2o", early + late, 9) == [1]


def test_what_gets_no_attention_for_a_time_goes() -> None:
    first = [[1.0, 1.0, 9.0, 1.0, 9.0, 1.0, 1.0, 1.0]]
    later = [[9.0, 1.0, 0.0, 9.0, 0.0, 9.0, 9.0, 9.0]] * 3
    # Slot 1 never had its even share, slots 2 and 4 had it once.
    assert chosen("scissorhands", first + later, 9) == [1]
    assert chosen("scissorhands", first + later, 8, patience=3) == [1, 2, 4]
    assert chosen("scissorhands", first + later, 8, patience=4) == [1]
    assert chosen("scissorhands", first + later, 8, patience=5) == []


def test_what_no_query_has_seen_is_kept() -> None:
    """Such slots are from the prefix cache."""
    found = attention([0.0, 1.0, 2.0])
    found.reach(5)
    assert found.mean(3) == float("inf")
    found.drop([0, 3])
    assert (found.masses, found.queries) == ([1.0, 2.0, 0.0], [1, 1, 0])


@pytest.mark.parametrize("kind", WEIGHED)
@pytest.mark.parametrize("seed", range(20))
def test_random_attention(kind: PolicyKind, seed: int) -> None:
    """What is protected stays, the bound holds, and books and table agree, whatever the attention is."""
    rng = random.Random(seed)
    sinks, recent, most = rng.randint(0, 9), rng.randint(1, 12), rng.randint(9, 14)
    bounds = policy(kind, most * SIZE, sinks=sinks, recent=recent, patience=rng.randint(1, 9))
    bounded = Bounded(msgspec.structs.replace(bounds), [0], SIZE, prompt=0 if kind == "snapkv" else 1000)
    slots = list(range(rng.randint(1, 30) if kind == "snapkv" else 1))
    newest = slots[-1]
    for position in range(200):
        dropped = bounded.to_drop(0, len(slots), position, len(slots) + 1)
        gone = [slots[index] for index in dropped]
        assert dropped == sorted(set(dropped)) and not any(slot * SIZE < sinks for slot in gone)
        assert all((slot + 1) * SIZE <= (newest + 1) * SIZE - recent for slot in gone)
        slots = [slot for slot in slots if slot not in gone]
        bounded.gave_up(0, dropped, newest + 1 - len(slots))
        bounded.computed(position)
        newest += 1
        slots.append(newest)
        assert kind == "snapkv" or len(slots) <= most
        bounded.add(0, [rng.random() * rng.choice([0, 1, 5]) for _ in slots], 1)
