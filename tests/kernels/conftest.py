"""What tests of kernels share."""

from collections.abc import Iterator

import pytest

from penstock.kernels.cpu.native import OBSTACLE, native


@pytest.fixture(params=[] if OBSTACLE is not None else native.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has, in use."""
    before = native.instruction_set()
    native.use_instruction_set(request.param)
    yield request.param
    native.use_instruction_set(before)
