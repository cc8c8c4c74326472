"""Which layers of a model a stage of a pipeline has.

A step goes through the stages one after another, and several steps are under way at a time, each in another stage
(Huang et al., GPipe, NeurIPS 2019, section 2.2).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers [first, end) of `of`."""

    first: int
    end: int
    of: int

    @property
    def is_first(self) -> bool:
        """Whether it begins with the tokens; else with what the stage before has made of them."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends with the model's result."""
        return self.end == self.of

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and self.first <= layer < self.end


def stages_of(ends: Sequence[int]) -> tuple[Stage, ...]:
    """The stages that end behind these layers."""
    return tuple(Stage(first, end, ends[-1]) for first, end in zip((0, *ends), ends, strict=False))


def balanced(costs: Sequence[int], cuts: Collection[int], stages: int, head: int = 0) -> tuple[int, ...]:
    """Where each of the stages ends, so that the costliest of them costs as little as can be.

    Args:
        costs: of each layer, and `head` what comes behind the last one.
        cuts: the layers with which a stage may begin.

    Raises ConfigurationError where there are too few of these.
    """
    if len(set(cuts)) < stages - 1:
        most = len(set(cuts)) + 1
        raise ConfigurationError(
            f"--pipeline-parallel-size is {stages}, but the model's layers can be divided into {most} stages at most; "
            f"take {most} or fewer."
        )
    places = [0, *sorted(set(cuts)), len(costs)]
    before = {place: sum(costs[:place]) for place in places}
    before[len(costs)] += head
    # Of ways to divide the layers before a place: the cost of the costliest stage, and where each ends.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for _ in range(stages):
        best = {
            end: min(
                (max(cost, before[end] - before[first]), (*ends, end))
                for first, (cost, ends) in best.items()
                if first < end
            )
            for end in places
            if end > min(best)
        }
    return best[len(costs)][1]
