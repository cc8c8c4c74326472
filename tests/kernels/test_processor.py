"""Which kernels compute on a processor, and how a pool is laid out for them."""

import pytest
import torch

from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.processor import this_processor, torch_alone


def test_the_native_kernels_compute_where_they_can() -> None:
    found = this_processor()
    assert found.obstacle == OBSTACLE and found.native == (OBSTACLE is None)
    assert (set(NATIVE) <= set(found.implementations)) == found.native


def test_without_them_torch_computes_and_the_reason_is_told() -> None:
    found = torch_alone("they were not built")
    assert not found.native and not set(NATIVE) & set(found.implementations)
    plain, small = (build_kv_spec([LayerKV(1, 64)], "float32", kept=kept) for kept in ("auto", "int8"))
    assert found.kv_layout(plain, torch.float32) == "slots"
    with pytest.raises(ConfigurationError, match="not possible here: they were not built"):
        found.kv_layout(small, torch.float32)


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
def test_a_pool_of_bytes_that_the_native_kernels_do_not_take_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="take heads of an even size, not of 7"):
        this_processor().kv_layout(build_kv_spec([LayerKV(1, 7)], "float32", kept="int8"), torch.float32)
