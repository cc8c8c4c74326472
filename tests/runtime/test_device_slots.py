"""Slots leave a device's pool as the steps before left them, and come where the steps behind find them."""

import random
import threading

import pytest
import torch

from penstock.core.errors import InsufficientMemory
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.runtime.device_slots import DeviceSlots
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.stepping.storage import Copied
from support.device import DEVICE, needs_gpu
from support.later import LaterDevice

LAYERS = (LayerKV(2, 8), LayerKV(2, 8), LayerKV(2, 8, 32), LayerKV(2, 8, 32))
CPU = torch.device("cpu")
BLOCKS, BYTES = 12, 64


def made_of(device: LaterDevice | None, rows: int, at_a_time: int) -> tuple[torch.Tensor, DeviceSlots]:
    memory = torch.randint(0, 256, (BLOCKS, BYTES), dtype=torch.uint8)
    queues = None if device is None else device.queues
    return memory, DeviceSlots(memory, 1, rows * BYTES, at_a_time * BYTES, queues)


def random_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(BYTES)


@pytest.mark.parametrize("at_a_time", [1, 3, 100])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_device_does_when_copies_are_of_their_time(seed: int, at_a_time: int) -> None:
    """Steps write blocks right behind copies of them; areas and rows are used again before the device gets on."""
    chance = random.Random(seed)
    device = LaterDevice(chance)
    memory, slots = made_of(device, rows=7, at_a_time=at_a_time)
    expected = [bytes(row.numpy().tobytes()) for row in memory]
    leaving: list[tuple[Copied, bytearray, bytes]] = []
    full = copied = 0
    for _ in range(150):
        some = chance.sample(range(BLOCKS), chance.randint(1, 3))
        action = chance.randrange(4)
        if action == 0:
            for block in some:
                expected[block] = random_bytes(chance)
                values = torch.frombuffer(bytearray(expected[block]), dtype=torch.uint8)
                device.queues.computing.run(lambda block=block, values=values: memory[block].copy_(values))
        elif action == 1:
            for blocks in ([some[0]], some[1:]):
                content = bytearray()
                copy = slots.copied(blocks, content.extend) if blocks else None
                full += copy is None
                if copy is not None:
                    assert not copy.is_there(), "it has not begun"
                    leaving.append((copy, content, b"".join(expected[block] for block in blocks)))
            slots.begin_copies()
        elif action == 2:
            contents = [random_bytes(chance) for _ in some]
            slots.put_slots([(some[:2], b"".join(contents[:2])), *((([some[2]], contents[2]),) if some[2:] else ())])
            for block, content in zip(some, contents, strict=True):
                expected[block] = content
        else:
            for _ in range(chance.randrange(8)):
                device.get_on()
        for copy, content, right in chance.sample(leaving, chance.randint(0, len(leaving))):
            if chance.random() < 0.1:
                copy.drop()
            elif copy.is_there():
                copy.use()
                copy.use()
                assert content == right, "it is used once"
                copied += 1
            else:
                continue
            leaving.remove((copy, content, right))
    for copy, content, right in leaving:
        copy.wait()
        copy.use()
        assert content == right
    device.finish()
    assert [row.numpy().tobytes() for row in memory] == expected
    assert slots._rows.num_free == 7 and full and copied


def test_a_slot_that_was_copied_is_used_once_for_all_who_want_it() -> None:
    """On threads of theirs, and its rows are free then."""
    _, slots = made_of(None, rows=2, at_a_time=1)
    calls = []

    def used(content: memoryview) -> None:
        calls.append(threading.current_thread())

    copy = slots.copied([3, 5], used)
    assert copy is not None and slots.copied([4], used) is None
    slots.begin_copies()
    threads = [threading.Thread(target=copy.use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and calls[0] in threads and slots._rows.num_free == 2


def test_what_cannot_be_used_holds_no_rows() -> None:
    _, slots = made_of(None, rows=2, at_a_time=1)

    def breaks(content: memoryview) -> None:
        raise ValueError("nobody foresaw this")

    copy = slots.copied([3], breaks)
    assert copy is not None
    slots.begin_copies()
    with pytest.raises(ValueError, match="nobody foresaw this"):
        copy.use()
    with pytest.raises(RuntimeError, match="not there any more"):
        copy.use()
    copy.drop()
    assert slots._rows.num_free == 2


@pytest.mark.cuda
@pytest.mark.parametrize("kept", ["auto", "int8", "fp8"])
def test_slots_of_a_pool_come_back_as_they_were(kept: str) -> None:
    """With scales, in slots of several blocks, in pieces; and their own blocks are written over meanwhile."""
    spec = build_kv_spec(LAYERS, "bfloat16", 16, kept)
    pool = DeviceKVStorage(spec, BLOCKS, DEVICE)
    slots = DeviceSlots(pool._memory, 3, 9 * spec.block_bytes, 2 * spec.block_bytes)
    sources, targets = ([0], [5, 2, 9], [1, 3], [7, 6, 8]), ([11], [0, 1, 2], [4, 5], [6, 10, 8])
    for _ in range(3):
        pool._memory.copy_(torch.randint(0, 256, pool._memory.shape, dtype=torch.uint8))
        before = pool._memory.cpu().clone()
        made = [bytearray() for _ in sources]
        copies = [slots.copied(blocks, each.extend) for blocks, each in zip(sources, made, strict=True)]
        slots.begin_copies()
        pool.clear_blocks(list(range(BLOCKS)))
        for copy in copies:
            assert copy is not None
            copy.wait()
            assert copy.is_there()
            copy.use()
        slots.put_slots(list(zip(targets, made, strict=True)))
        after = pool._memory.cpu()
        for source, target in zip(sources, targets, strict=True):
            assert torch.equal(after[target], before[source])
        assert not after[[3, 7, 9]].any()


def test_memory_that_is_not_there_is_refused() -> None:
    pool = DeviceKVStorage(build_kv_spec(LAYERS, "bfloat16", 16), 1, CPU)
    with pytest.raises(InsufficientMemory, match=r"GiB for --kv-disk, --kv-store and --role could not be had"):
        DeviceSlots(pool._memory, 1 << 46)


@pytest.mark.cuda
@needs_gpu
def test_nothing_waits_for_copies_of_what_a_gpu_still_computes() -> None:
    """It is asked for everything before it has begun, and gives all in order."""
    memory = torch.zeros((64, 1 << 20), dtype=torch.uint8, device=DEVICE)
    slots = DeviceSlots(memory, 1, 32 << 20, 4 << 20)
    torch.cuda._sleep(1 << 28)
    memory.fill_(1)
    made = [bytearray() for _ in range(32)]
    copies = [slots.copied([block], made[block].extend) for block in range(32)]
    slots.begin_copies()
    assert not any(copy.is_there() for copy in copies if copy is not None)
    memory.fill_(2)
    slots.put_slots([([block], bytes([3]) * (1 << 20)) for block in range(6)])
    for copy in copies:
        assert copy is not None
        copy.wait()
        copy.use()
    assert all(set(each) == {1} for each in made)
    assert memory[:, 0].tolist() == [3] * 6 + [2] * 58
