"""Scores of logits, and of two vectors: in float64, by functions of one text's numbers alone."""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar

from penstock.core.vectors import ScoreActivation

Placed = TypeVar("Placed")


def scores_of(logits: Sequence[float], activation: ScoreActivation) -> list[float]:
    """Scores of classes by their logits."""
    match activation:
        case "sigmoid":
            return [_sigmoid(value) for value in logits]
        case "softmax":
            largest = max(logits)
            parts = [math.exp(value - largest) for value in logits]
            whole = math.fsum(parts)
            return [part / whole for part in parts]
        case _:
            return list(logits)


def placed_scores(
    places: Iterable[Placed | None], logits: Sequence[float], classes: int, activation: ScoreActivation
) -> list[tuple[Placed, list[float]]]:
    """Of a text's tokens those that have a place in it, and their scores; `logits` has those of all tokens."""
    return [
        (place, scores_of(logits[token * classes : (token + 1) * classes], activation))
        for token, place in enumerate(places)
        if place is not None
    ]


def floats_in(vector: bytes) -> "array[float]":
    """The numbers of a vector of float32, in the machine's order of bytes."""
    return array("f", vector)


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Of the angle between two vectors; 0 where one has no direction."""
    product = math.fsum(one * other for one, other in zip(first, second, strict=True))
    norms = math.hypot(*first) * math.hypot(*second)
    return product / norms if norms else 0.0


def ranked(scores: Sequence[float], most: int | None = None) -> list[int]:
    """Indices by score, the highest first, of equal ones the lower first; at most that number of them."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:most]


def _sigmoid(value: float) -> float:
    # Neither form overflows where it is used.
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    grown = math.exp(value)
    return grown / (1 + grown)
