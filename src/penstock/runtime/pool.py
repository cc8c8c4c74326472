"""One vector of many hidden states, and what a checkpoint makes of it."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.vectors import Centre, Contrast, Dense, DenseActivation, Normalize, Pooling, VectorStep

Floats = NDArray[np.float32]
StepWeights = Mapping[VectorStep, tuple[Floats, Floats | None]]
"""The weight of each step that has one, of dense layers [outputs, inputs], and its bias where it has one."""


class Pool:
    """What is taken in of a row's hidden states, one by one in the order of their positions, in float64.

    So it is the same bits however the positions were shared out among steps.

    Args:
        first, end: the position of the first that comes, and that behind the last.
    """

    def __init__(self, pooling: Pooling, first: int, end: int) -> None:
        self._pooling = pooling
        self._position, self._end = first, end
        self._taken: NDArray[np.float64] | None = None
        self._parts: list[NDArray[np.float64]] = []
        # What their weights add up to.
        self._weight = 0

    def add(self, states: Tensor) -> None:
        """Take in the states of the next positions, [positions, width]."""
        rows: NDArray[np.float64] = states.detach().to(device="cpu", dtype=torch.float64).numpy()
        count, merge = len(rows), np.maximum if self._pooling == "max" else np.add
        if not count:
            return
        if self._pooling == "tokens":
            self._parts.append(rows)
            self._position += count
            return
        if self._pooling == "weightedmean":
            weights = np.arange(self._position + 1, self._position + count + 1)
            rows, weight = rows * weights[:, None], int(weights.sum())
        else:
            weight = count
        # Along the first axis numpy goes row by row.
        taken: NDArray[np.float64] = merge.reduce(rows if self._taken is None else (self._taken, *rows), axis=0)
        self._taken = taken
        self._weight += weight
        self._position += count

    @property
    def is_complete(self) -> bool:
        """Whether the state of each position up to the end was taken in."""
        return self._position == self._end

    def pooled(self) -> NDArray[np.float64]:
        """The vector [width] of what was taken in, before any module of the checkpoint; of tokens [tokens, width]."""
        if self._parts:
            return np.concatenate(self._parts)
        if self._taken is None:
            raise ValueError("no states were added")
        match self._pooling:
            case "mean" | "weightedmean":
                return self._taken / self._weight
            case "mean_sqrt_len":
                return self._taken / math.sqrt(self._weight)
            case _:
                return self._taken


class VectorMaker:
    """Makes the vector of a text from what was pooled."""

    def __init__(self, steps: tuple[VectorStep, ...], weights: StepWeights) -> None:
        self._steps = steps
        self._weights = {step: (weight.astype(np.float64), bias) for step, (weight, bias) in weights.items()}

    def __call__(self, pool: Pool) -> bytes:
        """float32 in the machine's order of bytes. Raises RowFailed where it is no vector of finite length.

        Vectors of tokens follow each other.
        """
        pooled = pool.pooled()
        # One by one, so that none depends on those beside it.
        return b"".join(map(self._made, pooled)) if pooled.ndim == 2 else self._made(pooled)

    def _made(self, vector: NDArray[np.float64]) -> bytes:
        for step in self._steps:
            match step:
                case Dense():
                    vector = self._dense(step, vector)
                case Centre():
                    vector = self._centred(step, vector)
                case Contrast():
                    vector = self._weights[step][0] @ vector
                case Normalize():
                    vector = _normalised(vector)
        with np.errstate(over="ignore"):
            made = vector.astype(np.float32)
        if not np.isfinite(made).all():
            raise RowFailed("The model computed no finite vector for this text; try another dtype.")
        return made.tobytes()

    def _dense(self, step: Dense, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        weight, bias = self._weights[step]
        made = weight @ vector if bias is None else weight @ vector + bias
        activated: NDArray[np.float64] = _ACTIVATIONS[step.activation](torch.from_numpy(made)).numpy()
        return activated

    def _centred(self, step: Centre, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        weight, bias = self._weights[step]
        apart = vector - vector.mean()
        made: NDArray[np.float64] = apart / math.sqrt((apart * apart).mean() + step.eps) * weight
        return made if bias is None else made + bias


_ACTIVATIONS: Mapping[DenseActivation, torch.nn.Module] = {
    "identity": torch.nn.Identity(),
    "tanh": torch.nn.Tanh(),
    "relu": torch.nn.ReLU(),
    "gelu": torch.nn.GELU(),
    "sigmoid": torch.nn.Sigmoid(),
    "silu": torch.nn.SiLU(),
}


def _normalised(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    # Of Python's own, which adds in one order, as a library need not.
    norm = math.hypot(*vector.tolist())
    if not math.isfinite(norm) or norm == 0.0:
        raise RowFailed("The model computed no vector of finite length for this text; try another dtype.")
    return vector / norm


LENGTH_ONE = VectorMaker((Normalize(),), {})
"""What is pooled, as a vector of length 1."""
