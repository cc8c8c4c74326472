"""Two answers of /v1/stats become a window."""

import pytest

from penstock.core.errors import ConfigurationError
from penstock.doctor.observation import observe
from penstock.observability.stats import ProcessFigures, Stats
from support.observations import held, latencies, stats, steps

FIRST = stats(100.0, 40, steps(held=held(rows=3.0)), 20.0)


def test_what_adds_up_is_a_difference() -> None:
    found = observe(FIRST, stats(110.0, 60, steps(steps=1800, execute=14.0, held=held(rows=8.0)), 25.0))
    assert found.seconds == pytest.approx(10.0)
    assert found.requests == {"completed": 20, "cancelled": 0} and found.refused == {"queue_full": 2}
    assert (found.prompt_tokens, found.output_tokens, found.hits) == (1000, 4000, pytest.approx(0.25))
    assert found.steps.steps == 800 and found.steps.execute == pytest.approx(4.6)
    assert found.held("rows") == pytest.approx(0.5) and found.held("blocks") == 0.0
    assert found.api_cpu == pytest.approx(0.5)


def test_the_timeline_is_that_of_the_window() -> None:
    found = observe(FIRST, stats(110.0, 60, steps(), 21.0))
    assert [each.at for each in found.timeline] == [1100.0 + step for step in range(1, 11)]
    assert observe(FIRST, stats(101.0, 40, steps(), 20.0, timeline=[])).timeline == ()


def test_latencies_are_those_of_the_last_minute() -> None:
    assert observe(FIRST, stats(110.0, 60, steps(), 21.0)).latency == latencies()


@pytest.mark.parametrize(
    "later",
    [
        stats(5.0, 1, steps(steps=1), 1.0),
        stats(110.0, 60, steps(), 21.0, model="another"),
        stats(120.0, 60, steps(steps=10), 21.0),
    ],
    ids=["started again", "another model", "fewer steps"],
)
def test_two_lives_are_not_compared(later: Stats) -> None:
    with pytest.raises(ConfigurationError, match="started again"):
        observe(FIRST, later)


def test_what_cannot_be_told_is_not_0() -> None:
    untold = stats(110.0, 60, steps(), 21.0, processes={"api": ProcessFigures(1, None)})
    assert observe(FIRST, untold).api_cpu is None
    assert observe(FIRST, stats(110.0, 60, steps(), 2.0)).api_cpu is None, "it went backwards: another process"
