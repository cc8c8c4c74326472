"""What is counted of requests and steps, in all and second by second."""

from collections.abc import Callable

import pytest

from penstock.configuration.slo import Slo
from penstock.core.events import LoadSnapshot
from penstock.core.facts import Admission as Admitted
from penstock.core.facts import Fetched, PrefixFound, StepFacts, StepTotals, TierCame, TierFound
from penstock.engine.interface import SampleDelta
from penstock.engine.journal import Journal, Mark
from penstock.observability.metrics import Metrics, Outcome


class Clock:
    """Time that passes as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def metrics_of(clock: Clock, slo: Slo | None = None) -> Metrics:
    return Metrics(LoadSnapshot, slo=slo, clock=clock)


def delta(text: str = "a", index: int = 0) -> SampleDelta:
    return SampleDelta(index, text, [7])


def test_a_request_is_measured_where_its_client_notices(clock: Clock) -> None:
    metrics = metrics_of(clock)
    meter = metrics.begin("chat")
    meter.accepted(5)
    clock.now += 0.25
    meter.tokens(1)
    # A token without text is not seen.
    meter.passed_on([delta("")], ids=False)
    assert meter.ttft is None and metrics.in_flight == 1
    for wait in (0.25, 0.125, 0.5):
        clock.now += wait
        meter.tokens(1)
        meter.passed_on([delta()], ids=False)
    assert (meter.ttft, meter.longest_gap) == (0.5, 0.5)
    clock.now += 0.125
    meter.finished("stop")
    assert meter.end("completed") == 1.25
    meter.end("cancelled")
    assert metrics.requests["chat", "completed"] == 1 and sum(metrics.requests.values()) == 1
    assert (metrics.in_flight, metrics.prompt_tokens, metrics.generation_tokens) == (0, 5, 4)
    assert metrics.finished["stop"] == 1
    found = [latency.life() for latency in (metrics.ttft, metrics.itl, metrics.tpot, metrics.e2e)]
    assert [each.count for each in found] == [1, 2, 1, 1]
    assert [each.max for each in found] == [0.5, 0.5, (1.25 - 0.5) / 3, 1.25]


def test_gaps_are_those_of_each_sample(clock: Clock) -> None:
    metrics = metrics_of(clock)
    meter = metrics.begin("completions")
    for indices in ((0, 1), (0,), (1,)):
        clock.now += 0.5
        meter.tokens(len(indices))
        meter.passed_on([delta(index=index) for index in indices], ids=False)
    meter.end("completed")
    assert metrics.itl.life().count == 2 and metrics.itl.life().max == 1.0
    # Two tokens each: (1.5 - 0.5) / (2 - 1).
    assert metrics.tpot.life().max == 1.0


def test_chunks_are_stamped_together_once_they_are_written(clock: Clock) -> None:
    later: list[Callable[[], None]] = []
    metrics = Metrics(LoadSnapshot, clock=clock, soon=later.append)
    first, second = metrics.begin("chat"), metrics.begin("chat", arrived=clock.now - 1.0)
    for meter in (first, second):
        clock.now += 0.25
        meter.passed_on([delta()], ids=False)
    clock.now += 0.25
    # One look at the clock for all that a step has brought.
    [stamp] = later
    stamp()
    assert (first.ttft, second.ttft) == (0.75, 1.75)
    later.clear()
    for meter in (first, second):
        meter.passed_on([delta()], ids=False)
    clock.now += 0.5
    # Whoever ends does not wait for that, and is not counted again.
    first.end("completed")
    assert (first.longest_gap, second.longest_gap) == (0.5, None)
    clock.now += 0.5
    later[0]()
    assert (first.longest_gap, second.longest_gap) == (0.5, 1.0) and len(later) == 1
    assert metrics.itl.life().count == 2


def test_of_tokens_that_nobody_sees_the_end_is_the_first(clock: Clock) -> None:
    metrics = metrics_of(clock)
    meter = metrics.begin("chat")
    meter.tokens(1)
    clock.now += 2.0
    meter.end("completed")
    assert meter.ttft == 2.0 and metrics.ttft.life().count == 1
    # A single token has no TPOT, and an embedding neither.
    metrics.begin("embeddings").end("completed")
    assert (metrics.ttft.life().count, metrics.tpot.life().count, metrics.e2e.life().count) == (1, 0, 2)


@pytest.mark.parametrize(
    ("outcome", "judged", "missed"),
    [
        ("completed", 1, []),
        ("failed", 1, ["failed"]),
        ("refused", 1, ["failed"]),
        ("timed_out", 1, ["failed"]),
        ("cancelled", 0, []),
        ("rejected", 0, []),
    ],
)
def test_who_is_judged(clock: Clock, outcome: Outcome, judged: int, missed: list[str]) -> None:
    metrics = metrics_of(clock, Slo(ttft=0.5))
    meter = metrics.begin("chat")
    meter.tokens(3)
    meter.passed_on([delta()], ids=False)
    meter.end(outcome)
    good = outcome == "completed"
    assert (metrics.judged, metrics.good, metrics.good_tokens) == (judged, good, 3 * good)
    assert list(meter.missed) == missed == [miss for miss, count in metrics.missed.items() if count]


def test_a_good_request_meets_all_limits(clock: Clock) -> None:
    metrics = metrics_of(clock, Slo(ttft=0.5, itl=0.2, e2e=1.0))
    for first, gap in ((0.5, 0.1), (0.5, 0.25), (0.75, 0.1), (0.75, 0.3)):
        meter = metrics.begin("chat")
        clock.now += first
        meter.passed_on([delta()], ids=False)
        clock.now += gap
        meter.passed_on([delta()], ids=False)
        meter.end("completed")
    assert (metrics.judged, metrics.good) == (4, 1)
    assert metrics.missed == {"ttft": 2, "itl": 2, "tpot": 0, "e2e": 1, "failed": 0}


def test_the_time_in_the_queue_is_that_of_each_prompt(clock: Clock) -> None:
    metrics = metrics_of(clock)
    meter = metrics.begin("completions")
    journals = [Journal(5, Mark(clock.now, StepTotals())) for _ in range(3)]
    for journal in journals:
        meter.follow(journal)
    admitted = Admitted(1, 0, again=False, prefix=PrefixFound(0, 0))
    journals[0].admission(admitted, StepFacts(began=clock.now + 0.5), StepTotals())
    meter.tokens(1)
    assert metrics.queue.life().count == 1
    journals[1].admission(admitted, StepFacts(began=clock.now + 2.0), StepTotals())
    meter.tokens(1)
    # The third one was never begun.
    meter.end("cancelled")
    found = metrics.queue.life()
    assert (found.count, found.max) == (2, 2.0)


def test_steps_are_counted_by_their_size(clock: Clock) -> None:
    metrics = metrics_of(clock)
    metrics.step(StepFacts(schedule=0.001, execute=0.01, sample=0.002, budget=100, rows=3, decodes=2, chunk_tokens=48))
    metrics.step(StepFacts(execute=0.001, budget=100, rows=1, decodes=1, held="blocks"))
    assert metrics.held == "blocks"
    assert dict(metrics.step_rows.cumulative())["1.0"] == 1 and metrics.step_rows.sum == 4
    assert dict(metrics.step_tokens.cumulative())["64.0"] == 2 and metrics.step_tokens.sum == 51
    assert metrics.step_budget_used.sum == pytest.approx(0.51)
    assert metrics.step_seconds.sum == pytest.approx(0.014)


def test_every_second_has_its_own_sums(clock: Clock) -> None:
    metrics = metrics_of(clock)
    for second in range(3):
        for _ in range(second + 1):
            metrics.begin("chat").accepted(10)
        metrics.generation_tokens += 1
        metrics.itl.observe(1.0 + second)
        clock.now += 1.0
    metrics.now()
    marks = list(metrics.marks)
    assert [mark.at for mark in marks] == [100.0, 101.0, 102.0, 103.0]
    assert [mark.sums.prompt_tokens for mark in marks] == [0, 10, 30, 60]
    assert [mark.sums.output_tokens for mark in marks] == [0, 1, 2, 3]
    assert [mark.itl for mark in marks[1:]] == [pytest.approx(median, rel=0.01) for median in (1.0, 2.0, 3.0)]


@pytest.mark.parametrize("idle", [1, 5, 59, 60, 61, 1000])
def test_seconds_in_which_nothing_happens_pass_too(clock: Clock, idle: int) -> None:
    metrics = metrics_of(clock)
    metrics.ttft.observe(0.5)
    metrics.prompt_tokens += 3
    clock.now += idle + 0.5
    metrics.now()
    marks = list(metrics.marks)
    assert marks[-1].at == 100.0 + idle and len(marks) == min(idle + 1, 61)
    assert [after.at - before.at for before, after in zip(marks[1:], marks[2:], strict=False)] == [1.0] * (
        len(marks) - 2
    )
    seen = metrics.ttft.minute().count
    assert seen == (1 if idle <= 60 else 0) and metrics.ttft.life().count == 1
    # What was counted before is in the first second after it, as long as that is within the window.
    assert marks[-1].sums.prompt_tokens - marks[0].sums.prompt_tokens == (3 if idle <= 60 else 0)
    clock.now += 1.0
    metrics.now()
    assert metrics.marks[-1].at == 101.0 + idle


def test_tokens_are_counted_by_the_tier_that_had_them(clock: Clock) -> None:
    metrics = metrics_of(clock)
    from_disk = PrefixFound(96, 64, tiers=(TierFound("pool", 16), TierFound("disk", 48, 3000)))
    slower = PrefixFound(96, 0, tiers=(TierFound("pool"), TierFound("disk", 0, 0, 80, "slower", 2.0, 1.0)))
    admissions = [
        Admitted(1, 0, False, from_disk),
        Admitted(2, 0, False, slower),
        Admitted(3, 0, False, PrefixFound(5, 5)),
    ]
    swapped = Admitted(4, 0, True, PrefixFound(96, 32), swapped=64)
    metrics.step(StepFacts(admissions=[*admissions, swapped], stored={"disk": 500}))
    lost = Fetched(1, 0, [TierCame("disk", 16, 32, "failed", 1000, 0.25)])
    metrics.step(StepFacts(fetched=[lost, Fetched(5, 0, [TierCame("disk", left=48, why_left="late")])]))
    assert metrics.tier_tokens == {"pool": 21, "memory": 0, "peer": 0, "disk": 16, "shared": 0}
    left = {why: count for (_, why), count in metrics.tier_left.items() if count}
    assert left == {"slower": 80, "failed": 32, "late": 48}
    assert (metrics.tier_read["disk"], metrics.tier_stored["disk"]) == (1000, 500)
    assert metrics.fetch_seconds["disk"].sum == 0.25
