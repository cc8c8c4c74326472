"""Beam search against the dense form in which transformers computes it, on made-up languages."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.beam_search import BeamSearch, EarlyStopping
from penstock.core.errors import InvalidParameter
from penstock.core.plan import Ending
from penstock.sampling.beams import Search

END = 0


class Language:
    """What may come next depends on all that came before; token 0 ends an output."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self.vocabulary = vocabulary
        self._seed = seed

    def logprobs(self, tokens: tuple[int, ...]) -> np.ndarray:
        logits = np.random.default_rng([self._seed, *tokens]).normal(scale=2.0, size=self.vocabulary)
        return logits - np.log(np.exp(logits).sum())


def searched(language: Language, asked: BeamSearch, max_tokens: int) -> list[tuple[tuple[int, ...], float]]:
    """What the rules find, and the scores."""
    search, outputs = Search(asked, max_tokens), [()]
    count = 2 * asked.width
    while not search.over:
        likely = []
        for tokens in outputs:
            logprobs = language.logprobs(tokens)
            order = np.lexsort((np.arange(logprobs.size), -logprobs))[:count]
            likely.append([(int(token), float(logprobs[token])) for token in order])
        candidates = search.candidates(likely, count)
        ended = [
            type(each)(each.beam, each.token, each.logprob, each.total, Ending("stop") if each.token == END else None)
            for each in candidates
        ]
        search = search.advance(ended)
        outputs = [tuple(node.token for node in beam.path()) for beam in search.beams or ()]
        assert [node.total for node in search.beams or ()] == sorted(
            (node.total for node in search.beams or ()), reverse=True
        )
    return [(tuple(node.token for node in each.path()), search.score(each).score) for each in search.finished]


def dense(language: Language, asked: BeamSearch, max_tokens: int) -> list[tuple[tuple[int, ...], float]]:
    """The same with an array of all continuations, where what cannot be has a very low score."""
    width, vocabulary, never = asked.width, language.vocabulary, -1.0e9
    running: list[tuple[tuple[int, ...], float]] = [((), 0.0), *[((), never)] * (width - 1)]
    finished: list[tuple[tuple[int, ...], float, bool]] = [((), never, False)] * width
    for length in range(1, max_tokens + 1):
        sums = np.concatenate([score + language.logprobs(tokens) for tokens, score in running])
        best = np.argsort(-sums, kind="stable")[: 2 * width]
        top = [((*running[each // vocabulary][0], int(each % vocabulary)), float(sums[each])) for each in best]
        hits = [tokens[-1] == END or length == max_tokens for tokens, _ in top]
        left = [(tokens, score + never * hit) for (tokens, score), hit in zip(top, hits, strict=True)]
        running = sorted(left, key=lambda each: -each[1])[:width]
        merged = list(finished)
        for place, ((tokens, score), hit) in enumerate(zip(top, hits, strict=True)):
            counts = hit and place < width
            merged.append((tokens, score / length**asked.length_penalty + never * (not counts), counts))
        finished = sorted(merged, key=lambda each: -each[1])[:width]
        full = all(done for _, _, done in finished)
        longest = max_tokens if asked.early_stopping == "never" and asked.length_penalty > 0 else length
        best_possible = running[0][1] / longest**asked.length_penalty
        improves = not full or best_possible > min(score for _, score, _ in finished)
        if not improves or (full and (asked.early_stopping is True or width == 1)) or all(hits):
            break
    return [(tokens, score) for tokens, score, done in finished if done]


STOPPING = st.sampled_from([True, False, "never"])


@given(
    vocabulary=st.integers(8, 40),
    seed=st.integers(0, 2**32),
    width=st.integers(1, 4),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
    early_stopping=STOPPING,
    max_tokens=st.integers(1, 12),
)
@settings(max_examples=150)
def test_it_finds_what_the_dense_form_finds(
    vocabulary: int,
    seed: int,
    width: int,
    length_penalty: float,
    early_stopping: EarlyStopping,
    max_tokens: int,
) -> None:
    asked = BeamSearch(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
    language = Language(vocabulary, seed)
    found, expected = searched(language, asked, max_tokens), dense(language, asked, max_tokens)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected])


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_with_enough_beams_it_finds_the_likeliest_of_all_outputs(seed: int) -> None:
    language, most = Language(4, seed), 3
    scores: dict[tuple[int, ...], float] = {}
    for length in range(1, most + 1):
        for tokens in itertools.product(range(4), repeat=length):
            if END in tokens[:-1] or (tokens[-1] != END and length < most):
                continue
            scores[tokens] = sum(float(language.logprobs(tokens[:end])[tokens[end]]) for end in range(length))
    asked = BeamSearch(width=64, length_penalty=0.0, early_stopping="never")
    found = searched(language, asked, most)
    assert [tokens for tokens, _ in found] == sorted(scores, key=lambda tokens: -scores[tokens])
    assert math.fsum(math.exp(score) for score in scores.values()) == pytest.approx(1.0)


@given(seed=st.integers(0, 2**32), early_stopping=STOPPING)
@settings(max_examples=20)
def test_one_beam_is_greedy_decoding(seed: int, early_stopping: EarlyStopping) -> None:
    language, tokens = Language(6, seed), tuple[int, ...]()
    while len(tokens) < 9 and END not in tokens:
        tokens = (*tokens, int(language.logprobs(tokens).argmax()))
    asked = BeamSearch(width=1, early_stopping=early_stopping)
    assert [found for found, _ in searched(language, asked, 9)] == [tokens]


def test_equal_sums_go_to_the_likelier_beam_and_then_to_the_lower_token() -> None:
    search = Search(BeamSearch(width=2), 4)
    first = search.advance(search.candidates([[(7, -1.0), (3, -1.0), (5, -2.0)]], 4))
    assert [beam.token for beam in first.beams or ()] == [3, 7]
    second = first.candidates([[(9, -1.0), (8, -1.0)], [(1, -1.0)]], 4)
    assert [(each.beam, each.token) for each in second] == [(0, 8), (0, 9), (1, 1)]


def test_fewer_continuations_than_beams_leave_fewer_beams_which_grow_again() -> None:
    search = Search(BeamSearch(width=3), 9)
    one = search.advance(search.candidates([[(4, -0.5)]], 6))
    assert len(one.beams or ()) == 1
    three = one.advance(one.candidates([[(4, -0.5), (5, -1.0), (6, -2.0)]], 6))
    assert three.beams_from == (0, 0, 0)


@pytest.mark.parametrize(
    ("given_", "param"),
    [
        ({"width": 0}, "beam_width"),
        ({"width": 65}, "beam_width"),
        ({"width": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"width": 2, "length_penalty": 11}, "length_penalty"),
        ({"width": 2, "early_stopping": "always"}, "early_stopping"),
        ({"width": 2, "early_stopping": 1}, "early_stopping"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_by_name(given_: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        BeamSearch(**given_)  # type: ignore[arg-type]
    assert refused.value.param == param
