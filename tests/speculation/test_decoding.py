"""Decoding several tokens in one call is decoding them step by step."""

import math
import random
from pathlib import Path

import pytest
import torch

from penstock.core.speculation import RANKS
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.reference import REFERENCE
from penstock.sampling.choice import Choice
from penstock.sampling.sampler import Sampler
from penstock.speculation.decoding import StepwiseDecoder, in_one_call
from penstock.speculation.proposer import Proposal
from support.checkpoints import VOCAB_SIZE, make
from support.plain import plain
from support.stepping import Stepper, make_stepper

native_only = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
ROWS, DEEPEST = 6, 20


def choices(luck: random.Random) -> list[Choice]:
    """Greedy and sampled, at different places of their outputs."""
    return [
        Choice(
            row,
            -1,
            luck.randrange(50),
            luck.choice([0.0, 0.7, 1.3]),
            luck.choice([0, 5]),
            0.9,
            -math.inf,
            -1,
            row,
            0,
            3,
        )
        for row in range(ROWS)
    ]


def begun(path: Path, luck: random.Random) -> tuple[Stepper, dict[int, list[int]]]:
    """A stepper that has computed some of each row, and what is to be computed next: one token, or several."""
    stepper = make_stepper(path, dtype=torch.bfloat16, rows=ROWS, tokens=128)
    prompts = {row: [luck.randrange(VOCAB_SIZE) for _ in range(luck.randint(1, 90))] for row in range(ROWS)}
    stepper.step(prompts)
    return stepper, {
        row: [luck.randrange(VOCAB_SIZE) for _ in range(1 if luck.random() < 0.5 else luck.randint(2, 7))]
        for row in range(ROWS)
    }


@native_only
@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4"])
@pytest.mark.parametrize("seed", range(3))
def test_one_call_is_as_many_steps(family: str, seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    stepper, added = begun(make(family, tmp_path, seed=seed), luck)
    rows = sorted(added, key=lambda row: len(added[row]) > 1)
    batch, _ = stepper.batch(added, rows, "last", further=DEEPEST - 1)
    tokens = [luck.randint(1, DEEPEST) for _ in rows]
    asked = choices(luck)
    found = StepwiseDecoder(stepper.program, Sampler(VOCAB_SIZE)).decode(batch, tokens, [0] * ROWS, asked)
    stepwise = [proposal.tokens for proposal in found]
    assert [len(found) for found in stepwise] == tokens and len(set(map(tuple, stepwise))) == ROWS
    assert stepper.program.decode is not None
    assert stepper.program.decode(batch, tokens, [1] * ROWS, asked) == [(tokens, []) for tokens in stepwise]


@native_only
@pytest.mark.parametrize("seed", range(3))
def test_trees_of_one_call_are_those_of_as_many_steps(seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    stepper, added = begun(make("llama", tmp_path, seed=seed), luck)
    rows = sorted(added, key=lambda row: len(added[row]) > 1)
    batch, _ = stepper.batch(added, rows, "last", further=DEEPEST - 1)
    tokens, widths = [luck.randint(1, 6) for _ in rows], [luck.choice([0, 1, 5]) for _ in rows]
    asked = choices(luck)
    assert stepper.program.decode is not None
    found = in_one_call(stepper.program.decode)(batch, tokens, widths, asked)
    assert found == StepwiseDecoder(stepper.program, Sampler(VOCAB_SIZE)).decode(batch, tokens, widths, asked)
    wanted = [count + min(width, (RANKS - 1) * count) for count, width in zip(tokens, widths, strict=True)]
    assert [len(proposal.tokens) for proposal in found] == wanted
    chains = in_one_call(stepper.program.decode)(batch, tokens, [0] * ROWS, asked)
    for proposal, alone, count in zip(found, chains, tokens, strict=True):
        assert proposal.tokens[:count] == alone.tokens, "the likeliest branch is what is drafted alone"


def test_steps_are_those_of_a_sequence_by_itself(tmp_path: Path) -> None:
    """What the decoder says is what feeding the model its own tokens says."""
    stepper = make_stepper(make("llama", tmp_path), rows=1, tokens=64, implementations=REFERENCE, packing=plain)
    stepper.step({0: [1, 2, 3]})
    batch, _ = stepper.batch({0: [5, 6, 7]}, [0], "last", further=9)
    (found,) = StepwiseDecoder(stepper.program, Sampler(VOCAB_SIZE)).decode(
        batch, [10], [0], [Choice(0, -1, 0, 0.0, 0, 1.0, -math.inf, -1, 0, 0, 0)]
    )
    said, added = [], [5, 6, 7]
    for _ in range(10):
        said.append(int(stepper.step({0: added})[0][-1].argmax()))
        added = said[-1:]
    assert found.tokens == said and found.drawn_from is None


@native_only
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    stepper, _ = begun(make("llama", tmp_path), random.Random(0))
    decode = stepper.program.decode
    assert decode is not None
    batch, _ = stepper.batch({row: [1] for row in range(ROWS)}, list(range(ROWS)), "last", further=3)
    asked = choices(random.Random(1))
    assert [len(ids) for ids, _ in decode(batch, [4] * ROWS, [1] * ROWS, asked)] == [4] * ROWS
    for tokens, named, problem in (
        ([200] * ROWS, asked, "block table"),
        ([0] * ROWS, asked, "must be given a token"),
        ([4] * (ROWS - 1), asked, "zip|count"),
        ([4] * ROWS, asked[1:], "a count and a choice"),
        ([4] * ROWS, [asked[0]._replace(temperature=-1.0), *asked[1:]], "temperature"),
        ([4] * ROWS, [asked[0]._replace(top_p=0.0), *asked[1:]], "top_p"),
    ):
        with pytest.raises(ValueError, match=problem):
            decode(batch, tokens, [1] * ROWS, named)
    for ranks in ([1] * (ROWS - 1), [*[1] * (ROWS - 1), 0]):
        with pytest.raises(ValueError, match="rank"):
            decode(batch, [4] * ROWS, ranks, asked)


@native_only
def test_broken_logits_are_token_0(tmp_path: Path) -> None:
    stepper = make_stepper(make("llama", tmp_path), dtype=torch.bfloat16, rows=1, tokens=64)
    stepper.step({0: [1, 2, 3]})
    stepper.storage.planes(0)["key"].fill_(torch.nan)
    batch, _ = stepper.batch({0: [4]}, [0], "last", further=2)
    decode = stepper.program.decode
    assert decode is not None
    asked = [Choice(0, -1, 0, 0.7, 0, 1.0, -math.inf, -1, 0, 0, 0)]
    assert decode(batch, [3], [1], asked) == [([0, 0, 0], [])]
    assert decode(batch, [2], [2], asked) == [([0, -1, 0, -1], [0.0] * 4)]
    tree = Proposal([0, 0, 0], None, [-1, 0, 1])
    assert in_one_call(decode)(batch, [3], [5], asked) == [tree]
    assert StepwiseDecoder(stepper.program, Sampler(VOCAB_SIZE)).decode(batch, [3], [5], asked) == [tree]
