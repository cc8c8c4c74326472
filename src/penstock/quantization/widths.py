"""How many bits each of several matrices gets, where the bits of all together are limited."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a matrix costs.

    Attributes:
        size: its number of weights.
        loss: by width in bits, what the model loses where this matrix alone has it.
    """

    size: int
    loss: Mapping[int, float]


def allocate(matrices: Mapping[str, Sensitivity], average: float) -> dict[str, int]:
    """A width for each matrix with a small sum of losses, at most `average` bits a weight in the mean.

    Begun with each width that all can have, the step that takes away most for each bit of its matrix is made, as long
    as there is one that fits; the best of what comes of that is taken. Raises ValueError where no width fits.
    """
    common = set.intersection(*(set(matrix.loss) for matrix in matrices.values()))
    found = [_improved(matrices, dict.fromkeys(matrices, bits), average) for bits in sorted(common) if bits <= average]
    if not found:
        raise ValueError(f"{average} bits are fewer than any width.")
    return min(found, key=lambda widths: sum(matrices[name].loss[bits] for name, bits in widths.items()))


def _improved(matrices: Mapping[str, Sensitivity], widths: dict[str, int], average: float) -> dict[str, int]:
    """`widths`, with all steps made that pay and fit."""
    left = sum(matrices[name].size * (average - bits) for name, bits in widths.items())
    while True:
        best, chosen = 0.0, None
        for name, matrix in matrices.items():
            now = widths[name]
            for bits, loss in matrix.loss.items():
                cost = matrix.size * (bits - now)
                if 0 < cost <= left and (matrix.loss[now] - loss) / cost > best:
                    best, chosen = (matrix.loss[now] - loss) / cost, (name, bits, cost)
        if chosen is None:
            return widths
        name, bits, cost = chosen
        widths[name] = bits
        left -= cost
