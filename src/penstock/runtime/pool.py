"""One vector of many hidden states."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.errors import RowFailed


class Pool:
    """The sum of a row's hidden states, one by one in the order of their positions, in float64.

    So it is the same bits however the positions were shared out among steps. Their mean has the sum's direction.
    """

    def __init__(self) -> None:
        self._sum: NDArray[np.float64] | None = None

    def add(self, states: Tensor) -> None:
        """Take in the states of the next positions, [positions, width]."""
        rows: NDArray[np.float64] = states.detach().to(device="cpu", dtype=torch.float64).numpy()
        for row in rows:
            self._sum = row.copy() if self._sum is None else np.add(self._sum, row, out=self._sum)

    def vector(self) -> bytes:
        """Their mean, divided by its Euclidean norm: float32 in the machine's order of bytes. Raises RowFailed."""
        if self._sum is None:
            raise ValueError("no states were added")
        # Exactly rounded, and so independent of the order in which a library would add.
        norm = math.sqrt(math.fsum(value * value for value in self._sum.tolist()))
        if not math.isfinite(norm) or norm == 0.0:
            raise RowFailed("The model computed no vector of finite length for this text; try another dtype.")
        return (self._sum / norm).astype(np.float32).tobytes()
