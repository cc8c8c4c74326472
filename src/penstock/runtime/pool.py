"""One vector of many hidden states, and what a checkpoint makes of it."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.vectors import Centre, Contrast, Dense, DenseActivation, Normalize, Pooling, VectorStep

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
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
        self._taken: Doubles | None = None
        self._parts: list[Floats] = []
        # What their weights add up to.
        self._weight = 0

    def add(self, states: Floats) -> None:
        """Take in the states of the next positions, [positions, width]."""
        count, merge = len(states), np.maximum if self._pooling == "max" else np.add
        if not count:
            return
        rows: NDArray[np.floating] = states
        if self.of_tokens:
            self._parts.append(states.copy())
            self._position += count
            return
        if self._pooling == "weightedmean":
            weights = np.arange(self._position + 1, self._position + count + 1)
            rows, weight = states * weights[:, None].astype(np.float64), int(weights.sum())
        else:
            weight = count
        if self._taken is not None:
            rows = np.concatenate((self._taken[None], rows))
        # Along the first axis numpy goes row by row.
        self._taken = merge.reduce(rows, axis=0, dtype=np.float64)
        self._weight += weight
        self._position += count

    @property
    def of_tokens(self) -> bool:
        """Whether each token has a vector."""
        return self._pooling == "tokens"

    @property
    def is_complete(self) -> bool:
        """Whether the state of each position up to the end was taken in."""
        return self._position == self._end

    def pooled(self) -> Doubles:
        """Vectors [vectors, width] of what was taken in, before any module of the checkpoint: one, or each token's."""
        if self._parts:
            return np.concatenate(self._parts).astype(np.float64)
        if self._taken is None:
            raise ValueError("no states were added")
        match self._pooling:
            case "mean" | "weightedmean":
                vector = self._taken / self._weight
            case "mean_sqrt_len":
                vector = self._taken / math.sqrt(self._weight)
            case _:
                vector = self._taken
        return vector[None]


class VectorMaker:
    """Makes the vectors of texts from what was pooled of each."""

    def __init__(self, steps: tuple[VectorStep, ...], weights: StepWeights) -> None:
        self._steps = steps
        self._weights = {step: (weight.astype(np.float64), bias) for step, (weight, bias) in weights.items()}

    def __call__(self, pools: Sequence[Pool]) -> list[bytes | None]:
        """Of each text float32 in the machine's order of bytes; None where one is no vector of finite length.

        Vectors of tokens follow each other.
        """
        made: Iterable[Floats]
        if any(pool.of_tokens for pool in pools):
            # Vectors of all tokens of many texts would be much at a time.
            made = (self._made(pool.pooled()) for pool in pools)
        else:
            made = self._made(np.concatenate([pool.pooled() for pool in pools]))[:, None]
        return [vectors.tobytes() if np.isfinite(vectors).all() else None for vectors in made]

    def _made(self, vectors: Doubles) -> Floats:
        """What becomes of vectors [vectors, width], of none by those beside it."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for step in self._steps:
                match step:
                    case Dense():
                        vectors = np.stack([self._dense(step, vector) for vector in vectors])
                    case Centre():
                        vectors = np.stack([self._centred(step, vector) for vector in vectors])
                    case Contrast():
                        vectors = np.stack([self._weights[step][0] @ vector for vector in vectors])
                    case Normalize():
                        vectors = vectors / _lengths(vectors)
            return vectors.astype(np.float32)

    def _dense(self, step: Dense, vector: Doubles) -> Doubles:
        weight, bias = self._weights[step]
        made = weight @ vector if bias is None else weight @ vector + bias
        activated: Doubles = _ACTIVATIONS[step.activation](torch.from_numpy(made)).numpy()
        return activated

    def _centred(self, step: Centre, vector: Doubles) -> Doubles:
        weight, bias = self._weights[step]
        apart = vector - vector.mean()
        made: Doubles = apart / math.sqrt((apart * apart).mean() + step.eps) * weight
        return made if bias is None else made + bias


_ACTIVATIONS: Mapping[DenseActivation, torch.nn.Module] = {
    "identity": torch.nn.Identity(),
    "tanh": torch.nn.Tanh(),
    "relu": torch.nn.ReLU(),
    "gelu": torch.nn.GELU(),
    "sigmoid": torch.nn.Sigmoid(),
    "silu": torch.nn.SiLU(),
}


def _lengths(vectors: Doubles) -> Doubles:
    """Their Euclidean lengths, [vectors, 1]."""
    # Added one after the other, so that the order is the same for any number of vectors.
    lengths: Doubles = np.sqrt(np.add.accumulate(vectors * vectors, axis=1)[:, -1:])
    return np.where(np.isfinite(lengths), lengths, np.nan)


LENGTH_ONE = VectorMaker((Normalize(),), {})
"""What is pooled, as a vector of length 1."""
