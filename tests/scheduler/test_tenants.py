"""Tenants take turns: who is admitted next, how steps are shared, and what they are served in the long run."""

import random
from collections import Counter

import pytest

from penstock.core.plan import StepPlan
from penstock.core.request import Request
from penstock.scheduler.fairness import OUTPUT_COST, PROMPT_COST, SHARED_PART
from support.simulation import Simulation, config, make_request, prompt, rows_of


def requests_of(tenant: str, count: int, length: int = 8, first: int = 0, **options: float) -> list[Request]:
    """Requests with prompts of their own."""
    start = 10_000 * (1 + first)
    return [
        make_request(first + number, prompt(length, start + 100 * number), 4, tenant=tenant, **options)  # type: ignore[arg-type]
        for number in range(count)
    ]


def began(simulation: Simulation) -> list[str]:
    """Tenants in the order in which their requests were first computed."""
    tenants = {s.id: s.request.standing.tenant for s in simulation.sequences()}
    found: dict[int, str] = {}
    while simulation.step():
        tenants |= {s.id: s.request.standing.tenant for s in simulation.sequences()}
        for row in simulation.plans[-1].rows:
            found.setdefault(row.sequence, tenants[row.sequence])
    return list(found.values())


def test_one_request_of_another_tenant_comes_next_however_many_wait() -> None:
    simulation = Simulation(64, config=config(1, 8))
    simulation.submit(*requests_of("noisy", 6))
    simulation.step()
    simulation.submit(*requests_of("quiet", 1, first=6))
    assert began(simulation)[:3] == ["noisy", "quiet", "noisy"]
    simulation.check_outputs()


def test_tenants_take_turns_by_weight() -> None:
    simulation = Simulation(64, config=config(1, 8))
    simulation.submit(*requests_of("one", 9), *requests_of("two", 9, first=9, weight=2.0))
    # Until those of the heavier have all been served.
    order = began(simulation)[:12]
    assert 7 <= order.count("two") <= 9
    simulation.check_outputs()


def test_within_a_tenant_it_is_first_come_first_served() -> None:
    simulation = Simulation(64, config=config(2, 16))
    simulation.submit(*requests_of("a", 4), *requests_of("b", 4, first=4))
    simulation.run()
    finished = [request_id for request_id, _ in simulation.finishes]
    assert [i for i in finished if i < 4] == [0, 1, 2, 3]
    assert [i for i in finished if i >= 4] == [4, 5, 6, 7]


def test_priority_comes_before_turns() -> None:
    simulation = Simulation(64, config=config(1, 8))
    simulation.submit(*requests_of("a", 1, priority=1), *requests_of("b", 3, first=1))
    assert began(simulation) == ["b", "b", "b", "a"]


def test_cached_tokens_are_free() -> None:
    simulation = Simulation(64, config=config(1, 64))
    shared = prompt(33)
    simulation.submit(make_request(0, shared, 1, tenant="a"))
    simulation.step()
    simulation.submit(make_request(1, shared, 1, tenant="a"), make_request(2, prompt(20, 500), 1, tenant="b"))
    simulation.submit(*requests_of("a", 1, first=3))
    counters = simulation.scheduler._waiting._priorities[0].counters
    before = counters.counter("a")
    while 1 not in simulation.cached_tokens:
        simulation.step()
    assert counters.counter("a") - before == 1 * PROMPT_COST + 1 * OUTPUT_COST
    simulation.run()


def test_what_an_aborted_request_was_not_given_is_not_charged() -> None:
    simulation = Simulation(64, config=config(2, 16))
    simulation.submit(make_request(0, prompt(100), 4, tenant="a"), *requests_of("a", 1, first=1))
    counters = simulation.scheduler._waiting._priorities[0].counters
    simulation.step()
    assert counters.counter("a") == 100 * PROMPT_COST
    simulation.abort(0)
    assert counters.counter("a") == 16 * PROMPT_COST
    simulation.run()


