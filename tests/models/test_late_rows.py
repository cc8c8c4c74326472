"""In models whose last layers store nothing, these compute the wanted rows alone, and no bit of them changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.reference import REFERENCE
from support import checkpoints
from support.device import DEVICE, INTERPRETED
from support.plain import plain
from support.stepping import Stepper, make_stepper

# Tokens of each row that a step adds: chunks beside decodes, and behind one another's window of 29.
STEPS = ((33, 1, 3), (1, 30, 1), (9, 1, 4))
# Interpreted, a token takes a part of a second: fewer layers, of which as many store nothing, and a window of 5, which
# a short chunk is longer than.
SMALL = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 5}
FEW = ((7, 1, 2), (1, 4, 1))
ORDERS = (("last", "last", "last"), ("none", "some", "last"), ("some", "none", "all"))


def wanted_of(batch: StepBatch, name: str) -> Tensor:
    """Which of a batch's tokens are wanted."""
    tokens = torch.arange(len(batch.token_ids))
    match name:
        case "all":
            return tokens
        case "last":
            return torch.tensor(batch.query_lengths).cumsum(0) - 1
        case "some":
            return tokens[tokens % 5 < 2]
        case _:
            return tokens[:0]


def logits_of(stepper: Stepper, names: Sequence[str], steps: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
    """Of each step the tokens that are wanted, and their logits."""
    stepper.lengths[:] = [0] * len(steps[0])
    found = []
    for place, (counts, name) in enumerate(zip(steps, names, strict=True)):
        generator = torch.Generator().manual_seed(place)
        added = {
            row: torch.randint(4, checkpoints.VOCAB_SIZE, (count,), generator=generator).tolist()
            for row, count in enumerate(counts)
        }
        rows = sorted(added, key=lambda row: (len(added[row]) > 1, row))
        batch, _ = stepper.batch(added, rows, "all")
        wanted = wanted_of(batch, name)
        found.append((wanted, stepper.program.run(replace(batch, logit_rows=wanted)).cpu().float()))
        stepper.lengths[:] = [length + count for length, count in zip(stepper.lengths, counts, strict=True)]
    return found


def agree(
    stepper: Stepper, orders: Sequence[Sequence[str]] = ORDERS, steps: Sequence[Sequence[int]] = STEPS, *, exact: bool
) -> None:
    expected = logits_of(stepper, ["all"] * len(steps), steps)
    rows = torch.cat([logits for _, logits in expected])
    assert len(rows.unique(dim=0)) > 0.75 * len(rows)
    for names in orders:
        for (wanted, mine), (_, right) in zip(logits_of(stepper, names, steps), expected, strict=True):
            torch.testing.assert_close(mine, right[wanted], rtol=0, atol=0.0 if exact else 1e-4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("gemma4", tmp_path_factory.mktemp("models") / "gemma4")


def test_by_the_reference(path: Path) -> None:
    """torch's products differ in their last bits with the number of rows."""
    agree(make_stepper(path, implementations=REFERENCE, packing=plain, rows=3, tokens=64), exact=False)


def test_on_a_processor(path: Path) -> None:
    agree(make_stepper(path, rows=3, tokens=64), exact=OBSTACLE is None)


@pytest.mark.cuda
def test_on_a_gpu(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    if INTERPRETED:
        path = checkpoints.make("gemma4", tmp_path / "gemma4", **SMALL)
    from penstock.kernels.cuda.operations import implementations
    from penstock.kernels.cuda.place import place_on
    from penstock.loading.device_packing import DevicePacking

    own = implementations(place_on(DEVICE, 64, deterministic=True))
    packing = DevicePacking("none", "none", DEVICE, fp8=False)
    stepper = make_stepper(path, implementations=own, packing=packing, device=DEVICE, rows=3, tokens=64)
    agree(stepper, *(([("some", "last")], FEW) if INTERPRETED else ()), exact=True)
