"""Gateways that cannot reach each other have no more together than the bound, on a made-up clock."""

from math import inf, isclose

from hypothesis import given
from hypothesis import strategies as st

from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation
from penstock.metering.share import Share
from penstock.metering.window import SLOTS

MINUTE = 60.0
TOKENS = Meter("key/a", "tokens", 1000, MINUTE)
MONEY = Meter("key/a", "money", 1000, period="2026-11")
RUNNING = Meter("key/a", "running", 9)


class Apart:
    """One gateway's share, and what it has of all."""

    def __init__(self) -> None:
        self.share, self.own = Share(), Meters()

    def take(self, meter: Meter, amount: int, gateways: int, now: float) -> Reservation | Refusal:
        found = self.share.reserve([Charge(meter, amount)], gateways, self.own, now)
        if isinstance(found, Reservation):
            self.own.add(meter, amount, now)
        return found


@given(
    before=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 300)), max_size=12),
    asked=st.lists(st.tuples(st.floats(0, 15), st.integers(0, 2), st.integers(1, 300)), max_size=40),
)
def test_no_minute_has_more_than_the_bound(
    before: list[tuple[float, int]], asked: list[tuple[float, int, int]]
) -> None:
    store, gateways, now = Meters(), [Apart() for _ in range(3)], 1000.0
    used: list[tuple[float, int]] = []
    for seconds, amount in before:
        now += seconds
        found = store.reserve([Charge(TOKENS, amount)], now)
        for each in gateways:
            each.share.told(TOKENS, store.used(TOKENS, now), now)
        if isinstance(found, Reservation):
            used.append((now, amount))
    for each in gateways:
        each.share.part()
    for seconds, place, amount in asked:
        now += seconds
        found = gateways[place].take(TOKENS, amount, 3, now)
        if isinstance(found, Reservation):
            used.append((now, amount))
        else:
            assert found.meter == TOKENS
    for end, _ in used:
        assert sum(amount for moment, amount in used if end - MINUTE < moment <= end) <= TOKENS.most


def test_all_of_what_is_left_can_be_had() -> None:
    gateways = [Apart() for _ in range(4)]
    for each in gateways:
        each.share.told(TOKENS, 600, 1000.0)
        each.share.part()
    for each in gateways:
        assert isinstance(each.take(TOKENS, 100, 4, 1001.0), Reservation)
        refused = each.take(TOKENS, 1, 4, 1002.0)
        # What was used before is gone a minute after it was told; then each has a quarter.
        assert isinstance(refused, Refusal) and refused.used == 700
        later = 1002.0 + refused.seconds
        assert 1060.0 <= later <= 1063.0
        assert isinstance(each.take(TOKENS, 250, 4, later), Reservation)
        assert isinstance(each.take(TOKENS, 1, 4, later), Refusal)


def test_more_than_a_part_never_fits() -> None:
    refused = Apart().take(TOKENS, 251, 4, 1000.0)
    assert refused == Refusal(TOKENS, 0, inf)


def test_budgets_do_not_come_back() -> None:
    one = Apart()
    one.share.told(MONEY, 400, 1000.0)
    one.share.part()
    assert isinstance(one.take(MONEY, 300, 2, 1001.0), Reservation)
    assert one.take(MONEY, 1, 2, 1e6) == Refusal(MONEY, 700, inf)


def test_what_the_ledger_has_of_a_budget_is_known() -> None:
    one = Apart()
    one.share.told(MONEY, 100, 1000.0)
    one.share.at_least(MONEY, 400, 1000.0, apart=False)
    one.share.at_least(MONEY, 200, 1000.0, apart=False)
    one.share.part()
    assert isinstance(one.take(MONEY, 300, 2, 1001.0), Reservation)
    # What it has used itself since then comes to the ledger, too, and counts once.
    one.share.at_least(MONEY, 700, 1002.0, apart=True)
    assert one.take(MONEY, 1, 2, 1003.0) == Refusal(MONEY, 700, inf)
    one.share.at_least(MONEY, 900, 1004.0, apart=True)
    assert one.take(MONEY, 1, 2, 1005.0) == Refusal(MONEY, 900, inf)


def test_what_is_under_way_counts_whenever_it_began() -> None:
    one = Apart()
    one.own.add(RUNNING, 2, 1000.0)
    one.share.part()
    assert isinstance(one.take(RUNNING, 1, 3, 1001.0), Reservation)
    assert one.take(RUNNING, 1, 3, 1001.0) == Refusal(RUNNING, 3, inf)
    # There is always room for one.
    assert isinstance(Apart().take(RUNNING, 1, 100, 1001.0), Reservation)


def test_what_was_settled_makes_room() -> None:
    one = Apart()
    one.share.part()
    found = one.take(TOKENS, 500, 2, 1000.0)
    assert isinstance(found, Reservation) and isinstance(one.take(TOKENS, 1, 2, 1000.0), Refusal)
    for (meter, more), at in found.settled([100], 1001.0):
        one.share.add(meter, more, at)
    assert isinstance(one.take(TOKENS, 400, 2, 1001.0), Reservation)


def test_what_is_told_late_says_nothing() -> None:
    one = Apart()
    one.share.told(TOKENS, 900, 1000.0)
    one.share.told(TOKENS, 100, 999.0)
    one.share.part()
    refused = one.take(TOKENS, 101, 1, 1001.0)
    assert isinstance(refused, Refusal) and refused.used == 900


def test_what_was_taken_back_is_known() -> None:
    """And of what is left, the newest counts longest."""
    one = Apart()
    one.share.told(TOKENS, 500, 1000.0)
    one.share.told(TOKENS, 1000, 1030.0)
    one.share.told(TOKENS, 600, 1031.0)
    one.share.part()
    refused = one.take(TOKENS, 500, 1, 1031.0)
    assert isinstance(refused, Refusal) and refused.used == 600
    assert isclose(1031.0 + refused.seconds, 1061.0, abs_tol=4 * MINUTE / SLOTS + 1)
