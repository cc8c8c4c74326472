"""Drafts are accepted where they are what comes out anyway, and change nothing of it."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.plan import Gained
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Sampler
from penstock.speculation.tree import chain_length, path_to
from penstock.speculation.verifier import DraftedRow, verify
from support.endings import finish_of
from support.sampling_rows import EOS, make_row

VOCABULARY = 40
PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8, "seed": 5, "logprobs": 0},
    {"temperature": 1.2, "seed": 6, "top_k": 7, "top_p": 0.8},
    {"repetition_penalty": 1.7, "presence_penalty": 0.9, "frequency_penalty": 0.7, "seed": 7, "logprobs": 1},
    {"temperature": 0.0, "min_tokens": 4, "logit_bias": {EOS: 9.0}},
    {"temperature": 0.0, "stop_token_ids": [11, 12, 13, 14]},
    {"temperature": 1.1, "seed": 9, "allowed_token_ids": [*range(3, 30)], "bad_words_ids": [[4], [5, 6], [7, 8, 9]]},
    {"temperature": 0.0, "bad_words_ids": [[token, token] for token in range(VOCABULARY)], "logprobs": 1},
    # From the fourth token on nothing depends on those before.
    {"temperature": 0.8, "seed": 8, "min_tokens": 3, "logprobs": 0},
)


class Stops:
    """Ends the output with its third token that is even."""

    def __init__(self) -> None:
        self._even = 0

    def find(self, token: int) -> str | None:
        self._even += token % 2 == 0
        return "even" if self._even == 3 else None


class Odd:
    """A grammar of odd tokens, then an even one, and then nothing more."""

    def __init__(self) -> None:
        self.length = 0

    def advance(self, token: int) -> bool:
        assert token % 2 == (self.length % 4 != 3), "the mask allows nothing else"
        self.length += 1
        return self.length == 8


def fill(matchers: Sequence[Any], masks: NDArray[np.uint32]) -> None:
    for matcher, mask in zip(matchers, masks, strict=True):
        mask[:] = 0xAAAAAAAA if matcher.length % 4 != 3 else 0x55555555


def rows(params: dict[str, Any], kind: str) -> RowState:
    return make_row(
        0, stops=Stops() if kind == "stops" else None, grammar=Odd() if kind == "grammar" else None, **params
    )


def logits_behind(tokens: Sequence[int]) -> Tensor:
    """A model: logits as a function of all tokens before."""
    generator = torch.Generator().manual_seed(abs(hash(tuple(tokens))) % 2**31)
    return torch.randn(VOCABULARY, generator=generator) * 3


def plain(row: RowState, steps: int) -> list[Gained]:
    """What comes out token by token."""
    sampler, tokens, results = Sampler(VOCABULARY, fill_masks=fill), [], []
    for _ in range(steps):
        (result,) = sampler.sample(logits_behind(tokens)[None], [row], [0])
        results.append(result)
        tokens += result.tokens
        if result.ending is not None:
            break
    return results


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["plain", "stops", "grammar"])
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.6, 1.0])
def test_output_is_the_same_whatever_is_drafted(params: dict[str, Any], kind: str, wrong: float) -> None:
    luck = random.Random(str((params, kind, wrong)))
    steps = 12
    expected = plain(rows(params, kind), steps)
    tokens = [token for result in expected for token in result.tokens]
    logprobs = [entry for result in expected for entry in result.logprobs or ()]
    row, sampler = rows(params, kind), Sampler(VOCABULARY, fill_masks=fill)
    found: list[int] = []
    scores: list[object] = []
    finish, rounds = None, 0
    while len(found) < len(tokens):
        depth = luck.randint(0, 5)
        # What is not known cannot be compared with what comes behind the last draft.
        known = tokens if finish_of(expected[-1]) else tokens[:-1]
        ahead = known[len(found) : len(found) + depth]
        drafts = [token if luck.random() >= wrong else (token + 1) % VOCABULARY for token in ahead]
        logits = torch.stack([logits_behind(found + drafts[:count]) for count in range(len(drafts) + 1)])
        (result,) = verify(sampler, logits, [DraftedRow(row, 0, drafts)])
        right = next((place for place, token in enumerate(drafts) if token != ahead[place]), len(drafts))
        # All that are right, and one behind them, unless one of these was the last.
        assert result.drafted == len(drafts) and len(result.gained.tokens) in (right, right + 1)
        assert len(result.gained.tokens) == right + 1 or finish_of(result.gained) == "stop"
        found += result.gained.tokens
        scores += result.gained.logprobs or ()
        finish, rounds = finish_of(result.gained), rounds + 1
    assert (found, scores, finish) == (tokens, logprobs, finish_of(expected[-1]))
    assert wrong > 0.5 or rounds < len(tokens)


def grown(luck: random.Random, ahead: Sequence[int], likeliest: int) -> tuple[list[int], list[int]]:
    """A tree: `likeliest` tokens in a chain, and others anywhere, with what is right somewhere among them."""
    tokens, parents = [], list(range(-1, likeliest - 1))
    depth_of = {-1: 0}
    for place in range(likeliest + luck.randint(0, 6)):
        if place >= likeliest:
            parents.append(luck.randrange(-1, place))
        siblings = [tokens[other] for other in range(place) if parents[other] == parents[place]]
        depth = depth_of[parents[place]]
        depth_of[place] = depth + 1
        right = ahead[depth] if depth < len(ahead) and luck.random() < 0.6 else luck.randrange(VOCABULARY)
        while right in siblings:
            right = (right + 1) % VOCABULARY
        tokens.append(right)
    return tokens, parents


@pytest.mark.parametrize("kind", ["plain", "stops", "grammar"])
@pytest.mark.parametrize("params", PARAMS)
def test_output_is_the_same_whatever_tree_is_drafted(params: dict[str, Any], kind: str) -> None:
    expected = plain(rows(params, kind), 12)
    strayed = sum(strays(params, kind, seed, expected) for seed in range(12))
    assert strayed or len(expected) < 3, "now and then another branch than the likeliest is right"


def strays(params: dict[str, Any], kind: str, seed: int, expected: list[Gained]) -> int:
    """How many tokens came of other branches; all of them are as expected."""
    luck = random.Random(str((params, kind, seed)))
    tokens = [token for result in expected for token in result.tokens]
    logprobs = [entry for result in expected for entry in result.logprobs or ()]
    row, sampler = rows(params, kind), Sampler(VOCABULARY, fill_masks=fill)
    found: list[int] = []
    scores: list[object] = []
    strayed, finish = 0, None
    while len(found) < len(tokens) and finish is None:
        ahead = tokens[len(found) :]
        likeliest = luck.randint(0, 4)
        drafts, parents = grown(luck, ahead, likeliest)
        # Rows of logits are in any order.
        places = list(range(len(drafts) + 1))
        luck.shuffle(places)
        logits = torch.empty(len(places), VOCABULARY)
        for node in range(-1, len(drafts)):
            path = [drafts[place] for place in path_to(parents, node)]
            logits[places[node]] = logits_behind(found + path)
        asked = DraftedRow(row, places[-1], drafts, parents=parents, rows=places[:-1])
        (result,) = verify(sampler, logits, [asked])
        # All that are right wherever they stand, and one behind them, unless one of these was the last.
        behind, node = 0, -1
        children = {(parents[place], drafts[place]): place for place in range(len(drafts))}
        while behind < len(ahead) and (node, ahead[behind]) in children:
            node = children[node, ahead[behind]]
            behind += 1
        # Of what is not known, more may be right.
        assert len(result.gained.tokens) == behind + 1 or behind == len(ahead) or finish_of(result.gained)
        assert [drafts[place] for place in asked.path] == result.gained.tokens[: len(asked.path)]
        assert result.drafted == len(drafts) and result.drafted - result.beside == chain_length(parents)
        before_last = asked.path[: len(result.gained.tokens) - 1]
        assert result.strayed == sum(place >= chain_length(parents) for place in before_last)
        assert len(result.gained.tokens) - 1 - result.strayed >= 0
        found += result.gained.tokens
        scores += result.gained.logprobs or ()
        strayed, finish = strayed + result.strayed, finish_of(result.gained)
    assert (found[: len(tokens)], scores[: len(logprobs)]) == (tokens, logprobs)
    assert finish_of(expected[-1]) is None or finish == finish_of(expected[-1])
    return strayed


def test_rows_go_on_for_themselves() -> None:
    sampler = Sampler(VOCABULARY)
    expected = plain(make_row(0, temperature=0.0, ignore_eos=True), 6)
    tokens = [token for result in expected for token in result.tokens]
    several = [tokens[:5], [], [*tokens[:2], (tokens[2] + 1) % VOCABULARY, tokens[3]]]
    asked, logits = [], []
    for number, drafts in enumerate(several):
        asked.append(DraftedRow(make_row(number, temperature=0.0, ignore_eos=True), len(logits), drafts))
        logits += [logits_behind(drafts[:count]) for count in range(len(drafts) + 1)]
    results = verify(sampler, torch.stack(logits), asked)
    assert [result.sequence for result in results] == [0, 1, 2]
    assert [result.gained.tokens for result in results] == [tokens, tokens[:1], tokens[:3]]
    assert [result.drafted for result in results] == [5, 0, 4]


def test_a_row_that_fails_behind_its_drafts_keeps_what_it_has_got() -> None:
    row, sampler = make_row(0, temperature=0.0, ignore_eos=True), Sampler(VOCABULARY)
    token = int(logits_behind([]).argmax())
    logits = torch.stack([logits_behind([]), torch.full((VOCABULARY,), float("nan"))])
    (result,) = verify(sampler, logits, [DraftedRow(row, 0, [token])])
    assert (result.gained.tokens, finish_of(result.gained)) == ([token], "error") and "NaN" in (
        result.gained.ending.error or ""
    )


def test_nothing_asked_for_is_nothing() -> None:
    assert verify(Sampler(VOCABULARY), torch.empty(0, VOCABULARY), []) == []
