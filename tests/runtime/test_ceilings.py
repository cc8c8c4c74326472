"""What a machine reaches at most is measured, and shares of it are as they should be."""

import pytest
import torch

from penstock.core.ceilings import TYPES, Ceilings
from penstock.kernels.cpu.native import OBSTACLE
from penstock.runtime.ceilings import measure_ceilings

needs_kernels = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
MADE_UP = Ceilings(10.0, {"int8": 100.0, "bfloat16": 0.0, "float32": 50.0})


@needs_kernels
def test_reads_and_arithmetic_are_measured() -> None:
    ceilings = measure_ceilings(torch.ones(4 << 20, dtype=torch.uint8), seconds=0.0)
    assert ceilings.read > 0 and ceilings.arithmetic["float32"] > 0
    assert set(ceilings.arithmetic) == set(TYPES)


def test_shares_are_of_what_was_possible() -> None:
    assert MADE_UP.of_memory(5_000_000_000, 1.0) == pytest.approx(0.5)
    assert MADE_UP.peak("int4") == 100.0, "int4 is computed in int8"
    assert MADE_UP.peak("bfloat16") == 50.0, "there is none, so float32"
    assert MADE_UP.of_memory(1, 0.0) == 0.0
    assert Ceilings(0.0, {}).peak("int8") == 0.0
