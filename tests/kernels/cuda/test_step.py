"""A step's numbers arrive on the device as they were, however soon the next step's follow."""

import numpy as np
import pytest
import torch

from support.device import DEVICE, needs_gpu

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda.step import Int32s, Staging, int32s_for

pytestmark = pytest.mark.cuda


def steps(count: int) -> list[list[Int32s]]:
    """Arrays of a few shapes, one of them empty, that differ from step to step."""
    chance = np.random.default_rng(count)
    shapes = ((3,), (2, 5), (0,), (4, 33))
    return [[chance.integers(-(1 << 31), 1 << 31, shape).astype(np.int32) for shape in shapes] for _ in range(count)]


def same(found: list[torch.Tensor], given: list[Int32s]) -> None:
    for mine, right in zip(found, given, strict=True):
        assert mine.device == DEVICE and mine.shape == right.shape
        assert np.array_equal(mine.cpu().numpy(), right)


def test_each_step_has_its_own_memory() -> None:
    staging, given = Staging(DEVICE), steps(40)
    found = [staging.send(arrays) for arrays in given]
    for mine, right in zip(found, given, strict=True):
        same(mine, right)


def test_a_graphs_steps_go_to_one_place() -> None:
    staging, given = Staging(DEVICE), steps(5)
    memory = torch.empty(int32s_for(given[0]), dtype=torch.int32, device=DEVICE)
    for arrays in given:
        found = staging.send(arrays, memory)
        assert found[0].data_ptr() == memory.data_ptr()
        same(found, arrays)


@needs_gpu
def test_a_buffer_is_not_written_before_its_copy_is_over() -> None:
    staging, given = Staging(DEVICE), steps(4)
    with torch.cuda.device(DEVICE):
        # Copies wait behind half a second or so of nothing.
        torch.cuda._sleep(1_000_000_000)
        found = [staging.send(arrays) for arrays in given]
        assert len(staging._buffers) == len(given)
        assert all(buffer.is_pinned() for buffer, _ in staging._buffers)
        for mine, right in zip(found, given, strict=True):
            same(mine, right)
        staging.send(given[0])
        assert len(staging._buffers) == len(given)
