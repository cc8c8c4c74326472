"""Host blocks: all or nothing, and none is given to somebody else while a plan still needs it."""

import pytest

from penstock.cache.manager import KVCache, SequenceBlocks
from penstock.cache.swap import SwappedBlocks, SwapSpace
from support.scripted import kv_spec


def held(cache: KVCache, sequence: int, tokens: int) -> SequenceBlocks:
    """A sequence that has computed so many tokens of its own."""
    blocks = cache.open(sequence, "")
    assert cache.reserve(blocks, 0, tokens, plan=0, until=None) == 0
    return blocks


def out(cache: KVCache, swap: SwapSpace, sequence: int, tokens: int) -> tuple[SequenceBlocks, SwappedBlocks]:
    """The same, swapped out."""
    blocks = held(cache, sequence, tokens)
    swapped = swap.swap_out(blocks, tokens)
    assert swapped is not None
    cache.free(blocks, until=None)
    return blocks, swapped


def fits(_shared: int) -> bool:
    return True


def test_all_or_nothing() -> None:
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 3)
    assert swap.swap_out(held(cache, 0, 16), 16) is None
    assert (swap.num_free, swap.num_used) == (3, 0)
    _, swapped = out(cache, swap, 1, 12)
    assert (swap.num_free, swap.num_used) == (0, 3)
    assert swap.swap_out(held(cache, 2, 1), 1) is None
    swap.check([swapped])
    with pytest.raises(RuntimeError, match="lost"):
        swap.check([])


def test_neighbours_are_copied_together() -> None:
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 8)
    out(cache, swap, 0, 12)
    assert [pair.host for pair in swap.take(0)[0]] == [0, 1, 2]


def test_what_a_plan_reads_it_does_not_write() -> None:
    """In a plan, blocks are swapped out first: who goes out behind one that comes back gets other host blocks."""
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 4)
    blocks, swapped = out(cache, swap, 0, 8)
    swap.take(0)
    swap.settle(0, failed=False)
    assert swap.swap_in(blocks, swapped, fits)
    _, other = out(cache, swap, 1, 8)
    assert swap.swap_out(held(cache, 2, 1), 1) is None, "all are needed until the plan is made"
    written, read = swap.take(1)
    assert {pair.host for pair in written}.isdisjoint(pair.host for pair in read)
    assert swap.num_free == 2
    swap.check([other])


def test_a_failed_plan_leaves_no_copy() -> None:
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 4)
    _, swapped = out(cache, swap, 0, 8)
    swap.take(7)
    assert swapped.unconfirmed
    swap.settle(7, failed=True)
    assert (swapped.unconfirmed, swapped.tokens, swap.num_free) == (False, 0, 4)
    swap.discard(swapped)
    assert swap.num_free == 4


def test_what_does_not_fit_stays_there() -> None:
    cache = KVCache(kv_spec(), 4)
    swap = SwapSpace(cache, 4)
    blocks, swapped = out(cache, swap, 0, 8)
    held(cache, 1, 12)
    assert not swap.swap_in(blocks, swapped, fits), "one block is free"
    assert not swap.swap_in(blocks, swapped, lambda _shared: False)
    assert (swapped.tokens, swap.num_used, blocks.tables) == (8, 2, [[]])
