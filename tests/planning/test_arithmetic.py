"""Prices against volumes, and queueing against its published tables. Worked numbers are in `test_worked_numbers.py`."""

from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.planning.load import load_on, replicas_for, waiting, waits
from penstock.planning.money import ApiPrice, break_even, per_million


def test_break_even() -> None:
    api = ApiPrice(input=0.5, output=1.5, cached=0.05)
    assert api.month(1000, 2000, 500) == pytest.approx(1.75)
    assert api.month(1000, 2000, 500, cached_tokens=1000) == pytest.approx(1.30)
    found = break_even(5920.0, api.month(1, 2000, 500), requests_per_second=2.0)
    assert api.month(found.requests_a_month, 2000, 500) == pytest.approx(5920.0)
    assert found.most_a_month == 2.0 * 730 * 3600 and found.comes
    assert not break_even(5920.0, api.month(1, 2000, 500), requests_per_second=0.1).comes
    with pytest.raises(ConfigurationError, match="costs nothing"):
        break_even(5920.0, 0.0, 1.0)
    with pytest.raises(ConfigurationError, match="no price"):
        per_million(2.0, 1, 0)


def test_one_server_waits_as_everybody_knows() -> None:
    """M/M/1: a request finds it busy as often as it is, and P(W > t) = ρ e^(-(1 - ρ) t / s)."""
    for busy in (0.1, 0.5, 0.9):
        assert waits(1, busy) == pytest.approx(busy)
    late = waiting(1, 0.8, 2.0, 0.95)
    assert exp(-(1 - 0.8) * late / 2.0) == pytest.approx(0.05 / 0.8)


def test_erlangs_table() -> None:
    """From published tables of Erlang C: 10 places and 8 busy wait in 41% of cases, 5 and 3 in 24%."""
    assert waits(10, 8) == pytest.approx(0.409, abs=0.001)
    assert waits(5, 3) == pytest.approx(0.236, abs=0.001)


@given(places=st.integers(1, 2000), part=st.floats(0.01, 0.999), seconds=st.floats(0.01, 100))
def test_fuller_waits_longer_and_full_for_ever(places: int, part: float, seconds: float) -> None:
    busy = part * places
    assert 0 <= waits(places, busy) <= 1
    found = waiting(places, busy, seconds, 0.99)
    assert found >= waiting(places, busy, seconds, 0.5)
    assert found >= waiting(places + 1, busy, seconds, 0.99)
    assert found >= waiting(places, 0.9 * busy, seconds, 0.99)
    assert waiting(places, places, seconds, 0.5) == inf


def test_replicas_for_a_rate() -> None:
    """Ten thousand users who ask once a minute, for 8 s each, are 1,333 at a time."""
    load = replicas_for(places=32, rate=10_000 / 60, seconds=8.0)
    assert load.in_flight == pytest.approx(1333.3, rel=1e-3)
    assert load.utilisation <= 0.8 < load_on(load.replicas - 1, 32, load.rate, 8.0).utilisation
    # Few places wait longer than many at the same utilisation, so that they have to be emptier.
    single = replicas_for(places=1, rate=0.5, seconds=1.0, longest_wait=0.5)
    assert single.waiting_p99 <= 0.5 < load_on(single.replicas - 1, 1, 0.5, 1.0).waiting_p99
    with pytest.raises(ConfigurationError, match="above zero"):
        load_on(1, 1, 0.0, 1.0)
