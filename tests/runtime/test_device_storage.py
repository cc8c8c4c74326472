"""The pool on a device holds what the one in this process's memory does, whatever is cleared and copied."""

import random

import pytest
import torch

from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.plan import BlockCopy
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.storage import KVStorage
from support.device import DEVICE

LAYERS = (LayerKV(2, 8), LayerKV(2, 8), LayerKV(2, 8, 32), LayerKV(2, 8, 32))


@pytest.mark.cuda
def test_both_pools_do_the_same() -> None:
    chance = random.Random(0)
    for kept in ("auto", "int8"):
        spec = build_kv_spec(LAYERS, "bfloat16", 16, kept)
        pools = KVStorage(spec, 12), DeviceKVStorage(spec, 12, DEVICE)
        assert not any(bool(plane.view(torch.uint8).any()) for plane in pools[1].planes(0) + pools[1].planes(1))
        # Layers at the same place of different groups are one.
        for layer in range(len(LAYERS)):
            assert pools[0].group_of(layer) == pools[1].group_of(layer)
            for mine, right in zip(pools[1].planes(layer), pools[0].planes(layer), strict=True):
                assert mine.shape == right.shape and mine.dtype is right.dtype
                noise = torch.randint(0, 256, (right.nbytes,), dtype=torch.uint8)
                for plane in (mine, right):
                    plane.view(-1).view(torch.uint8).copy_(noise)
        for _ in range(50):
            pairs = tuple(BlockCopy(*chance.sample(range(12), 2)) for _ in range(chance.randrange(4)))
            cleared = chance.sample(range(12), chance.randrange(3))
            for pool in pools:
                pool.copy_blocks(pairs)
                if cleared:
                    pool.clear_blocks(cleared)
            for layer in range(len(LAYERS)):
                for mine, right in zip(pools[1].planes(layer), pools[0].planes(layer), strict=True):
                    assert torch.equal(mine.cpu().view(torch.uint8), right.view(torch.uint8))
