"""Which groups of ranks get which experts by how often these are chosen."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.expert_places import place_experts


def _rows(counts: list[int], places: tuple[tuple[int, ...], ...]) -> list[float]:
    """Of each group."""
    copies = Counter(expert for experts in places for expert in experts)
    return [sum(counts[expert] / copies[expert] for expert in experts) for experts in places]


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=40), st.integers(1, 4), st.integers(0, 3))
def test_each_expert_is_somewhere_and_no_group_has_more_than_its_room(
    counts: list[int], groups: int, room: int
) -> None:
    sizes = [len(counts) // groups + (group < len(counts) % groups) for group in range(groups)]
    places = place_experts(counts, sizes, room)
    assert {expert for experts in places for expert in experts} == set(range(len(counts)))
    for experts, size in zip(places, sizes, strict=True):
        assert list(experts) == sorted(set(experts)) and len(experts) <= size + room
    assert places == place_experts(counts, sizes, room)


def test_one_that_all_rows_choose_is_everywhere() -> None:
    counts = [640, *[10] * 63]
    alone, copied = (place_experts(counts, [16] * 4, room) for room in (0, 1))
    assert max(_rows(counts, alone)) >= 640
    assert all(0 in experts for experts in copied)
    assert max(_rows(counts, copied)) == pytest.approx(sum(counts) / 4, rel=0.05)


def test_those_that_are_chosen_most_are_apart_where_none_is_copied() -> None:
    counts = [100 // (expert + 1) for expert in range(16)]
    places = place_experts(counts, [4] * 4, 0)
    assert sorted(min(experts) for experts in places) == [0, 1, 2, 3]
