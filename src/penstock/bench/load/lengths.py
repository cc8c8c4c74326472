"""Numbers of tokens, fixed or drawn from a distribution."""

import math
import random
import re

import msgspec

from penstock.core.errors import ConfigurationError

LONGEST = 10_000_000
_NUMBER = r"([0-9]{1,8}(?:\.[0-9]{1,6})?)"


class Lengths(msgspec.Struct, frozen=True):
    """How lengths are drawn.

    Attributes:
        shape: "fixed" (first), "uniform" (from first to second), "normal" or "lognormal" (mean and standard deviation
            of the lengths themselves).
    """

    shape: str
    first: float
    second: float = 0.0

    def draw(self, source: random.Random) -> int:
        """One length, at least 1."""
        match self.shape:
            case "uniform":
                return source.randint(int(self.first), int(self.second))
            case "normal":
                value = source.normalvariate(self.first, self.second)
            case "lognormal":
                # The parameters of the logarithm that give lengths this mean and this deviation.
                variance = math.log1p((self.second / self.first) ** 2)
                value = source.lognormvariate(math.log(self.first) - variance / 2, math.sqrt(variance))
            case _:
                value = self.first
        return min(max(1, round(value)), LONGEST)


def parse_lengths(text: str, option: str) -> Lengths:
    """Lengths of "128", "64-256", "normal:128,32" or "lognormal:512,300". Raises ConfigurationError."""
    if match := re.fullmatch(r"\s*([0-9]{1,8})(?:\s*-\s*([0-9]{1,8}))?\s*", text):
        first, second = int(match[1]), int(match[2] or match[1])
        if 1 <= first <= second <= LONGEST:
            return Lengths("uniform", first, second) if match[2] else Lengths("fixed", first)
    elif match := re.fullmatch(rf"\s*(normal|lognormal)\s*:\s*{_NUMBER}\s*,\s*{_NUMBER}\s*", text):
        mean, deviation = float(match[2]), float(match[3])
        if 1 <= mean <= LONGEST:
            return Lengths(match[1], mean, deviation)
    raise ConfigurationError(
        f"{option} {text!r} is no number of tokens; write 128, 64-256 for a range, or normal:128,32 or "
        "lognormal:128,32 with mean and standard deviation."
    )
