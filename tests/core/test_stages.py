"""Layers are divided into stages so that the costliest costs as little as can be."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.stages import Stage, balanced, stages_of


def test_stages_follow_one_another() -> None:
    first, last = stages_of((2, 5))
    assert (first, last) == (Stage(0, 2, 5), Stage(2, 5, 5))
    assert (first.is_first, first.is_last, last.is_first, last.is_last) == (True, False, False, True)
    assert [layer in last for layer in range(6)] == [False, False, True, True, True, False]


def test_a_head_counts() -> None:
    assert balanced([1] * 16, range(1, 16), 2) == (8, 16)
    assert balanced([1] * 16, range(1, 16), 2, head=4) == (10, 16)
    assert balanced([5, 1, 1, 1], [1, 2, 3], 3) == (1, 2, 4)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_no_other_division_is_cheaper(costs: list[int], data: st.DataObject) -> None:
    layers = len(costs)
    cuts = sorted(data.draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    stages, head = data.draw(st.integers(1, len(cuts) + 1)), data.draw(st.integers(0, 20))

    def cost(ends: tuple[int, ...]) -> int:
        found = stages_of(ends)
        return max(sum(costs[stage.first : stage.end]) + head * stage.is_last for stage in found)

    ends = balanced(costs, cuts, stages, head)
    assert len(ends) == stages and ends[-1] == layers and set(ends[:-1]) <= set(cuts)
    assert cost(ends) == min(cost((*chosen, layers)) for chosen in combinations(cuts, stages - 1))


def test_too_many_stages_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="--pipeline-parallel-size is 4, .* into 3 stages at most; take 3"):
        balanced([1] * 6, [2, 4], 4)
