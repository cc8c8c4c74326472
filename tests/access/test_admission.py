"""Admission: what is refused and why, what never is, and that what waits is counted right whatever happens."""

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.access.admission import (
    LONGEST_RETRY,
    SHORTEST_RETRY,
    AdmissionControl,
    AdmissionRequest,
    OutputLengths,
    QueueBounds,
    Ticket,
)
from penstock.core.errors import MemoryPressure, Overloaded, QueueFull, SloUnreachable
from penstock.core.events import LoadSnapshot

IDLE = LoadSnapshot(blocks_total=1000)


def never() -> float:
    """A chance that refuses nobody."""
    return 0.999999


def make(requests: int = 10, tokens: int = 10_000, ttft: float | None = None, chance: Any = never) -> AdmissionControl:
    return AdmissionControl(
        QueueBounds(requests=requests, tokens=tokens, ttft=ttft), lambda length: -(-length // 16), chance
    )


def demand(
    tokens: int = 10, count: int = 1, most: int | None = 50, samples: int = 1, **others: Any
) -> AdmissionRequest:
    return AdmissionRequest(prompts=(tokens,) * count, samples=samples, max_tokens=(most,) * count, **others)


def fill(
    admission: AdmissionControl, count: int, load: LoadSnapshot = IDLE, now: float = 0.0, **fields: Any
) -> list[Ticket]:
    return [admission.admit(demand(**fields), load, now) for _ in range(count)]


def begin(admission: AdmissionControl, ticket: Ticket, load: LoadSnapshot, now: float) -> None:
    admission.gained(ticket, 0, 1, load, now, ended=False)


def refused(call: Callable[[], object]) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        call()
    return caught.value


def test_the_queue_is_bounded_and_what_has_begun_is_no_part_of_it() -> None:
    admission = make(requests=3)
    tickets = fill(admission, 3)
    error = refused(lambda: admission.check(IDLE, 0.0))
    assert type(error) is QueueFull and "3 prompts wait, of 3" in error.message
    assert f"try again in {error.retry_after} s" in error.message
    refused(lambda: admission.admit(demand(), IDLE, 0.0))
    begin(admission, tickets[1], IDLE, 1.0)
    admission.check(IDLE, 1.0)
    admission.admit(demand(), IDLE, 1.0)
    refused(lambda: admission.check(IDLE, 1.0))
    # Whoever leaves, having begun or not, makes room once.
    for ticket in (tickets[0], tickets[0], tickets[1]):
        admission.leave(ticket, IDLE, 2.0)
    assert admission.waiting() == (2, 20)


def test_tokens_are_bounded_too_but_alone_any_request_may_come() -> None:
    admission = make(tokens=100)
    (large,) = fill(admission, 1, tokens=500)
    assert "--max-queued-tokens" in refused(lambda: admission.admit(demand(1), IDLE, 0.0)).message
    begin(admission, large, IDLE, 0.0)
    fill(admission, 2, tokens=50)
    refused(lambda: admission.admit(demand(1), IDLE, 0.0))


def test_more_prompts_than_the_queue_holds_are_served_where_nothing_waits() -> None:
    admission = make(requests=4)
    ticket = admission.admit(demand(count=6, samples=2), IDLE, 0.0)
    assert admission.waiting() == (6, 60)
    for sample in range(6):
        admission.gained(ticket, sample, 1, IDLE, 0.0, ended=False)
    assert admission.waiting() == (3, 30)
    fill(admission, 1)
    refused(lambda: admission.admit(demand(), IDLE, 0.0))


@pytest.mark.parametrize(("waiting", "probability"), [(79, 0.0), (80, 0.0), (85, 0.25), (90, 0.5), (99, 0.95)])
def test_the_fuller_the_queue_the_more_are_refused(waiting: int, probability: float) -> None:
    draws = [0.0]
    admission = make(requests=100, chance=lambda: draws[0])
    fill(admission, waiting)
    for draw in (0.0, probability - 0.01, probability + 0.01, 0.999):
        draws[0] = max(draw, 0.0)
        if draws[0] < probability - 1e-9:
            assert type(refused(lambda: admission.shed(0, IDLE, 0.0))) is QueueFull
        else:
            admission.shed(0, IDLE, 0.0)


def test_higher_priorities_are_shed_last() -> None:
    admission = make(requests=10, chance=lambda: 0.0)
    fill(admission, 9)
    refused(lambda: admission.shed(0, IDLE, 0.0))
    refused(lambda: admission.shed(1, IDLE, 0.0))
    # Nobody waits before it.
    admission.shed(-1, IDLE, 0.0)
    admission.admit(demand(priority=-1), IDLE, 0.0)
    # The bound is everybody's.
    refused(lambda: admission.check(IDLE, 0.0))


def serve(admission: AdmissionControl, seconds: int, tokens: int = 100) -> tuple[LoadSnapshot, float]:
    """Under a backlog one prompt of so many tokens begins each second; the queue stays as long as it is."""
    load, now = LoadSnapshot(waiting=5, blocks_total=10**6), 0.0
    tickets = fill(admission, 4, load, now, tokens=tokens)
    for second in range(seconds):
        now = second + 1.0
        load = LoadSnapshot(waiting=5, blocks_total=10**6, prefill_tokens=tokens * (second + 1))
        begin(admission, tickets.pop(0), load, now)
        tickets += fill(admission, 1, load, now, tokens=tokens)
    return load, now


def test_a_first_token_that_would_come_too_late_is_not_waited_for() -> None:
    admission = make(ttft=4.2)
    load, now = serve(admission, 20)
    # Four prompts wait, for 4 s in all: one more of 100 tokens would have its first token after 5 s.
    error = refused(lambda: admission.admit(demand(100), load, now))
    assert type(error) is SloUnreachable and "after 5.0 s" in error.message and "--max-ttft" in error.message
    admission.admit(demand(10), load, now)
    refused(lambda: admission.shed(0, LoadSnapshot(waiting=5, prefill_tokens=2000), now + 5.0))
    # It would not wait for those.
    admission.admit(demand(1000, priority=-1), load, now)


def test_without_a_backlog_nothing_is_known_and_nobody_is_refused() -> None:
    admission = make(requests=100, ttft=0.001)
    for second in range(50):
        (ticket,) = fill(admission, 1, LoadSnapshot(prefill_tokens=second), float(second))
        begin(admission, ticket, LoadSnapshot(prefill_tokens=second + 1), second + 0.9)
    fill(admission, 70, LoadSnapshot(prefill_tokens=50), 60.0)
    admission.shed(0, IDLE, 61.0)


def test_clients_come_back_when_the_queue_has_drained_and_not_together() -> None:
    for chance in (0.0, 0.25, 0.5, 0.999):
        admission = make(requests=4, chance=lambda chance=chance: chance)  # type: ignore[misc]
        load, now = serve(admission, 20)
        assert refused(lambda: admission.check(load, now)).retry_after == math.ceil(4 * (0.5 + chance))  # noqa: B023


@pytest.mark.parametrize("silence", [0.0, 1e3, 1e6])
@given(chance=st.floats(0, 1, exclude_max=True))
@settings(max_examples=20)
def test_the_time_to_come_back_is_bounded(silence: float, chance: float) -> None:
    admission = make(requests=4, chance=lambda: chance)
    load, now = serve(admission, 3)
    after = refused(lambda: admission.check(load, now + silence)).retry_after
    assert after is not None and SHORTEST_RETRY <= after <= LONGEST_RETRY


def test_memory_that_is_promised_is_not_promised_twice_once_there_is_a_queue() -> None:
    # The pool has 100 blocks, 60 of them used by what has begun.
    admission = make(requests=20)
    load = LoadSnapshot(blocks_total=100, blocks_used=60)
    begun = fill(admission, 1, load, tokens=32, most=160)
    begin(admission, begun[0], load, 0.0)
    # It has 3 blocks and is expected to have 12; each that waits is expected to need 10 + 3.
    fill(admission, 3, load, tokens=160, most=48)
    error = refused(lambda: admission.admit(demand(160, most=48), load, 0.0))
    assert type(error) is MemoryPressure and "100 blocks 60 are used" in error.message
    # Where no more is used, more is taken on.
    admission.admit(demand(160, most=48), LoadSnapshot(blocks_total=100, blocks_used=20), 0.0)


def test_beams_are_promised_the_memory_of_each() -> None:
    admission = make()
    alone, beams = (
        admission.consider(demand(tokens=160, most=160, samples=2, beams=each), IDLE, 0.0) for each in (1, 3)
    )
    # 10 blocks of the prompt, and 10 behind it for each sequence.
    assert (alone.promised, beams.promised) == (10 + 2 * 10, 10 + 6 * 10)


def test_memory_is_no_reason_without_a_queue() -> None:
    admission = make(requests=20)
    full = LoadSnapshot(blocks_total=100, blocks_used=100)
    fill(admission, 3, full, tokens=160)
    refused(lambda: admission.admit(demand(160), full, 0.0))


def test_lengths_are_learnt_by_tenant_and_bounded_by_what_is_asked_for() -> None:
    lengths = OutputLengths()
    assert lengths.expect("a", None) == 256 and lengths.expect("a", 10) == 10
    for _ in range(200):
        lengths.observe("a", 20)
        lengths.observe("b", 900)
    assert 20 <= lengths.expect("a", None) <= 60
    assert 800 <= lengths.expect("b", None) <= 900
    assert 60 < lengths.expect("new", None) < 800
    for _ in range(200):
        lengths.observe("a", 500)
    assert lengths.expect("a", None) > 400


def test_lengths_of_any_number_of_tenants_take_bounded_memory() -> None:
    lengths = OutputLengths()
    for index in range(5000):
        lengths.observe(str(index), 1)
    assert len(lengths._tenants) == 1024


class Machine(RuleBasedStateMachine):
    """Any order of events: what waits is what was admitted and has neither begun nor left, within the bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = AdmissionControl(
            QueueBounds(requests=8, tokens=400, ttft=5.0), lambda length: -(-length // 16), never
        )
        self.tickets: list[Ticket] = []
        self.waiting: dict[tuple[int, int], tuple[int, int]] = {}
        self.now = 0.0
        self.prefilled = 0

    @property
    def load(self) -> LoadSnapshot:
        return LoadSnapshot(waiting=len(self.waiting), blocks_total=50, prefill_tokens=self.prefilled)

    @rule(tokens=st.integers(1, 300), count=st.integers(1, 5), samples=st.integers(1, 3), priority=st.integers(-2, 2))
    def come(self, tokens: int, count: int, samples: int, priority: int) -> None:
        asked = demand(tokens, count, samples=samples, priority=priority)
        try:
            self.admission.check(self.load, self.now)
            self.admission.shed(priority, self.load, self.now)
            ticket = self.admission.admit(asked, self.load, self.now)
        except Overloaded as error:
            assert self.waiting, "nothing waits, and yet a request was refused"
            assert error.retry_after is not None and 1 <= error.retry_after <= 60
            return
        if self.waiting:
            assert len(self.waiting) + count <= 8
        self.tickets.append(ticket)
        self.waiting |= {(id(ticket), prompt): (tokens, priority) for prompt in range(count)}

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), tokens=st.integers(0, 5), ended=st.booleans(), seconds=st.floats(0, 3))
    def gain(self, data: st.DataObject, tokens: int, ended: bool, seconds: float) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        sample = data.draw(st.integers(0, len(ticket.produced) - 1))
        self.now += seconds
        gone = self.waiting.pop((id(ticket), sample // ticket.request.samples), None)
        self.prefilled += gone[0] if gone else 0
        self.admission.gained(ticket, sample, tokens, self.load, self.now, ended=ended)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), times=st.integers(1, 2))
    def leave(self, data: st.DataObject, times: int) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        for prompt in range(len(ticket.request.prompts)):
            self.waiting.pop((id(ticket), prompt), None)
        for _ in range(times):
            self.admission.leave(ticket, self.load, self.now)

    @invariant()
    def what_is_promised_is_what_was_not_given(self) -> None:
        for ticket in self.tickets:
            own = sum(-(-ticket.request.prompts[prompt] // 16) for prompt in ticket.waiting)
            assert ticket.promised == own + sum(ticket.owed) and min(ticket.owed) >= 0
        assert self.admission._promised == sum(ticket.promised for ticket in self.tickets)

    @invariant()
    def what_waits_is_counted(self) -> None:
        for priority in (None, -2, -1, 0, 1, 2):
            known = [tokens for tokens, own in self.waiting.values() if priority is None or own <= priority]
            assert self.admission.waiting(priority) == (len(known), sum(known))


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
