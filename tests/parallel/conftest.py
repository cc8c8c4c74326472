"""Small models of every family, and prompts for them."""

from pathlib import Path

import pytest
import torch

from support import checkpoints


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: checkpoints.make(family, folder / family) for family in checkpoints.EVERY}


@pytest.fixture(scope="module")
def prompts(request: pytest.FixtureRequest) -> list[list[int]]:
    """Prompts of the lengths that a module asks for, with the same tokens each time."""
    generator = torch.Generator().manual_seed(1)
    lengths: tuple[int, ...] = request.module.LENGTHS
    return [torch.randint(4, checkpoints.VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
