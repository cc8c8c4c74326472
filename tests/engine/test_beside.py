"""Engines beside each other: who leaves a core to whom, and when."""

import contextlib
import gc
import mmap
import os
from collections.abc import Iterator

import pytest

from penstock.engine.beside import GivingWay, Leading, SharedMemory, attach


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    shared = SharedMemory()
    with contextlib.closing(attach(shared.descriptor)) as memory:
        yield memory


def test_an_engine_that_gives_way_leaves_a_core_while_another_computes(memory: mmap.mmap) -> None:
    used = list[int]()
    first, second, giving = Leading(memory, 0), Leading(memory, 7), GivingWay(memory, 4, used.append)
    for step in (
        giving.begin_step,
        first.begin_step,
        giving.begin_step,
        giving.begin_step,
        second.begin_step,
        first.rest,
        giving.begin_step,
        second.rest,
        giving.rest,
        giving.begin_step,
    ):
        step()
    # It is told of changes only: three threads from the third call on, and four from the last.
    assert used == [3, 4]


def test_one_thread_is_left_to_it(memory: mmap.mmap) -> None:
    used = list[int]()
    Leading(memory, 0).begin_step()
    GivingWay(memory, 1, used.append).begin_step()
    assert used == []


def test_one_that_is_started_again_computes_nothing_yet(memory: mmap.mmap) -> None:
    Leading(memory, 3).begin_step()
    Leading(memory, 3)
    assert not any(memory[:])


def test_processes_have_the_memory_until_nothing_refers_to_it() -> None:
    shared = SharedMemory()
    Leading(attach(shared.descriptor), 2).begin_step()
    assert attach(shared.descriptor)[:4] == b"\0\0\1\0"
    descriptor = shared.descriptor
    del shared
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)
