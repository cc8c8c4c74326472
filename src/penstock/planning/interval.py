"""An estimate, between what it is likely to be."""

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """An estimate, between what it is likely to be, and what it stands on."""

    value: float
    low: float
    high: float
    basis: str


def around(value: float, low: float, high: float, basis: str) -> Interval:
    """The interval whose ends are multiples of the estimate."""
    return Interval(value, value * low, value * high, basis)
