"""Medusa heads guess from the state behind which the newest token came."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.sampling.sampler import Sampler
from penstock.speculation.medusa import MedusaProposer
from penstock.speculation.proposer import Learner, Proposal, Wanted
from penstock.speculation.tree import chain_length
from support.sampling_rows import make_row

VOCABULARY, HEADS = 50, 3


class Counting:
    """Heads on states of one column: head k says the state's number plus 1 + k."""

    def results(self, batch: Any, *given: Tensor) -> tuple[Tensor, ...]:
        (states,) = given
        assert len(batch.query_lengths) == len(states)
        places = (states[:, :1] + torch.arange(1, 1 + HEADS)).long() % VOCABULARY
        return tuple(torch.nn.functional.one_hot(places[:, head], VOCABULARY).float() for head in range(HEADS))


def wanted(sequence: int, depth: int, **params: Any) -> Wanted:
    return Wanted(sequence, depth, make_row(sequence, **{"temperature": 0.0, **params}), 0)


def states(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count, dtype=torch.float32)[:, None]


def proposer(**options: Any) -> MedusaProposer:
    return MedusaProposer(Counting(), Sampler(VOCABULARY), **options)


def test_it_learns_from_selected_states() -> None:
    assert isinstance(proposer(), Learner) and proposer().states == "selected"


def test_drafts_come_from_the_newest_state() -> None:
    medusa = proposer()
    medusa.begin(0, [1, 2, 3])
    assert medusa.propose([wanted(0, 2)]) == [Proposal([])], "nothing was seen yet"
    medusa.see(0, 2, states(10, 1))
    medusa.observe(0, 1)
    assert medusa.propose([wanted(0, 2), wanted(1, 3)]) == [Proposal([11, 12]), Proposal([])]
    # Of three states one was that of a draft that is wrong.
    medusa.see(0, 3, states(20, 3))
    medusa.observe(0, 2)
    assert medusa.propose([wanted(0, 8)]) == [Proposal([22, 23, 24])], "no more than there are heads"
    medusa.forget(0)
    assert medusa.propose([wanted(0, 2)]) == [Proposal([])]
    medusa.forget(0)


def test_rows_are_for_themselves() -> None:
    medusa, luck = proposer(), random.Random(0)
    newest = {}
    for _ in range(50):
        sequence, seen = luck.randrange(5), luck.randint(1, 4)
        newest[sequence] = luck.randrange(1000)
        medusa.see(sequence, 0, states(newest[sequence], seen))
        taken = luck.randint(1, seen)
        newest[sequence] += taken - 1
        medusa.observe(sequence, taken)
        asked = [wanted(each, luck.randint(1, HEADS)) for each in range(5)]
        for row, proposal in zip(asked, medusa.propose(asked), strict=True):
            known = newest.get(row.sequence)
            expected = [] if known is None else [(known + 1 + head) % VOCABULARY for head in range(row.depth)]
            assert proposal.tokens == expected


@pytest.mark.parametrize("seed", range(5))
def test_drafts_to_be_judged_say_what_they_were_drawn_from(seed: int) -> None:
    medusa = proposer(rejects=True)
    medusa.see(0, 0, states(4, 1))
    medusa.observe(0, 1)
    (found,) = medusa.propose([wanted(0, 3, temperature=0.4, seed=seed)])
    assert found.drawn_from is not None and len(found.drawn_from) == len(found.tokens) == 3
    for head, (token, source) in enumerate(zip(found.tokens, found.drawn_from, strict=True)):
        assert source.of(token) > 0 and source.of(5 + head) == max(source.probabilities)


class Sloping:
    """Heads on states of one column: head k says the state's number plus 1 + k, and with less and less weight more."""

    def results(self, batch: Any, *given: Tensor) -> tuple[Tensor, ...]:
        (states,) = given
        steps = torch.arange(VOCABULARY)
        behind = [(steps - 1 - head - states[:, :1].long()) % VOCABULARY for head in range(HEADS)]
        return tuple(-0.9 * each.float() for each in behind)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_where_a_tree_is_wanted_the_likeliest_tokens_are_branches(temperature: float) -> None:
    medusa = MedusaProposer(Sloping(), Sampler(VOCABULARY))
    medusa.see(0, 0, states(10, 1))
    medusa.observe(0, 1)
    asked = wanted(0, 2, temperature=temperature, seed=3)
    (alone,) = medusa.propose([asked])
    (found,) = medusa.propose([asked._replace(width=5)])
    assert found.parents is not None and chain_length(found.parents) == 2 and len(found.tokens) == 7
    assert found.tokens[:2] == alone.tokens, "the likeliest branch is what would be drafted alone"
    assert len({(parent, token) for parent, token in zip(found.parents, found.tokens, strict=True)}) == 7
    if not temperature:
        assert alone.tokens == [11, 12]
        # 1, e^-0.9 and e^-1.8 in the first head stand beside the same in the second.
        assert set(zip(found.parents[2:], found.tokens[2:], strict=True)) >= {(0, 13), (-1, 12)}


def test_rows_with_and_without_trees_are_served_together() -> None:
    medusa = proposer()
    for sequence in range(3):
        medusa.see(sequence, 0, states(10 * sequence, 1))
        medusa.observe(sequence, 1)
    one, two, three = medusa.propose([wanted(0, 2), wanted(1, 2)._replace(width=2), wanted(2, 3)])
    assert one == Proposal([1, 2]) and three == Proposal([21, 22, 23])
    assert two.tokens[:2] == [11, 12] and len(two.tokens) == 4


def test_a_head_that_is_broken_says_nothing() -> None:
    class Broken(Counting):
        def results(self, batch: Any, *given: Tensor) -> tuple[Tensor, ...]:
            first, _, third = super().results(batch, *given)
            return first, torch.full_like(first, torch.nan), third

    medusa = MedusaProposer(Broken(), Sampler(VOCABULARY))
    medusa.see(0, 0, states(4, 1))
    medusa.observe(0, 1)
    (found,) = medusa.propose([wanted(0, 3)._replace(width=4)])
    assert found.tokens[0] == 5 and found.parents == [-1, -1, -1, -1]
