"""What tokens cost, in integers: sums of costs are exact, however many there are."""

from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from functools import cached_property

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.usage import Used

# A cost is in trillionths of the currency, so that a millionth of it for a million tokens is 1 a token.
_TWELVE = 12
TRILLIONTHS = 10**_TWELVE
_A_MILLION = 10**6
_MOST_PRICE = 10**6
_DIGITS = 6


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What a million tokens of a model cost.

    Attributes:
        input: of prompts.
        cached: of prompts, where they were in a cache; None: as others.
        output: of answers.
        batch: the part of these that lines of batches cost.
    """

    model: str
    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    batch: Decimal = Decimal("0.5")

    def check(self) -> "Price":
        """Itself. Raises ConfigurationError for what cannot be."""
        for name in ("input", "cached", "output"):
            value = getattr(self, name)
            if value is None:
                continue
            if not value.is_finite() or not 0 <= value <= _MOST_PRICE:
                raise ConfigurationError(
                    f"The price of {self.model}: {name} is {value}; it must be 0 to {_MOST_PRICE} for a million tokens."
                )
            if value * 10**_DIGITS % 1:
                raise ConfigurationError(
                    f"The price of {self.model}: {name} is {value}; it can have {_DIGITS} digits behind the point."
                )
        if not self.batch.is_finite() or not 0 <= self.batch <= 1:
            raise ConfigurationError(f"The price of {self.model}: batch is {self.batch}; it must be 0 to 1.")
        return self

    @cached_property
    def of_batches(self) -> "Price":
        """What lines of batches cost, rounded up to the digits that a price has."""

        def part(price: Decimal) -> Decimal:
            return (price * self.batch).quantize(Decimal(1).scaleb(-_DIGITS), ROUND_CEILING)

        cached = None if self.cached is None else part(self.cached)
        return Price(model=self.model, input=part(self.input), output=part(self.output), cached=cached)

    def cost(self, used: Used) -> int:
        """Of what was used, in trillionths."""
        new, cached, output = self._of_a_token
        return (used.prompt - used.cached) * new + used.cached * cached + used.output * output

    @cached_property
    def _of_a_token(self) -> tuple[int, int, int]:
        """In trillionths: of a prompt, where it was cached, and of an answer."""
        cached = self.input if self.cached is None else self.cached
        new, known, output = (int(each * TRILLIONTHS / _A_MILLION) for each in (self.input, cached, self.output))
        return new, known, output


def money(trillionths: int) -> Decimal:
    """A cost in the currency, exactly."""
    return Decimal(trillionths).scaleb(-_TWELVE).normalize() + Decimal(0)


class Prices:
    """Of all models that have one.

    Args:
        free: models that cost nothing.
    """

    def __init__(self, prices: Iterable[Price] = (), free: Iterable[str] = ()) -> None:
        """Raises ConfigurationError where a model has two, or one that cannot be."""
        self._prices: dict[str, Price] = {}
        nothing = (Price(model=model, input=Decimal(0), output=Decimal(0)) for model in free)
        for price in (*prices, *nothing):
            if price.model in self._prices:
                raise ConfigurationError(f"The model {price.model} has two prices; leave one out.")
            self._prices[price.model] = price.check()

    def __bool__(self) -> bool:
        return bool(self._prices)

    def of(self, model: str) -> Price | None:
        """None where the model has no price."""
        return self._prices.get(model)
