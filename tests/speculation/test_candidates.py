"""Of candidates for each place the likeliest become a tree."""

import itertools
import math
import random

import pytest

from penstock.core.speculation import RANKS
from penstock.speculation.candidates import likely_tree
from penstock.speculation.proposer import Proposal
from penstock.speculation.tree import branches, chain_length, path_to


def test_a_tree_by_hand() -> None:
    places = [[(1, 0.6), (2, 0.3), (3, 0.1)], [(4, 0.9), (5, 0.05)], [(6, 0.5), (7, 0.4)]]
    # 0.3, 0.6 · 0.9 · 0.4 and 0.1 are the largest beside the likeliest.
    found = likely_tree(places, 3, continued=False)
    assert found == Proposal([1, 4, 6, 2, 7, 3], None, [-1, 0, 1, -1, 1, -1])
    # 0.3 · 0.9 may stand behind the other first token, and 0.3 · 0.9 · 0.5 behind that.
    assert likely_tree(places, 3, continued=True) == Proposal([1, 4, 6, 2, 4, 7], None, [-1, 0, 1, -1, 3, 1])
    assert likely_tree(places, 0, continued=True) == Proposal([1, 4, 6], None, [-1, 0, 1])
    assert likely_tree([], 4, continued=True) == Proposal([], None, [])


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_tree_has_the_largest_products(seed: int, continued: bool) -> None:
    luck = random.Random(seed)
    places = []
    for _ in range(luck.randint(1, 3)):
        chances = sorted((luck.random() for _ in range(luck.randint(1, RANKS))), reverse=True)
        places.append([(100 + rank, chance) for rank, chance in enumerate(chances)])
    width = luck.randint(0, 8)
    found = likely_tree(places, width, continued=continued)
    assert found.parents is not None and branches(found.parents)[0] == list(range(len(places)))
    assert chain_length(found.parents) == len(places)

    def chance(ranks: tuple[int, ...]) -> float:
        return math.prod(places[place][rank][1] for place, rank in enumerate(ranks))

    taken = [
        tuple(found.tokens[step] - 100 for step in path_to(found.parents, place)) for place in range(len(found.tokens))
    ]
    every = [
        ranks
        for count in range(1, len(places) + 1)
        for ranks in itertools.product(*(range(len(ranked)) for ranked in places[:count]))
    ]
    # Whatever is in a tree, its parent is there too, which is likelier.
    beside = [ranks for ranks in every if any(ranks) and (continued or not any(ranks[:-1]))]
    largest = sorted(map(chance, beside), reverse=True)[:width]
    assert sorted(map(chance, taken[len(places) :]), reverse=True) == pytest.approx(largest)
    assert len(set(taken)) == len(taken) == len(places) + min(width, len(beside))
