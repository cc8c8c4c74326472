"""How often experts are chosen, and how evenly what they compute is shared out over groups of ranks."""

import numpy as np
from numpy.typing import NDArray


class Choices:
    """Counts of one process, which sees all choices of the layers that it has. Other threads may read them."""

    def __init__(self, groups: int) -> None:
        """`groups` of ranks have experts of their own."""
        self._groups = groups
        self._counts: dict[str, NDArray[np.int64]] = {}

    def of(self, layer: str, experts: int) -> NDArray[np.int64]:
        """Where a layer's are counted, by whichever program (`kernels.ranks.Ranks.choices`)."""
        if layer not in self._counts:
            self._counts[layer] = np.zeros(experts + 2, np.int64)
        return self._counts[layer]

    @property
    def rows(self) -> tuple[int, int]:
        """Rows that experts have computed, and what they would be if all groups had those of a step's busiest one."""
        counts = list(self._counts.values())
        return sum(int(each[-2]) for each in counts), self._groups * sum(int(each[-1]) for each in counts)

    def by_layer(self) -> dict[str, list[int]]:
        """How often each expert was chosen."""
        return {layer: counts[:-2].tolist() for layer, counts in list(self._counts.items())}
