"""Service levels: how they are written, and which of them a request's figures miss."""

import pytest

from penstock.configuration.slo import Slo, parse_slo
from penstock.core.errors import ConfigurationError


def test_service_levels_as_they_are_written() -> None:
    assert parse_slo("ttft=500ms, tpot=50ms") == Slo(ttft=0.5, tpot=0.05)
    assert parse_slo("itl=0.2s,e2e=3") == Slo(itl=0.2, e2e=3.0)
    assert str(Slo(ttft=0.5, e2e=3.0)) == "TTFT ≤ 500 ms, E2E ≤ 3 s"
    assert parse_slo(None) is None


@pytest.mark.parametrize("text", ["", "ttft", "ttft=0", "ttft=5m", "p99=1s", "ttft=-1s", "ttft=nan", "ttft=1s,"])
def test_what_is_no_limit_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--slo: .* is no limit; write ttft=500ms"):
        parse_slo(text)


def test_a_limit_is_written_once() -> None:
    with pytest.raises(ConfigurationError, match="--slo has ttft twice"):
        parse_slo("ttft=1s,itl=3ms,ttft=2s")


def test_a_request_misses_the_limits_that_its_figures_exceed() -> None:
    slo = Slo(ttft=0.5, itl=0.1, tpot=0.05)
    assert slo.misses({"ttft": 0.5, "itl": 0.1, "tpot": 0.05, "e2e": 100.0}) == []
    assert slo.misses({"ttft": 0.51, "itl": 0.11, "tpot": 0.01, "e2e": 1.0}) == ["ttft", "itl"]
    # A single token has no TPOT, and no gaps.
    assert slo.misses({"ttft": 0.1, "itl": None, "tpot": None, "e2e": 0.1}) == []
