"""What a machine's tokens cost."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.usage import Used
from penstock.metering.machine_price import machine_price
from penstock.metering.prices import TRILLIONTHS


def test_tokens_cost_the_seconds_that_they_take() -> None:
    price = machine_price("m", Decimal("3.6"), 0.0001, 0.01, busy=0.5)
    assert (price.input, price.cached, price.output) == (Decimal("0.2"), 0, Decimal(20))


@given(st.floats(0.01, 100), st.floats(1e-6, 0.01), st.floats(1e-5, 0.1), st.floats(0.05, 1))
def test_an_hour_of_work_pays_for_the_machine(cost: float, prompt: float, output: float, busy: float) -> None:
    price = machine_price("m", Decimal(str(cost)), prompt, output, busy)
    seconds = 3600 * busy / 2
    used = Used(round(seconds / prompt), 0, round(seconds / output))
    earned = Decimal(price.cost(used)) / TRILLIONTHS
    rounding = Decimal(used.prompt + used.output) * Decimal("1e-12")
    assert earned == pytest.approx(Decimal(str(cost)), rel=Decimal("0.01"), abs=rounding)


@pytest.mark.parametrize(("cost", "busy"), [("0", 1.0), ("-1", 1.0), ("NaN", 1.0), ("1", 0.0), ("1", 1.1)])
def test_what_cannot_be(cost: str, busy: float) -> None:
    with pytest.raises(ConfigurationError):
        machine_price("m", Decimal(cost), 0.1, 0.1, busy)
