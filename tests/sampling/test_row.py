import math

import pytest

from penstock.core.beam_search import BeamSearch
from penstock.sampling.choice import Choice
from penstock.sampling.noise import Purpose
from penstock.sampling.pipeline import ForbiddenWords, Forced, MinTokens
from penstock.text.stops import StopMatcher
from support.sampling_rows import EOS, make_row


class LetterSearch:
    """Finds a stop string where token 97 is `a`, 98 `b` and so on."""

    def __init__(self, stop, min_tokens=0):
        self.stop, self.matcher = stop, StopMatcher((stop,), min_tokens)

    def find(self, token):
        return self.matcher.feed(bytes([token]))

    def fork(self):
        other = LetterSearch(self.stop)
        other.matcher = self.matcher.fork()
        return other


def advance_all(row, tokens):
    return [row.advance(token) for token in tokens]


GOES_ON = (None, None)


def test_end_of_sequence_ends_without_a_reason():
    assert advance_all(make_row(), [5, 6, EOS]) == [GOES_ON, GOES_ON, ("stop", None)]
    assert advance_all(make_row(ignore_eos=True), [EOS]) == [GOES_ON]


class Recorded:
    """A grammar that takes any token and remembers it."""

    def __init__(self):
        self.tokens = []

    def advance(self, token):
        self.tokens.append(token)
        return False


def test_a_grammar_is_not_told_of_the_end():
    row = make_row(grammar=Recorded())
    assert advance_all(row, [5, 6, EOS]) == [GOES_ON, GOES_ON, ("stop", None)]
    assert row.grammar.tokens == [5, 6]


def test_stop_tokens_end_with_their_id():
    assert advance_all(make_row(stop_token_ids=(9, 6)), [5, 6]) == [GOES_ON, ("stop", 6)]
    assert advance_all(make_row(stop_token_ids=(EOS,), ignore_eos=True), [EOS]) == [("stop", EOS)]
    assert advance_all(make_row(stop_token_ids=(EOS,)), [EOS]) == [("stop", None)]


def test_stop_strings_end_where_they_are_complete():
    row = make_row(stop=("bc",), stops=LetterSearch("bc"))
    assert advance_all(row, b"abc") == [GOES_ON, GOES_ON, ("stop", "bc")]


def test_nothing_ends_before_min_tokens():
    row = make_row(stop=("b",), stop_token_ids=(9,), min_tokens=3, stops=LetterSearch("b", 3))
    assert advance_all(row, [98, 9, 97, 9]) == [GOES_ON, GOES_ON, GOES_ON, ("stop", 9)]
    assert advance_all(make_row(stop_token_ids=(9,), min_tokens=2), [9, 9]) == [GOES_ON, ("stop", 9)]
    row = make_row(stop=("ab",), min_tokens=2, stops=LetterSearch("ab", 2))
    assert advance_all(row, b"ab") == [GOES_ON, ("stop", "ab")]


def test_the_mask_lasts_until_min_tokens():
    row = make_row(min_tokens=2, stop_token_ids=(9,))
    for _ in range(2):
        (step,) = row.editing
        assert isinstance(step, MinTokens)
        assert step.ids.tolist() == [EOS, 9]
        row.advance(5)
    assert row.editing == ()


def test_a_row_never_samples_without_a_seed():
    with pytest.raises(ValueError, match="seed"):
        make_row(seed=None)
    assert make_row(seed=None, temperature=0.0).params.greedy


def test_only_a_repetition_penalty_looks_at_the_prompt():
    for penalty, expected in (({"repetition_penalty": 1.2}, [4, 8, 5]), ({"presence_penalty": 1.2}, [5])):
        row = make_row(prompt=(4, 4, 8), **penalty)
        row.advance(5)
        (penalties,) = row.editing
        assert penalties.history.ids.tolist() == expected


def test_a_choice_has_the_position_and_what_was_asked_for():
    row = make_row(seed=-1, sample_index=3, temperature=0.5, top_k=-1, top_p=0.9, min_p=1.0)
    row.advance(5)
    assert row.choice(7) == Choice(7, -1, 1, 0.5, 0, 0.9, 0.0, -1, 2**64 - 1, 3, Purpose.TOKEN)
    assert make_row(temperature=0.0, logprobs=2).choice(0)[6:] == (-math.inf, 2, 0, 0, 0)


def test_words_are_followed_whatever_else_a_row_has():
    for more in ({}, {"min_tokens": 2}, {"stop": ("xyz",), "stops": LetterSearch("xyz")}, {"presence_penalty": 1.0}):
        row = make_row(prompt=(7,), bad_words_ids=[(7, 8)], **more)
        found = []
        for token in (5, 7, 5):
            found.append(
                [step for step in row.editing if isinstance(step, ForbiddenWords)][0].words.completing.tolist()
            )
            row.advance(token)
        # The prompt does not count.
        assert found == [[], [], [8]]
        assert not row.foreseeable


class Countdown:
    """Forces token 9 and then 8 after two others."""

    forced: int | None = None

    def __init__(self):
        self.script = [None, 9, 8, None]

    def advance(self, token):
        self.forced = self.script.pop(0)


def test_what_ends_reasoning_is_forced_and_then_everything_is_as_before():
    row = make_row(min_tokens=9, reasoning=Countdown())
    found = []
    for token in (5, 5, 9, 8):
        found.append(row.editing)
        row.advance(token)
    assert [type(step) for (step,) in [*found, row.editing]] == [MinTokens, MinTokens, Forced, Forced, MinTokens]
    assert [step.token for (step,) in found[2:]] == [9, 8]


def test_a_fork_goes_on_by_itself():
    """Of what either says from then on, the other knows nothing."""
    row = make_row(
        stop=("bc",), stops=LetterSearch("bc"), presence_penalty=1.0, bad_words_ids=((97, 98), (97, 120, 98))
    )
    advance_all(row, b"a")
    fork = row.fork(9)
    assert (fork.sequence, fork.position) == (9, 1)
    assert advance_all(fork, b"bc") == [GOES_ON, ("stop", "bc")]
    assert advance_all(row, b"xc") == [GOES_ON, GOES_ON]
    penalties, words = row.editing
    assert sorted(penalties.history.ids) == [97, 99, 120]
    assert sorted(fork.editing[0].history.ids) == [97, 98, 99]
    assert isinstance(words, ForbiddenWords) and words.words is not fork.editing[1].words


def test_a_beam_lists_enough_tokens_for_all_beams_to_go_on():
    """Of each beam, all tokens that end it may be among the likeliest."""
    beams = make_row(beam=BeamSearch(width=3), stop_token_ids=(7, 9))
    assert beams.continuations == beams.choice(0).logprobs == 12
    assert (beams.choice(0).temperature, beams.foreseeable) == (0.0, False)
    assert make_row(beam=BeamSearch(width=3), ignore_eos=True, logprobs=15).choice(0).logprobs == 15
    assert make_row(beam=BeamSearch(width=3), ignore_eos=True).continuations == 6
