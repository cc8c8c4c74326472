"""Which of the tokens that a proposer names for each place are drafted, as a tree."""

import heapq
import operator
from collections.abc import Sequence
from itertools import accumulate

from penstock.speculation.proposer import Proposal
from penstock.speculation.tree import chain

Ranked = Sequence[tuple[int, float]]
"""Tokens for one place, in the order in which they are to be tried, with their probabilities."""


def likely_tree(places: Sequence[Ranked], width: int, *, continued: bool) -> Proposal:
    """The first token of each place, one behind the other, and `width` others beside them.

    Any token of the first place may come first. Behind the first token of a place may come those of the next, and
    behind every other too where trees are `continued`, since then the proposer names tokens without knowing what comes
    before. Taken are those whose probability, times that of all before them, is the largest (Cai et al., "Medusa", ICML
    2024, section 2.3.3, where probabilities are means over many texts).
    """
    tokens = [ranked[0][0] for ranked in places]
    parents = chain(len(tokens))
    likely = list(accumulate((ranked[0][1] for ranked in places), operator.mul))
    open_: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, place: int, rank: int, before: float) -> None:
        if place < len(places) and rank < len(places[place]):
            heapq.heappush(open_, (-before * places[place][rank][1], parent, place, rank, before))

    for place in range(len(tokens)):
        offer(place - 1, place, 1, likely[place - 1] if place else 1.0)
    while open_ and len(tokens) < len(places) + width:
        negative, parent, place, rank, before = heapq.heappop(open_)
        if continued:
            offer(len(tokens), place + 1, 0, -negative)
        tokens.append(places[place][rank][0])
        parents.append(parent)
        offer(parent, place, rank + 1, before)
    return Proposal(tokens, None, parents)
