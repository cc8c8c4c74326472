"""The pool on a device holds what the one in this process's memory does, whatever is cleared and copied."""

import random

import pytest
import torch

from penstock.core.kv import LayerKV, build_kv_spec
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
        assert not bool(pools[1]._memory.any())
        for layer in range(len(LAYERS)):
            assert pools[0].table_of(layer) == pools[1].table_of(layer)
            for (name, mine), (same, right) in zip(
                pools[1].planes(layer).items(), pools[0].planes(layer).items(), strict=True
            ):
                assert name == same and mine.shape == right.shape and mine.dtype is right.dtype
        noise = torch.randint(0, 256, pools[0]._memory.shape, dtype=torch.uint8)
        for pool in pools:
            pool._memory.copy_(noise)
        for _ in range(50):
            pairs = [(*chance.sample(range(12), 2),) for _ in range(chance.randrange(4))]
            cleared = chance.sample(range(12), chance.randrange(3))
            for pool in pools:
                pool.copy_blocks(pairs)
                if cleared:
                    pool.clear_blocks(cleared)
            assert torch.equal(pools[1]._memory.cpu(), pools[0]._memory)


@pytest.mark.cuda
def test_of_two_copies_to_one_block_the_last_counts() -> None:
    spec = build_kv_spec(LAYERS, "bfloat16", 16, "auto")
    pool = DeviceKVStorage(spec, 400, DEVICE)
    pool._memory.copy_(torch.randint(0, 256, pool._memory.shape, dtype=torch.uint8))
    last = pool._memory[399].cpu()
    pool.copy_blocks([(source, 0) for source in range(1, 400)])
    assert torch.equal(pool._memory[0].cpu(), last)
