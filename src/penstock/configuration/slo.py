"""Service levels: what a request must keep to be good. The server and the load generator judge by the same rules."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError

Figure = Literal["ttft", "tpot", "itl", "e2e"]

_UNITS: Mapping[str, float] = MappingProxyType({"ms": 1e-3, "s": 1.0, "": 1.0})


class Slo(msgspec.Struct, frozen=True):
    """Most seconds of each figure; None where nothing is asked of it.

    Attributes:
        ttft: time to first token.
        tpot: time per output token after the first.
        itl: every single gap between a request's chunks, so its longest.
        e2e: to the last chunk.
    """

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} ≤ {_shown(limit)}" for name, limit in self.limits().items())

    def limits(self) -> dict[Figure, float]:
        """The figures that have a limit."""
        limits: dict[Figure, float | None] = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2e": self.e2e}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def misses(self, figures: Mapping[Figure, float | None]) -> list[Figure]:
        """The limits that a request's figures exceed; `itl` is its longest gap.

        A figure that a request does not have, such as the TPOT of a single token, is within any limit.
        """
        return [name for name, limit in self.limits().items() if (figures[name] or 0.0) > limit]


def parse_slo(text: str | None) -> Slo | None:
    """Service levels of "ttft=500ms,tpot=50ms". Raises ConfigurationError."""
    if text is None:
        return None
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(ttft|tpot|itl|e2e)\s*=\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|)\s*", part)
        if match is None or not float(match[2]):
            raise ConfigurationError(
                f"--slo: {part[:80]!r} is no limit; write ttft=500ms,tpot=50ms, of ttft, tpot, itl and e2e, in ms or s."
            )
        if match[1] in limits:
            raise ConfigurationError(f"--slo has {match[1]} twice; write it once.")
        limits[match[1]] = float(match[2]) * _UNITS[match[3]]
    return Slo(**limits)


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:g} ms" if seconds < 1 else f"{seconds:g} s"
