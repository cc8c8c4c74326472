"""Trees of drafts, as parents."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.speculation.tree import branches, chain, chain_length, path_to, pruned, renumbered
from penstock.stepping.rows import NEWEST


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    parents = chain(draw(st.integers(0, 5)))
    for place in range(len(parents), len(parents) + draw(st.integers(0, 10))):
        parents.append(draw(st.integers(NEWEST, place - 1)))
    return parents


def depths(parents: Sequence[int]) -> list[int]:
    """How many tokens there are from the first to each, itself included."""
    found: list[int] = []
    for parent in parents:
        found.append(1 + (0 if parent == NEWEST else found[parent]))
    return found


def test_a_tree_by_hand() -> None:
    parents = [-1, 0, 1, -1, 0, 4, 3]
    assert chain(3) == parents[:3] and chain_length(parents) == 3
    assert depths(parents) == [1, 2, 3, 1, 2, 3, 2]
    assert path_to(parents, 5) == [0, 4, 5] and path_to(parents, NEWEST) == []
    assert branches(parents) == [[0, 1, 2], [3, 6], [4, 5]]
    assert pruned(parents, 2) == [0, 1, 2, 3, 6]
    assert renumbered(parents, [0, 1, 2, 4, 5]) == [-1, 0, 1, 0, 3]


@given(trees())
def test_branches_have_every_token_once_and_begin_in_those_before(parents: list[int]) -> None:
    found = branches(parents)
    assert sorted(place for branch in found for place in branch) == list(range(len(parents)))
    assert found[0][: chain_length(parents)] == list(range(chain_length(parents)))
    seen = {NEWEST}
    for branch in found:
        for before, place in zip([None, *branch], branch, strict=False):
            assert parents[place] in seen and before in (None, parents[place])
            seen.add(place)
    assert all(branch for branch in found[1:])


@given(trees(), st.integers(1, 6))
def test_what_is_pruned_is_a_tree_of_so_many_branches(parents: list[int], most: int) -> None:
    kept = pruned(parents, most)
    new = renumbered(parents, kept)
    assert len(branches(new)) == min(most, len(branches(parents)))
    for number, place in enumerate(kept):
        assert [kept[step] for step in path_to(new, number)] == path_to(parents, place)


@given(trees())
def test_a_path_is_as_long_as_its_token_is_deep(parents: list[int]) -> None:
    for place, depth in enumerate(depths(parents)):
        path = path_to(parents, place)
        assert len(path) == depth and path[-1] == place
        assert [parents[step] for step in path] == [NEWEST, *path[:-1]]
