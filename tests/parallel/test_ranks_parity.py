"""Several ranks give what one process gives, in every family, whatever the batch and the chunks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.core.errors import ConfigurationError
from penstock.core.shares import TensorRank
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from support import checkpoints
from support.pairing import in_turn
from support.ranks import RanksStepper
from support.stepping import all_logits, make_stepper

TOLERANCE = 1e-4
LENGTHS = (150, 1, 2, 17, 48, 5)
SIZES = (2, 4)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: checkpoints.make(family, folder / family) for family in checkpoints.EVERY}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, checkpoints.VOCAB_SIZE, (n,), generator=generator).tolist() for n in LENGTHS]


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((mine - right).abs().max()) for mine, right in zip(found, expected, strict=True))


def _refused(path: Path, size: int) -> bool:
    """Whether a model says that this number of ranks cannot have it."""
    try:
        model_of(open_checkpoint(path)).of_rank(TensorRank(0, size))
    except ConfigurationError as error:
        assert f"--tensor-parallel-size is {size}" in error.message
        return True
    return False


@pytest.mark.parametrize("family, size", in_turn([(family,) for family in checkpoints.EVERY], SIZES))
def test_logits_are_those_of_one_process(
    paths: dict[str, Path], prompts: list[list[int]], family: str, size: int
) -> None:
    path = paths[family]
    expected = all_logits(make_stepper(path), prompts, None)
    if _refused(path, size):
        # Its key heads are normed together, and there are two.
        assert family in ("olmo2", "olmo3", "minimax_m2") and size == 4
        size = 2
    assert _difference(all_logits(RanksStepper(path, size), prompts, 16), expected) <= TOLERANCE
    assert _difference(all_logits(RanksStepper(path, size), prompts, None), expected) <= TOLERANCE
