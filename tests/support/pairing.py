"""Which combinations of what a test is run with are tried by default, where all take long."""

from collections.abc import Sequence
from itertools import product

import pytest


def paired(firsts: Sequence[tuple[object, ...]], *others: Sequence[object]) -> list[object]:
    """Parameters of a test: all of `firsts` with all combinations of `others`, half of them with the mark `slow`.

    Without these, each of `firsts` meets each value of `others`, any two values of different `others` meet, and firsts
    that are neighbours have different combinations. So neighbours should differ in one property.
    """
    return [
        pytest.param(
            *first,
            *(values[index] for values, index in zip(others, indexes, strict=True)),
            marks=pytest.mark.slow if (at + sum(indexes)) % 2 else (),
        )
        for at, first in enumerate(firsts)
        for indexes in product(*(range(len(values)) for values in others))
    ]


def in_turn(firsts: Sequence[tuple[object, ...]], *others: Sequence[object]) -> list[object]:
    """The same, but without `slow` each of `firsts` meets only one combination of `others`: the next one in turn."""
    combinations = list(product(*others))
    return [
        pytest.param(*first, *combination, marks=pytest.mark.slow if (at - place) % len(combinations) else ())
        for at, first in enumerate(firsts)
        for place, combination in enumerate(combinations)
    ]
