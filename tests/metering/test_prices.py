"""What tokens cost: exactly, in integers."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.usage import Used
from penstock.metering.prices import TRILLIONTHS, Price, Prices

MONEY = st.decimals(0, 1000, places=6, allow_nan=False)
COUNTS = st.integers(0, 10**9)


@given(MONEY, MONEY | st.none(), MONEY, COUNTS, COUNTS, COUNTS)
def test_costs_are_exact(
    each: Decimal, cached: Decimal | None, output: Decimal, new: int, known: int, answer: int
) -> None:
    price = Price(model="m", input=each, cached=cached, output=output).check()
    with localcontext(prec=100):
        known_price = each if cached is None else cached
        exactly = (new * each + known * known_price + answer * output) / 10**6
        assert price.cost(Used(new + known, known, answer)) == exactly * TRILLIONTHS


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": Decimal(-1)}, "input is -1; it must be 0 to 1000000 for a million tokens"),
        ({"output": Decimal("NaN")}, "output is NaN"),
        ({"cached": Decimal("0.0000001")}, "it can have 6 digits behind the point"),
    ],
)
def test_prices_that_cannot_be(fields: dict[str, Decimal], says: str) -> None:
    price = Price(**{"model": "m", "input": Decimal(1), "output": Decimal(1), **fields})
    with pytest.raises(ConfigurationError) as caught:
        Prices([price])
    assert "The price of m" in caught.value.message and says in caught.value.message


def test_a_model_has_one_price() -> None:
    one = Price(model="m", input=Decimal(1), output=Decimal(2))
    with pytest.raises(ConfigurationError, match="The model m has two prices"):
        Prices([one], free=["m"])
    prices = Prices([one], free=["n"])
    free = prices.of("n")
    assert prices and prices.of("m") == one and prices.of("o") is None and not Prices()
    assert free is not None and free.cost(Used(5, 0, 5)) == 0
