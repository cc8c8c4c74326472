"""What was swapped out comes back as it was, whatever else happened to the pool."""

import random

import pytest
import torch

from penstock.core.errors import InsufficientMemory
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.host_blocks import HostBlocks
from penstock.runtime.storage import KVStorage

LAYERS = (LayerKV(2, 8), LayerKV(2, 8), LayerKV(2, 8, 32), LayerKV(2, 8, 32))
CPU = torch.device("cpu")
BLOCKS, HOSTS = 12, 9


def fill(pool: DeviceKVStorage) -> None:
    pool._memory.copy_(torch.randint(0, 256, pool._memory.shape, dtype=torch.uint8))


def content(pool: DeviceKVStorage, block: int) -> bytes:
    return pool._memory[block].numpy().tobytes()


@pytest.mark.parametrize("kept", ["auto", "int8", "fp8"])
@pytest.mark.parametrize("staged", [1, 3, 100])
def test_random_swaps_are_those_of_a_dictionary(kept: str, staged: int) -> None:
    """With scales, in any order, however many are on their way at a time."""
    chance = random.Random(0)
    spec = build_kv_spec(LAYERS, "bfloat16", 16, kept)
    pool = DeviceKVStorage(spec, BLOCKS, CPU)
    host = HostBlocks(pool._memory, HOSTS, staged * spec.block_bytes)
    fill(pool)
    there: dict[int, bytes] = {}
    for _ in range(40):
        count = chance.randrange(HOSTS + 1)
        out = [(chance.randrange(BLOCKS), each) for each in chance.sample(range(HOSTS), count)]
        if chance.random() < 0.5:
            out.sort(key=lambda pair: pair[1])
        there |= {each: content(pool, block) for block, each in out}
        host.swap_out(out)
        fill(pool)
        before = {block: content(pool, block) for block in range(BLOCKS)}
        sources = chance.sample(sorted(there), chance.randrange(len(there) + 1))
        back = list(zip(sources, chance.sample(range(BLOCKS), len(sources)), strict=True))
        host.swap_in(back)
        before |= {block: there[each] for each, block in back}
        assert before == {block: content(pool, block) for block in range(BLOCKS)}


def test_a_plan_swaps_out_before_it_swaps_in_and_copies() -> None:
    """A block goes out and to another place, and its own is given to others, in one plan."""
    pool = DeviceKVStorage(build_kv_spec(LAYERS, "bfloat16", 16, "int8"), BLOCKS, CPU, host_blocks=2)
    fill(pool)
    first, second, third = (content(pool, block) for block in range(3))
    pool.swap_out([(0, 1), (1, 0)])
    pool.swap_in([(1, 5)])
    pool.copy_blocks([(2, 0)])
    assert [content(pool, block) for block in (5, 0, 1)] == [first, third, second]
    pool.swap_in([(0, 0)])
    assert content(pool, 0) == second


def test_nothing_is_swapped_where_nothing_was_asked_for() -> None:
    spec = build_kv_spec(LAYERS, "bfloat16", 16)
    for pool in (KVStorage(spec, 2), DeviceKVStorage(spec, 2, CPU)):
        with pytest.raises(RuntimeError, match="blocks are swapped"):
            pool.swap_out([(0, 0)])


def test_memory_that_is_not_there_is_refused() -> None:
    pool = DeviceKVStorage(build_kv_spec(LAYERS, "bfloat16", 16), 1, CPU)
    with pytest.raises(InsufficientMemory, match=r"GiB for --swap-space and --kv-host-memory could not be had"):
        HostBlocks(pool._memory, 1 << 46)
