"""Service levels: what a request must keep to be good."""

import re

import msgspec

from penstock.bench.load.outcome import End, Outcome
from penstock.core.errors import ConfigurationError

_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0}


class Slo(msgspec.Struct, frozen=True):
    """Most seconds of each figure; None where nothing is asked of it."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} ≤ {_shown(limit)}" for name, limit in self.limits().items())

    def limits(self) -> dict[str, float]:
        """The figures that have a limit."""
        return {name: limit for name, limit in msgspec.structs.asdict(self).items() if limit is not None}

    def met_by(self, outcome: Outcome) -> bool:
        """Whether a request succeeded within all limits; every gap between its chunks must be within `itl`.

        A figure that the request does not have, such as the TPOT of a single token, is within any limit.
        """
        if outcome.end is not End.OK:
            return False
        figures = {"ttft": outcome.ttft, "tpot": outcome.tpot, "itl": outcome.longest_gap, "e2e": outcome.e2e}
        return all((figures[name] or 0.0) <= limit for name, limit in self.limits().items())


def parse_slo(text: str | None) -> Slo | None:
    """Service levels of "ttft=500ms,tpot=50ms". Raises ConfigurationError."""
    if text is None:
        return None
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(ttft|tpot|itl|e2e)\s*=\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|)\s*", part)
        if match is None or match[1] in limits or not float(match[2]):
            raise ConfigurationError(
                f"--slo {text!r} is no list of limits; write ttft=500ms,tpot=50ms, of ttft, tpot, itl and e2e."
            )
        limits[match[1]] = float(match[2]) * _UNITS[match[3]]
    return Slo(**limits)


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:g} ms" if seconds < 1 else f"{seconds:g} s"
