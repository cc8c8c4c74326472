"""Checks of single values as users give them. Each raises an error that names the field or the option."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ConfigurationError, InvalidParameter

# A year: longer than anything runs, and no infinity.
LONGEST_SECONDS = 86400.0 * 365


def check_option_seconds(option: str, value: float | None) -> None:
    """A time that an option gives, if it does: from a millisecond to a year. Raises ConfigurationError."""
    if value is not None and not 0.001 <= value <= LONGEST_SECONDS:
        raise ConfigurationError(f"{option} is {value:g}; it must be from 0.001 to {LONGEST_SECONDS:.0f} seconds.")


def check_integer(name: str, value: Any, low: int, high: int) -> None:
    """An integer, and no boolean, in low..high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(name, f"must be an integer, not {value!r}.")
    if not low <= value <= high:
        raise InvalidParameter(name, f"{_shown(value)} is outside {low}..{high}.")


def check_number(name: str, value: Any, low: float, high: float, *, exclusive_low: bool = False) -> None:
    """A finite number, and no boolean, in [low, high], or in (low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameter(name, f"must be a number, not {value!r}.")
    # Written so that NaN, which fails every comparison, is refused too.
    if not low <= value <= high or (exclusive_low and value == low):
        bracket = "(" if exclusive_low else "["
        raise InvalidParameter(name, f"{_shown(value)} is outside {bracket}{low:g}, {high:g}].")


def _shown(value: int | float) -> str:
    # Python refuses to write integers of thousands of digits.
    return f"An integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >= 2**128 else str(value)


def check_boolean(name: str, value: Any) -> None:
    """True or False, nothing that only counts as such."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, f"must be true or false, not {value!r}.")


def check_list(name: str, value: Any) -> None:
    """A list or a tuple."""
    if not isinstance(value, (list, tuple)):
        raise InvalidParameter(name, f"must be a list, not {value!r}.")


def check_mapping(name: str, value: Any) -> None:
    """Raises InvalidParameter where the value of `name` is no mapping."""
    if not isinstance(value, Mapping):
        raise InvalidParameter(name, f"must be a mapping, not {value!r}.")


def check_characters(name: str, text: str) -> None:
    """Text that UTF-8 can carry: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(name, "half of a surrogate pair is not a character; send whole characters.") from None
