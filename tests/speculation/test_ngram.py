"""Drafts from a sequence's own text."""

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.speculation.ngram import CATCH_UP, LONGEST, MOST_PLACES, SHORTEST, NgramProposer
from penstock.speculation.proposer import Proposal, Wanted
from penstock.speculation.tree import chain, chain_length
from support.sampling_rows import make_row


def drafts(proposer: NgramProposer, depth: int, sequence: int = 0) -> list[int]:
    (found,) = proposer.propose([Wanted(sequence, depth, make_row(sequence), 0)])
    return found.tokens


def begun(tokens: list[int]) -> NgramProposer:
    proposer = NgramProposer()
    proposer.begin(0, tokens)
    return proposer


def test_what_followed_last_time_is_drafted() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    proposer = begun(tokens)
    assert drafts(proposer, 3) == [3, 4, 5]
    tokens += [3, 9]
    assert drafts(proposer, 3) == []
    tokens += [1, 2]
    # The newest place counts, and there 9 followed.
    assert drafts(proposer, 2) == [3, 9]


def test_what_somebody_has_drafted_already_is_followed() -> None:
    proposer = begun([1, 2, 3, 4, 5, 6, 3])
    wanted = Wanted(0, 2, make_row(0), 0, ahead=[4])
    assert proposer.propose([wanted, wanted._replace(ahead=[9, 4, 5]), wanted._replace(ahead=[4, 9])]) == [
        Proposal([5, 6]),
        Proposal([6, 3]),
        Proposal([]),
    ]


def test_what_is_ahead_is_part_of_what_goes_round() -> None:
    (found,) = begun([1, 2, 3, 1, 2, 3]).propose([Wanted(0, 5, make_row(0), 0, ahead=[1])])
    assert found.tokens == [2, 3, 1, 2, 3]


def test_the_longer_agreement_counts() -> None:
    assert drafts(begun([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]), 1) == [7]
    assert drafts(begun([6, 1, 2, 8, 5, 1, 2]), 1) == [8]


def test_a_text_that_repeats_itself_goes_on_so() -> None:
    assert drafts(begun([1, 2, 3, 1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]
    assert drafts(begun([4, 4, 4]), 3) == [4, 4, 4]


def test_sequences_know_nothing_of_one_another() -> None:
    proposer = begun([1, 2, 3, 1, 2])
    proposer.begin(1, [1, 2])
    assert drafts(proposer, 1) == [3] and drafts(proposer, 1, sequence=1) == []
    proposer.forget(0)
    proposer.forget(0)
    proposer.begin(0, [8])
    assert drafts(proposer, 4) == []


def test_all_of_a_long_text_is_looked_through() -> None:
    tokens = [*range(0xD000, 0xE000), *range(0xD00A, 0xE000), 0xD800, 0xD801]
    proposer = begun(tokens)
    assert drafts(proposer, 2) == [0xD802, 0xD803]
    tokens += [0xD802, 99, 0xD801, 0xD802]
    assert drafts(proposer, 2) == [99, 0xD801]


def test_very_long_texts_are_taken_in_bit_by_bit() -> None:
    tokens = [*range(CATCH_UP), 20, 21]
    proposer = begun(tokens)
    assert drafts(proposer, 2) == [], "it is not known yet what stands at its end"
    assert drafts(proposer, 2) == [22, 23]


def test_a_vocabulary_may_be_larger_than_there_are_characters() -> None:
    assert drafts(begun([1 << 30, 1 << 21, 7, 8, 1 << 30, 1 << 21]), 2) == [7, 8]


def test_what_other_sequences_have_said_is_drafted_where_more_of_it_agrees() -> None:
    proposer = NgramProposer(remembers=100)
    known = {0: [7, 7, 7, 9, 1, 2], 1: [9, 1, 2, 3, 4], 2: [9, 1, 2, 3, 4]}
    proposer.begin(0, known[0], salt="a")
    known[0] += [3, 4, 5, 6]
    for sequence, salt in ((1, "a"), (2, "b")):
        proposer.begin(sequence, known[sequence], salt)
        assert drafts(proposer, 4, sequence) == [], "it has not ended yet"
    proposer.forget(0)
    assert drafts(proposer, 4, 1) == [5, 6] and drafts(proposer, 4, 2) == []
    # Of its own text fewer agree, and where as many do it is nearer.
    known[1] += [8, 3, 4, 0, 1, 2, 3, 4]
    assert drafts(proposer, 3, 1) == [8, 3, 4]
    proposer.begin(3, [3, 4, 0, 7, 1, 2, 3, 4], salt="a")
    assert drafts(proposer, 2, 3) == [5, 6]
    proposer.begin(4, [3, 4, 0, 7, 9], salt="a")
    assert drafts(proposer, 2, 4) == [], "of a prompt nothing is kept"
    (found,) = proposer.propose([Wanted(4, 2, make_row(4), 0, ahead=[1, 2, 3])])
    assert found.tokens == [4, 5], "but its end, which leads to the answer"


def searched(tokens: list[int], depth: int) -> list[int]:
    """The same, looked for from the end."""
    for length in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[-length:]:
                period = len(tokens) - place
                return [tokens[place + step % period] for step in range(depth)]
    return []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 10), st.randoms(use_true_random=False))
