"""What tests of native kernels leave behind."""

from collections.abc import Iterator

import pytest

from penstock.kernels.cpu.native import OBSTACLE, native


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    if OBSTACLE is not None:
        yield
        return
    before = native.threads()
    yield
    native.set_threads(before)
