"""Trees of drafts: behind a token there may stand several; at most one of them is right.

Miao et al., "SpecInfer: Accelerating large language model serving with tree-based speculative inference and
verification", ASPLOS 2024, section 3. A tree is given by its tokens' parents: for each the place of the token that it
stands behind, which comes before its own, or `NEWEST`, the newest token that is known. The likeliest branch comes
first: its tokens each stand behind the one before.
"""

from collections.abc import Sequence

from penstock.stepping.rows import NEWEST


def chain(count: int) -> list[int]:
    """The parents of `count` tokens in one branch."""
    return list(range(NEWEST, count - 1))


def chain_length(parents: Sequence[int]) -> int:
    """How many tokens the likeliest branch has."""
    return next((place for place, parent in enumerate(parents) if parent != place - 1), len(parents))


def path_to(parents: Sequence[int], place: int) -> list[int]:
    """The tokens from the first to the one at `place`, as places; none to `NEWEST`."""
    path = []
    while place != NEWEST:
        path.append(place)
        place = parents[place]
    return path[::-1]


def branches(parents: Sequence[int]) -> list[list[int]]:
    """The tree cut into branches, each with the tokens that those before it do not have; the likeliest comes first."""
    found: list[list[int]] = [[]]
    # The branch that ends with a token.
    ending = {NEWEST: found[0]}
    for place, parent in enumerate(parents):
        branch = ending.pop(parent, None)
        if branch is None:
            branch = []
            found.append(branch)
        branch.append(place)
        ending[place] = branch
    return found


def pruned(parents: Sequence[int], most: int) -> list[int]:
    """The places of the tokens in the first `most` branches: a tree too, since a branch begins in one before it."""
    return sorted(place for branch in branches(parents)[:most] for place in branch)


def renumbered(parents: Sequence[int], kept: Sequence[int]) -> list[int]:
    """The parents of those tokens of a tree that are kept, as a tree of their own."""
    new = {NEWEST: NEWEST} | {place: number for number, place in enumerate(kept)}
    return [new[parents[place]] for place in kept]
