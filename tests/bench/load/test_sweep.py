"""The search finds the largest rate that is good."""

import pytest

from penstock.bench.load.sweep import CLOSE, largest_rate


def search(first: float, limit: float) -> tuple[float | None, list[float]]:
    """What is found at a server that can do `limit` a second, and what was tried."""
    tried, steps = [], largest_rate(first)
    rate = next(steps)
    while True:
        tried.append(rate)
        try:
            rate = steps.send(rate <= limit)
        except StopIteration as ended:
            return ended.value, tried


@pytest.mark.parametrize("limit", [0.3, 1.0, 1.4, 7.9, 30.0, 100.0])
@pytest.mark.parametrize("first", [1.0, 20.0])
def test_the_rate_is_found_closely(first: float, limit: float) -> None:
    found, tried = search(first, limit)
    assert found is not None
    assert found <= limit < found * CLOSE
    assert len(tried) <= 13


def test_a_server_that_can_do_nothing() -> None:
    found, tried = search(1.0, 0.0)
    assert found is None
    assert len(tried) == 8


def test_a_server_without_a_limit() -> None:
    found, tried = search(1.0, 1e9)
    assert found == max(tried) == 128.0
