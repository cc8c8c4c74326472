"""Activations over all floats, by all instruction sets."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE, native

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

pytestmark = pytest.mark.usefixtures("instruction_set")

AROUND = torch.linspace(-8, 8, 20_001).reshape(3, -1)
FAR = torch.tensor([[-3e38, -1e4, -100.0, -13.0], [13.0, 100.0, 1e4, 3e38]])


@pytest.mark.parametrize("gated", [False, True], ids=["alone", "gate"])
def test_gelu_is_what_it_is_in_double_precision(gated: bool) -> None:
    found = gelu(AROUND, gated=gated)
    assert (found - F.gelu(AROUND.double())).abs().max() < 2e-6


@pytest.mark.parametrize("gated", [False, True], ids=["alone", "gate"])
def test_gelu_of_large_numbers_is_nothing_or_the_same(gated: bool) -> None:
    found = gelu(FAR, gated=gated)
    assert (found[0].abs() <= FAR[0].abs() * 2e-7).all()
    assert ((found[1] - FAR[1]).abs() <= FAR[1] * 2e-7).all()
    assert gelu(torch.full((1, 40), torch.nan), gated=gated).isnan().all()


def gelu(x: Tensor, *, gated: bool) -> Tensor:
    """Of each number; gated, with ups of 1."""
    program = native.Program(2)
    if gated:
        program.gated_activation("gelu", 0, 1)
        given = torch.cat([x, torch.ones_like(x)], dim=1)
    else:
        program.activation("gelu", 0, 1)
        given = x
    output = torch.empty_like(x)
    ids = np.zeros(len(x), dtype=np.int64)
    rows = [len(x)]
    program.run(ids, np.arange(len(x)), rows, rows, ids[:0], [], 16, ids[:0], [(0, given.contiguous())], [(1, output)])
    return output
