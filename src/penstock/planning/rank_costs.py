"""What it costs that several processes of one machine compute a model together."""

from typing import Literal

import msgspec

Kind = Literal["parts", "stages"]


class RanksOf(msgspec.Struct, frozen=True):
    """Whose costs were measured, beside the machine and its threads: other ones may wait for longer, or less.

    Attributes:
        split, stages, stripes: numbers of ranks, as in `planning.latency.Deployment`.
        hidden, layers, parameters: the model's width, its layers, and the parameters that these have without routed
            experts.
        weights: their format.
    """

    split: int
    stages: int
    stripes: int
    hidden: int
    layers: int
    parameters: int
    weights: str

    @property
    def kind(self) -> Kind:
        """What they have of the model."""
        return "stages" if self.stages > 1 else "parts"


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
        of: the ranks that were measured; None: it is a prior.
    """

    kind: Kind
    link: float
    message_seconds: float
    waits: float
    interval: tuple[float, float]
    said: str
    of: RanksOf | None = None


# By two ranks with a thread each on 2 cores of a Xeon, in docs/benchmarks/ranks.md.
_PRIOR = "a prior: what two ranks took beside two threads on another machine, a Xeon with AMX"
PRIORS: dict[Kind, RankCosts] = {
    "parts": RankCosts("parts", 4.7e9, 5e-6, 0.2, (0.88, 1.2), _PRIOR),
    "stages": RankCosts("stages", 4.7e9, 5e-6, 0.15, (0.85, 1.4), _PRIOR),
}


def costs_of(ranks: RanksOf, measured: tuple[RankCosts, ...]) -> RankCosts:
    """Those of just these ranks, where they were measured here; else a prior, which says so."""
    found = next((each for each in measured if each.of == ranks), None)
    if found is not None:
        return found
    prior = PRIORS[ranks.kind]
    if not measured:
        return prior
    return msgspec.structs.replace(prior, said=f"{prior.said}; other ranks, models or formats were calibrated here")
