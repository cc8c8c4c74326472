"""Memory for packed weights: aligned, disjoint, and given back."""

import gc
import weakref

from penstock.kernels.cpu.memory import ALIGNMENT, PageArena


def test_pieces_are_aligned_and_disjoint() -> None:
    arena = PageArena()
    taken = [arena.take(size) for size in (1, 64, 100, 70 << 20, 3, 63 << 20, 2 << 20)]
    assert all(memory.data_ptr() % ALIGNMENT == 0 for memory in taken)
    for number, memory in enumerate(taken, start=1):
        memory.fill_(number)
    for number, memory in enumerate(taken, start=1):
        assert memory[0] == number and memory[-1] == number and bool((memory[:: 1 << 16] == number).all())


def test_memory_that_nobody_holds_goes_back() -> None:
    arena = PageArena()
    first = arena.take(60 << 20)
    storage = weakref.ref(first.untyped_storage())
    arena.take(60 << 20)
    del first
    gc.collect()
    assert storage() is None
