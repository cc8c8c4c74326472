"""What it costs that several processes of one machine compute a model together."""

from typing import Literal

import msgspec

Kind = Literal["parts", "stages"]


class RankCosts(msgspec.Struct, frozen=True):
    """What ranks take beside what they compute.

    Attributes:
        kind: whether they have parts of all layers or contexts, or stages of layers.
        link: bytes a second that one writes for the others in memory.
        message_seconds: that two take at least to meet.
        waits: by what part they compute for longer than as many threads, since all wait for the slowest; below zero,
            they are faster.
        interval: the likely ends of that, as multiples of a step.
        said: what that stands on.
    """

    kind: Kind
    link: float
    message_seconds: float
    waits: float
    interval: tuple[float, float]
    said: str


# By two ranks with a thread each on 2 cores of a Xeon, in docs/benchmarks/ranks.md.
_PRIOR = "a prior: what two ranks took beside two threads on another machine, a Xeon with AMX"
PRIORS: dict[Kind, RankCosts] = {
    "parts": RankCosts("parts", 4.7e9, 5e-6, 0.2, (0.88, 1.2), _PRIOR),
    "stages": RankCosts("stages", 4.7e9, 5e-6, 0.15, (0.85, 1.4), _PRIOR),
}


def costs_of(kind: Kind, measured: tuple[RankCosts, ...]) -> RankCosts:
    """Those that were measured here, or priors."""
    return next((each for each in measured if each.kind == kind), PRIORS[kind])
