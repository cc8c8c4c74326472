"""What a noisy tenant costs a quiet one, in the time of a machine whose steps cost what they cost by a formula."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from penstock.configuration.options import DEFAULT_TARGET_ITL
from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.plan import StepPlan, StepResult
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import Arrival, one_token_each, play
from support.made_up_model import kv_spec
from support.simulation import make_request


@dataclass(frozen=True)
class Machine:
    """Seconds of a step: for itself, for each token, and for each token in the context of each token."""

    fixed: float
    token: float
    context: float

    def execute(self, plan: StepPlan) -> StepResult:
        contexts = sum(row.count * (row.start + row.count / 2) for row in plan.rows)
        return one_token_each(plan, self.fixed + self.token * plan.num_tokens + self.context * contexts, token=1)

    @property
    def half(self) -> "Machine":
        """As fast as half of it."""
        return Machine(2 * self.fixed, 2 * self.token, 2 * self.context)


# About what was measured: `haiku` on one core and on two of a Zen 4, and 1.24 billion parameters in int4 on two.
SMALL = Machine(0.0006, 0.000125, 4.5e-8)
FAST = Machine(0.0004, 0.00005, 2.2e-8)
LARGE = Machine(0.05, 0.002, 1e-7)


def arrivals(tenant: str, rate: float, length: int, seconds: float) -> list[Arrival]:
    """Requests at random, with prompts of their own and 16 output tokens, and when they come."""
    rng, due, found = random.Random(tenant), 0.0, []
    first_id = 0 if tenant == "quiet" else 1_000_000
    while rate and (due := due + rng.expovariate(rate)) < seconds:
        tokens = rng.choices(range(900), k=length)
        found.append(Arrival(due, make_request(first_id + len(found), tokens, 16, tenant=tenant)))
    return found


def new_scheduler() -> Scheduler:
    return build_scheduler(SchedulerConfig(target_itl=DEFAULT_TARGET_ITL), CacheConfig(kv_spec(16), 16_384))


def quiet_p99(machine: Machine, quiet_rate: float, noisy_rate: float, seconds: float) -> float:
    """The quiet tenant's 99th percentile of time to first token."""
    scheduler = new_scheduler()
    quiet = arrivals("quiet", quiet_rate, 64, seconds)
    coming = sorted(quiet + arrivals("noisy", noisy_rate, 1500, seconds), key=lambda arrival: arrival.at)
    first: dict[int, float] = {}
    # A server that has answered before knows what a step of decodes takes.
    scheduler.add(make_request(2_000_000, [1], 8, tenant="quiet"))
    for _ in play(scheduler, [], machine.execute):
        pass
    for step in play(scheduler, coming, machine.execute):
        for output in step.outputs:
            first.setdefault(output.request_id, step.ended)
        if step.ended >= seconds:
            break
    # Who came last was perhaps not served in the time.
    times = sorted(first[arrival.request.request_id] - arrival.at for arrival in quiet[:-5])
    return times[int(0.99 * len(times))]


def served(short_at_a_time: int, others: int, seconds: float) -> tuple[list[float], dict[str, int]]:
    """When a tenant's long prompts ended beside others whose short ones never end, and computed tokens by tenant."""
    scheduler = new_scheduler()
    rng, ended, computed, tenants = random.Random(3), [], Counter(), {}
    requests: dict[int, int] = {}

    def add(tenant: str, length: int) -> None:
        tenants[len(tenants)] = tenant
        tokens = rng.choices(range(900), k=length)
        scheduler.add(make_request(len(tenants) - 1, tokens, 1, tenant=tenant))

    def fill_up() -> None:
        for other in range(others):
            alive = sum(tenants[request] == f"short {other}" for request in scheduler._requests)
            for _ in range(short_at_a_time - alive):
                add(f"short {other}", 100)
        requests.update((each.id, each.request.request_id) for each in scheduler._sequences.values())

    for _ in range(100):
        add("long", 1500)
    fill_up()
    for step in play(scheduler, [], SMALL.execute):
        for row in step.plan.rows:
            computed[tenants[requests[row.sequence]]] += row.count
        ended += [step.ended for output in step.outputs if tenants[output.request_id] == "long"]
        if step.ended >= seconds:
            break
        fill_up()
    return ended, computed


@pytest.mark.parametrize(("short_at_a_time", "others"), [(1, 1), (8, 1), (8, 3)])
def test_who_goes_first_takes_no_more_than_its_share(short_at_a_time: int, others: int) -> None:
    """Long prompts have their share of the time beside short ones that never end, from the beginning."""
    ended, computed = served(short_at_a_time, others, seconds=20.0)
    assert computed["long"] >= 0.95 * sum(computed.values()) / (others + 1)
    # By the formula a prompt takes 0.22 s of the whole machine.
    assert ended[2] <= 1.25 * 3 * 0.22 * (others + 1)


@pytest.mark.parametrize(
    ("machine", "quiet", "share", "seconds"),
    [
        (SMALL, 8.0, 2.2, 20.0),
        (FAST, 23.0, 3.8, 10.0),
        (LARGE, 0.4, 0.13, 400.0),
        pytest.param(SMALL, 8.0, 2.2, 40.0, marks=pytest.mark.slow),
        pytest.param(FAST, 23.0, 3.8, 40.0, marks=pytest.mark.slow),
        pytest.param(LARGE, 0.4, 0.13, 800.0, marks=pytest.mark.slow),
    ],
)
def test_beside_a_noisy_tenant_a_quiet_one_is_served_as_on_its_share(
    machine: Machine, quiet: float, share: float, seconds: float
) -> None:
    """Beside one that sends ten times its share: no later than alone on half of the machine."""
    alone = quiet_p99(machine.half, quiet, 0.0, seconds)
    assert quiet_p99(machine, quiet, 10 * share, seconds) <= alone
