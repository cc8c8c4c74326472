"""Sizes as people write them."""

import re
from fractions import Fraction
from types import MappingProxyType

from penstock.core.errors import ConfigurationError

MAX_DIGITS = 24
_POWERS = "KMGT"
_UNITS = MappingProxyType(
    {"": 1, "B": 1}
    | {f"{letter}B": 1000**power for power, letter in enumerate(_POWERS, 1)}
    | {f"{letter}{ending}": 1024**power for power, letter in enumerate(_POWERS, 1) for ending in ("", "IB")}
)


def parse_size(text: str | None, option: str) -> int | None:
    """Bytes of a size such as "4GiB", "500 MB" or "1073741824". Raises ConfigurationError."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if match is not None and len(match[1]) > MAX_DIGITS:
        raise ConfigurationError(f"{option} has a number of {len(match[1])} digits, which no machine's memory needs.")
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigurationError(
            f"{option} {text!r} is not a size; write a number of bytes, or one like 4GiB or 500MB."
        )
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])
