"""Whether two tools agree: medians of their runs, and how far the other tool's own runs are apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from load_tools.definitions import Figures

CLOSE = 0.05


@dataclass(frozen=True)
class Comparison:
    """One figure of all runs; `least` and `greatest` are of the other tool's own."""

    figure: str
    theirs: float
    least: float
    greatest: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours by theirs."""
        return self.ours / self.theirs

    @property
    def is_close(self) -> bool:
        """Whether the medians differ by no more than 5%."""
        return abs(self.ratio - 1) <= CLOSE

    @property
    def is_within_spread(self) -> bool:
        """Whether our median is one that the other tool itself could have found."""
        return self.least <= self.ours <= self.greatest

    @property
    def agrees(self) -> bool:
        """Either of both."""
        return self.is_close or self.is_within_spread


def compare(theirs: Sequence[Figures], ours: Sequence[Figures]) -> list[Comparison]:
    """All figures, in the other tool's order."""
    found = []
    for figure in theirs[0]:
        values = [run[figure] for run in theirs]
        ours_median = median(run[figure] for run in ours)
        found.append(Comparison(figure, median(values), min(values), max(values), ours_median))
    return found
