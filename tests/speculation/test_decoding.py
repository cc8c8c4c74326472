"""Decoding several tokens in one call is decoding them step by step."""

import math
import random
from pathlib import Path

import pytest
import torch

from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.reference import REFERENCE
from penstock.loading.packing import plain
from penstock.sampling.choice import Choice
from penstock.sampling.sampler import Sampler
from penstock.speculation.decoding import StepwiseDecoder
from support.checkpoints import VOCAB_SIZE, make
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
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("seed", range(3))
def test_one_call_is_as_many_steps(family: str, seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    stepper, added = begun(make(family, tmp_path, seed=seed), luck)
    rows = sorted(added, key=lambda row: len(added[row]) > 1)
    batch, _ = stepper.batch(added, rows, "last", further=DEEPEST - 1)
    tokens = [luck.randint(1, DEEPEST) for _ in rows]
    asked = choices(luck)
    found = StepwiseDecoder(stepper.program, Sampler(VOCAB_SIZE)).decode(batch, tokens, asked)
    stepwise = [proposal.tokens for proposal in found]
    assert [len(found) for found in stepwise] == tokens and len(set(map(tuple, stepwise))) == ROWS
    assert stepper.program.decode is not None
    assert stepper.program.decode(batch, tokens, asked) == stepwise


def test_steps_are_those_of_a_sequence_by_itself(tmp_path: Path) -> None:
    """What the decoder says is what feeding the model its own tokens says."""
    stepper = make_stepper(make("llama", tmp_path), rows=1, tokens=64, implementations=REFERENCE, packing=plain)
    stepper.step({0: [1, 2, 3]})
    batch, _ = stepper.batch({0: [5, 6, 7]}, [0], "last", further=9)
    (found,) = StepwiseDecoder(stepper.program, Sampler(VOCAB_SIZE)).decode(
        batch, [10], [Choice(0, -1, 0, 0.0, 0, 1.0, -math.inf, -1, 0, 0, 0)]
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
    assert [len(found) for found in decode(batch, [4] * ROWS, asked)] == [4] * ROWS
    for tokens, named, problem in (
        ([200] * ROWS, asked, "block table"),
        ([0] * ROWS, asked, "must be given a token"),
        ([4] * (ROWS - 1), asked, "zip|count"),
        ([4] * ROWS, asked[1:], "a count and a choice"),
        ([4] * ROWS, [asked[0]._replace(temperature=-1.0), *asked[1:]], "temperature"),
        ([4] * ROWS, [asked[0]._replace(top_p=0.0), *asked[1:]], "top_p"),
    ):
        with pytest.raises(ValueError, match=problem):
            decode(batch, tokens, named)


@native_only
def test_broken_logits_are_token_0(tmp_path: Path) -> None:
    stepper = make_stepper(make("llama", tmp_path), dtype=torch.bfloat16, rows=1, tokens=64)
    stepper.step({0: [1, 2, 3]})
    keys, _ = stepper.storage.planes(0)
    keys.fill_(torch.nan)
    batch, _ = stepper.batch({0: [4]}, [0], "last", further=2)
    decode = stepper.program.decode
    assert decode is not None
    assert decode(batch, [3], [Choice(0, -1, 0, 0.7, 0, 1.0, -math.inf, -1, 0, 0, 0)]) == [[0, 0, 0]]
