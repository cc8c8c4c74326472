"""Weights arrive in a device's memory as they were, in the forms that its kernels take."""

import pytest
import torch

from penstock.kernels.kv_bytes import raw
from support.device import DEVICE, needs_gpu

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.loading.device_packing import Uploader

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_tensors_arrive_whole(dtype: torch.dtype) -> None:
    """Larger and smaller than the buffers that they go through, and some that are not contiguous."""
    upload = Uploader(DEVICE, 1 << 10)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator).mul(9).to(dtype) for shape in ((3,), (64, 31), (0, 5), (7, 1000))]
    given.append(given[1].t())
    for found, tensor in zip([upload(tensor) for tensor in given], given, strict=True):
        assert found.device == DEVICE and found.dtype is dtype
        assert torch.equal(raw(found.cpu()), raw(tensor.contiguous()))


@needs_gpu
def test_what_is_there_stays_where_it_is() -> None:
    tensor = torch.ones(3, device=DEVICE)
    assert Uploader(DEVICE)(tensor) is tensor
