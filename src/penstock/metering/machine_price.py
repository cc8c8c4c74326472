"""What tokens of own machines cost: the seconds of a machine that each takes, at what the machine costs."""

from decimal import Decimal

from penstock.core.errors import ConfigurationError
from penstock.metering.prices import Price

_A_MILLION = 10**6
_HOUR = 3600
_DIGITS = Decimal("0.000001")


def machine_price(
    model: str, cost_per_hour: Decimal, input_seconds: float, output_seconds: float, busy: float
) -> Price:
    """The price of a model's tokens on a machine, to a millionth for a million tokens.

    Tokens that a prefix cache has take no seconds, and cost nothing.

    Args:
        cost_per_hour: of the machine.
        input_seconds, output_seconds: of the machine for a token of a prompt, and of an answer.
        busy: the part of the time in which it has work; the rest is paid for by the same tokens.

    Raises ConfigurationError for what cannot be.
    """
    if not cost_per_hour.is_finite() or cost_per_hour <= 0:
        raise ConfigurationError(f"The cost of the machine is {cost_per_hour}; it must be more than 0 an hour.")
    if not 0 < busy <= 1:
        raise ConfigurationError(f"The machine is busy {busy:g} of the time; it must be above 0 and at most 1.")

    def price(seconds: float) -> Decimal:
        exact = cost_per_hour / _HOUR * Decimal(seconds) * _A_MILLION / Decimal(busy)
        return exact.quantize(_DIGITS).normalize() + Decimal(0)

    return Price(model=model, input=price(input_seconds), cached=Decimal(0), output=price(output_seconds)).check()