@pytest.mark.parametrize("seed", range(10))
def test_nobody_new_is_admitted_while_one_who_was_preempted_waits(seed: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(14, config=config(6, 32), prefix_caching=False)
    simulation.submit(
        *(
            make_request(n, prompt(rng.randint(1, 20), 1000 * n), rng.randint(1, 24), tenant=rng.choice("abc"))
            for n in range(16)
        )
    )
    while simulation.unfinished():
        before = [s for s in simulation.sequences() if s.admitted]
        assert simulation.plan() is not None
        if sum(s.admitted for s in simulation.sequences()) > len(before):
            assert all(s.running for s in before)
        simulation.commit()
    simulation.check_outputs()
    assert simulation.scheduler.snapshot().preemptions


def test_a_short_prompt_does_not_wait_for_a_long_one_of_another_tenant() -> None:
    simulation = Simulation(1000, config=config(8, 1024))
    simulation.submit(make_request(0, prompt(3000), 4, tenant="noisy"))
    simulation.step()
    simulation.submit(make_request(1, prompt(20, 5000), 4, tenant="quiet"))
    simulation.step()
    step = simulation.plans[-1]
    short = 1024 // SHARED_PART
    assert {row.sequence: row.count for row in step.rows} == {0: short - 20, 1: 20}
    # While the other decodes steps stay short, and when it has ended too, since it may come again.
    for _ in range(6):
        simulation.step()
        assert simulation.plans[-1].num_tokens == short
    simulation.run()
    simulation.submit(make_request(2, prompt(3000, 7000), 4, tenant="noisy"))
    simulation.step()
    assert simulation.plans[-1].num_tokens == short


def test_several_short_prompts_of_a_tenant_come_in_together() -> None:
    simulation = Simulation(1000, config=config(64, 1024))
    simulation.submit(*requests_of("noisy", 30), *requests_of("quiet", 2, first=30))
    simulation.step()
    assert Counter(s.request.standing.tenant for s in simulation.running()) == {"noisy": 14, "quiet": 2}
    simulation.run()


def test_equal_long_prompts_share_steps() -> None:
    simulation = Simulation(1000, config=config(8, 256))
    simulation.submit(make_request(0, prompt(1000), 1, tenant="a"), make_request(1, prompt(1000, 2000), 1, tenant="b"))
    simulation.run()
    assert rows_of(simulation, 0)[:2] == [(0, 128), (128, 128)]
    assert rows_of(simulation, 1)[:2] == [(0, 128), (128, 128)]
    assert all(plan.num_tokens == 256 for plan in simulation.plans[:7])


def test_one_tenant_has_the_whole_step() -> None:
    simulation = Simulation(1000, config=config(8, 256))
    simulation.submit(*(make_request(n, prompt(300, 2000 * n), 2, tenant="a") for n in range(4)))
    simulation.run()
    assert [plan.num_tokens for plan in simulation.plans[:4]] == [256] * 4


def test_nothing_is_remembered_of_tenants_once_all_have_ended() -> None:
    simulation = Simulation(64, config=config(4, 32))
    for n in range(50):
        simulation.submit(make_request(n, prompt(3, n), 1, tenant=f"tenant {n}", priority=n % 5))
    assert simulation.scheduler._waiting._priorities
    simulation.run()
    assert not simulation.scheduler._waiting._priorities


def served(simulation: Simulation, plan: StepPlan, seen: Counter[int]) -> dict[str, float]:
    """What a committed plan was worth to each tenant: positions computed for the first time, and tokens."""
    sequences = {s.id: s for s in simulation.sequences()}
    gained: Counter[str] = Counter()
    for row in plan.rows:
        sequence = sequences[row.sequence]
        first = min(row.start + row.count, sequence.prompt_length)
        fresh = max(0, first - max(seen[row.sequence], row.start))
        seen[row.sequence] = max(seen[row.sequence], first)
        standing = sequence.request.standing
        gained[standing.tenant] += (fresh * PROMPT_COST + len(row.samples) * OUTPUT_COST) / standing.weight
    return gained


@pytest.mark.parametrize("seed", range(8))
def test_backlogged_tenants_are_served_within_a_bound_of_each_other(seed: int) -> None:
    """However much longer the one's prompts are, and however few blocks there are.

    When a tenant's request is admitted its counter is no greater than the other's. After that it can only grow by that
    prompt and by the outputs of what runs; of what it was charged for, the prompts that run may not be computed yet.
    """
    rng = random.Random(seed)
    rows, longest, outputs = rng.choice([1, 2, 6]), 60, 12
    weights = {"quiet": rng.choice([1.0, 0.5, 3.0]), "noisy": 1.0}
    lengths = {"quiet": 6, "noisy": longest}
    budget = rng.choice([rows + 1, 32, 128])
    simulation = Simulation(rng.choice([20, 60, 400]), config=config(rows, budget), prefix_caching=False)
    requests = [
        make_request(
            number,
            prompt(rng.randint(1, lengths[tenant]), 1000 * number),
            rng.randint(1, outputs),
            tenant=tenant,
            weight=weights[tenant],
        )
        for number, tenant in enumerate(["noisy"] * (20 + 10 * rows) + ["quiet"] * (40 + 20 * rows))
    ]
    simulation.submit(*requests)
    bound = ((rows + 1) * longest * PROMPT_COST + rows * outputs * OUTPUT_COST) / min(weights.values())
    totals: Counter[str] = Counter()
    seen: Counter[int] = Counter()
    while {s.request.standing.tenant for s in simulation.sequences() if not s.admitted} == set(weights):
        plan = simulation.plan()
        assert plan is not None
        totals.update(served(simulation, plan, seen))
        simulation.commit()
        assert abs(totals["noisy"] - totals["quiet"]) <= bound
    assert sum(totals.values()) > 2 * bound, "long enough to say something"
    simulation.run(20_000)
