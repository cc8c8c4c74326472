"""Meters against a model that keeps every request and adds them all up, on a made-up clock."""

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation
from penstock.metering.window import SLOTS, Window, slot_of

MINUTE = 60.0
METERS = (
    Meter("key/a", "requests", 5, MINUTE),
    Meter("key/a", "tokens", 1000, MINUTE),
    Meter("key/b", "tokens", 700, MINUTE),
    Meter("project/p", "tokens", 1500, MINUTE),
    Meter("project/p", "running", 4),
    Meter("project/p", "money", 10**12, period="2026-11"),
)
# How much longer than a minute a window may be.
A_SLOT = MINUTE / SLOTS


class Used:
    """What one request has used of each meter, and when: what it has reserved at most, and what was beyond."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.uses = [(reservation.at, charge.meter, charge.amount) for charge in reservation.charges]
        self.over = False

    def end(self, amounts: list[int], now: float) -> None:
        self.over = True
        self.uses = []
        for (meter, reserved), amount in zip(self.reservation.charges, amounts, strict=True):
            self.uses.append((self.reservation.at, meter, min(amount, reserved)))
            self.uses.append((now, meter, max(0, amount - reserved)))


class Machine(RuleBasedStateMachine):
    """Requests come, end as they were expected or otherwise, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.meters, self.now, self.all = Meters(), 1e6, []  # type: tuple[Meters, float, list[Used]]

    def exact(self, meter: Meter, seconds: float = inf) -> int:
        uses = (use for each in self.all for use in each.uses)
        return sum(amount for at, used, amount in uses if used == meter and at > self.now - seconds)

    @rule(seconds=st.one_of(st.floats(0, 2), st.floats(0, 100), st.sampled_from([0.5, 59.5, 60.0, 60.5])))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        chosen=st.sets(st.sampled_from(METERS), min_size=1),
        amounts=st.lists(st.integers(0, 600), min_size=len(METERS), max_size=len(METERS)),
    )
    def ask(self, chosen: set[Meter], amounts: list[int]) -> None:
        charges = [
            Charge(meter, 1 if meter.unit in ("requests", "running") else amount)
            for meter, amount in zip(METERS, amounts, strict=True)
            if meter in chosen
        ]
        before = [self.meters.used(meter, self.now) for meter in METERS]
        found = self.meters.reserve(charges, self.now)
        full = [meter for meter, amount in charges if before[METERS.index(meter)] + amount > meter.most]
        if isinstance(found, Refusal):
            assert found.meter in full
            assert [self.meters.used(meter, self.now) for meter in METERS] == before
            self.is_let_in_then(found, charges)
        else:
            assert not full
            self.all.append(Used(found))

    def is_let_in_then(self, refusal: Refusal, charges: list[Charge]) -> None:
        """What is said of when there is room is true, if nobody else takes it."""
        if refusal.seconds == inf:
            return
        later = self.now + refusal.seconds + 1e-6
        amount = next(amount for meter, amount in charges if meter == refusal.meter)
        assert self.meters._windows[refusal.meter.name].used + amount > refusal.meter.most
        copy = Window(MINUTE, self.meters._windows[refusal.meter.name].slots)
        assert copy.look(later) + amount <= refusal.meter.most
        copy = Window(MINUTE, self.meters._windows[refusal.meter.name].slots)
        assert copy.look(later - A_SLOT - 2e-6) + amount > refusal.meter.most

    @precondition(lambda self: any(not each.over for each in self.all))
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.3, 1.0, 1.5]))
    def end(self, data: st.DataObject, share: float) -> None:
        one = data.draw(st.sampled_from([each for each in self.all if not each.over]))
        amounts = [0 if meter.unit == "running" else int(amount * share) for meter, amount in one.reservation.charges]
        one.end(amounts, self.now)
        self.meters.settle(one.reservation, amounts, self.now)
        # Said again, it changes nothing.
        self.meters.settle(one.reservation, [77] * len(amounts), self.now)

    @invariant()
    def nothing_is_lost(self) -> None:
        for meter in METERS:
            used = self.meters.used(meter, self.now)
            if meter.seconds is None:
                assert used == self.exact(meter)
            else:
                assert self.exact(meter, MINUTE) <= used <= self.exact(meter, MINUTE + A_SLOT + 1e-6)


TestMachine = Machine.TestCase


def test_no_minute_has_more_than_its_bound_wherever_it_begins() -> None:
    """A client that asks all the time, each request as soon as it can."""
    meters, meter, times, now = Meters(), Meter("key/a", "requests", 600, MINUTE), [], 0.0
    while now < 300:
        found = meters.reserve([Charge(meter, 1)], now)
        if isinstance(found, Refusal):
            now += found.seconds
        else:
            times.append(now)
            now += 0.01
    for first, moment in enumerate(times):
        assert sum(moment <= other < moment + MINUTE for other in times[first:]) <= 600
    # And it has nearly all of it.
    assert len(times) >= 5 * 600 * (1 - 2 / SLOTS)


def test_what_is_larger_than_its_bound_never_fits() -> None:
    found = Meters().reserve([Charge(METERS[1], 1001)], 0.0)
    assert found == Refusal(METERS[1], 0, inf)


def test_of_several_full_meters_the_one_is_named_whose_room_comes_last() -> None:
    meters = Meters()
    assert isinstance(meters.reserve([Charge(METERS[1], 900)], 0.0), Reservation)
    assert isinstance(meters.reserve([Charge(METERS[3], 1500)], 30.0), Reservation)
    found = meters.reserve([Charge(METERS[1], 200), Charge(METERS[3], 200)], 40.0)
    assert isinstance(found, Refusal) and found.meter == METERS[3]
    assert 50.0 <= found.seconds <= 50.0 + A_SLOT


def test_an_hour_without_requests_forgets_all() -> None:
    window = Window(MINUTE)
    for second in range(100):
        window.add(3, slot_of(float(second), MINUTE))
    assert window.look(99.0) == 3 * 60 + 3 and window.look(3700.0) == 0 and not window.slots
