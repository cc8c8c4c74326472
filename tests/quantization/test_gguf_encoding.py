"""What is rounded to blocks of GGUF files is near to what it was, and integers stay what they are."""

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.quantization.gguf_encoding import of_integers, of_numbers
from penstock.quantization.recipe import GGUF_TYPES, K_TYPES
from penstock.quantization.rtn import Grid, quantize_rtn


def weights(outputs: int = 24, inputs: int = 768, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.02


def by_the_package(raw: Tensor, kind: str) -> Tensor:
    return torch.from_numpy(np.array(gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType[kind])))


def loss(found: Tensor, weight: Tensor) -> float:
    return float((found - weight).square().sum() / weight.square().sum())


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_integers_mean_the_same_in_blocks(kind: str, group: int) -> None:
    matrix = quantize_rtn(weights(), Grid(GGUF_TYPES[kind].bits, group))
    blocks = of_integers(matrix, kind)
    assert torch.equal(blocks.numbers(), matrix.numbers())
    assert torch.equal(by_the_package(blocks.raw, kind), matrix.numbers())


@pytest.mark.parametrize(("kind", "most"), [("Q4_K", 0.0065), ("Q6_K", 0.0005)])
def test_numbers_are_near_in_blocks(kind: str, most: float) -> None:
    weight = weights()
    blocks = of_numbers(weight, kind)
    assert torch.equal(by_the_package(blocks.raw, kind), blocks.numbers())
    assert 0 < loss(blocks.numbers(), weight) < most
    grid = GGUF_TYPES[kind]
    # Scales that are integers cost little beside those of their own, of which there are twice as many bits or more.
    assert loss(blocks.numbers(), weight) < 1.1 * loss(quantize_rtn(weight, grid).numbers(), weight)
    # Whoever rounds what has been rounded loses next to nothing.
    assert loss(of_numbers(blocks.numbers(), kind).numbers(), blocks.numbers()) < most / 10


@pytest.mark.parametrize("kind", K_TYPES)
def test_awkward_numbers_stay_near(kind: str) -> None:
    weight = weights(8, 512, seed=3)
    weight[0] = 0
    weight[1, :256] = 0.5
    weight[2] = weight[2].abs()
    weight[3] = -weight[3].abs() - 1
    weight[4, 7] = 40.0
    weight[5] *= 1e-6
    weight[6, ::32] = 0
    found = of_numbers(weight, kind).numbers()
    assert bool(found.isfinite().all())
    assert torch.equal(found[0], weight[0]) and float((found[1, :256] - 0.5).abs().max()) < 0.01
    assert all(loss(found[row], weight[row]) < 0.02 for row in (2, 3, 4, 6))
    # float16 has no digits for scales of numbers so small.
    assert float((found[5] - weight[5]).abs().max()) <= 2 * float(weight[5].abs().max())
    assert bool(of_numbers(torch.full((1, 256), 1e30), kind).numbers().isfinite().all())
