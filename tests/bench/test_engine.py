"""Prefill and decode speeds, on a made-up clock."""

from collections.abc import Sequence

import pytest

from penstock.bench.engine import EngineFigures, as_text, measure_engine
from penstock.core.sampling import SamplingParams


class Timed:
    """An engine that takes the seconds it is given for each batch, in order."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.now, self.asked = 0.0, list[tuple[int, int, int | None]]()

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[None]:
        self.asked.append((len(prompts), len(prompts[0]), params.max_tokens))
        self.now += next(self._seconds)
        return [None] * len(prompts)


def measured(engine: Timed, repeat: int) -> EngineFigures:
    [figures] = measure_engine(engine, [4], 100, 10, 50, repeat, clock=lambda: engine.now)
    return figures


def test_decode_is_what_further_tokens_take() -> None:
    engine = Timed(99.0, 2.0, 9.0, 1.0, 7.0, 6.0, 1.0)
    figures = measured(engine, 3)
    assert figures == EngineFigures(4, 4 * 100 / 2.0, 4 * 10 / 4.0, pytest.approx(400.0))
    assert engine.asked == [(4, 100, 4), *[(4, 100, 1)] * 3, *[(4, 100, 11)] * 3]


@pytest.mark.parametrize("whole", [2.0, 1.5])
def test_a_machine_with_other_work_makes_no_figure_of_decode(whole: float) -> None:
    figures = measured(Timed(1.0, 2.0, whole), 1)
    assert figures == EngineFigures(4, 200.0, None, None)
    assert as_text(figures.decode_tokens_per_second, ",.1f") == "unclear" and as_text(1234.56, ",.1f") == "1,234.6"