def test_the_index_finds_what_a_search_finds(tokens: list[int], depth: int, luck: random.Random) -> None:
    known = tokens[:1]
    proposer = begun(known)
    while len(known) < len(tokens):
        drafts(proposer, depth)
        known += tokens[len(known) :][: luck.randint(1, 5)]
    assert drafts(proposer, depth) == searched(tokens, depth)


def wide(tokens: list[int], depth: int, width: int, ahead: list[int]) -> Proposal:
    (found,) = begun(tokens).propose([Wanted(0, depth, make_row(0), 0, ahead, width)])
    return found


def test_another_branch_is_what_followed_another_time() -> None:
    tokens = [1, 2, 7, 8, 9, 1, 2, 3, 4, 5, 1, 2]
    assert wide(tokens, 3, 2, []) == ([3, 4, 5, 7, 8], None, [-1, 0, 1, -1, 3])
    assert wide(tokens, 3, 9, []).tokens == [3, 4, 5, 7, 8, 9], "no deeper than the likeliest"
    # The first place where something else has followed is behind the first draft.
    assert wide([2, 3, 6, 0, 1, 2, 3, 4, 5, 0, 1], 3, 2, []) == ([2, 3, 4, 6], None, [-1, 0, 1, 1])
    assert wide([1, 2, 3, 1, 2], 3, 2, []) == ([3, 1, 2], None, None), "nothing else ever followed"
    assert wide([1, 2, 3], 3, 2, []) == ([], None, None)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 2), max_size=3),
)
def test_another_branch_is_what_a_search_finds(tokens: list[int], depth: int, width: int, ahead: list[int]) -> None:
    found = wide(tokens, depth, width, ahead)
    drafts = found.tokens if found.parents is None else found.tokens[: chain_length(found.parents)]
    expected: list[int] = []
    before = 0
    while before < len(drafts) and not expected:
        text = [*tokens, *ahead, *drafts[:before]]
        for length in range(min(LONGEST, len(text)), SHORTEST - 1, -1):
            places = [at for at in range(len(tokens) - 1, length - 1, -1) if tokens[at - length : at] == text[-length:]]
            others = [place for place in places[:MOST_PLACES] if tokens[place] != drafts[before]]
            if others:
                expected = tokens[others[0] : others[0] + min(width, len(drafts) - before)]
                break
        before += 1
    assert found.tokens == [*drafts, *expected]
    if expected:
        behind = range(len(drafts), len(found.tokens) - 1)
        assert found.parents == [*chain(len(drafts)), before - 2, *behind]
