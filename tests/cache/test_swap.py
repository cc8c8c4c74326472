"""Host blocks: all or nothing, and none is given to somebody else while a plan still needs it."""

import pytest

from penstock.cache.groups import Table
from penstock.cache.held import SequenceBlocks
from penstock.cache.manager import KVCache
from penstock.cache.swap import SwappedBlocks, SwapSpace
from penstock.core.plan import Place, TransferResult
from support.made_up_model import kv_spec


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
    assert [transfer.target for transfer in cache.transfers.take(0)] == [Place("host", (host,)) for host in range(3)]


def report(cache: KVCache, swap: SwapSpace, plan: int, ids: range, *, done: bool = True) -> None:
    """The plan has committed, and these transfers are over."""
    over = cache.transfers.settle(plan, [TransferResult(each, done) for each in ids], failed=False)
    cache.pool.retire(plan)
    swap.settle(over)


def test_what_a_transfer_reads_is_not_written_before_it_is_over() -> None:
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 4)
    blocks, swapped = out(cache, swap, 0, 8)
    cache.transfers.take(0)
    assert not swapped.storing.is_over
    report(cache, swap, 0, range(2))
    loading = swap.swap_in(blocks, swapped, fits)
    assert swapped.storing.is_over and loading is not None and not loading.is_over
    _, other = out(cache, swap, 1, 8)
    assert swap.swap_out(held(cache, 2, 1), 1) is None, "all are needed until the blocks have come in"
    read, written = (cache.transfers.take(1)[:2], range(4, 6))
    assert {transfer.source.blocks for transfer in read}.isdisjoint(places for _, places in other.hosts[0])
    # One by one, in any order; the host blocks are free when both have come.
    report(cache, swap, 1, range(3, 4))
    assert (swap.num_free, loading.is_over) == (0, False)
    report(cache, swap, 2, range(2, 3))
    assert (swap.num_free, loading.is_over) == (2, True)
    report(cache, swap, 3, written)
    swap.check([other])


def test_what_comes_in_is_held_until_it_is_there() -> None:
    """Whatever becomes of the sequence for which it comes."""
    cache = KVCache(kv_spec(), 4)
    swap = SwapSpace(cache, 4)
    blocks, swapped = out(cache, swap, 0, 8)
    cache.transfers.take(0)
    report(cache, swap, 0, range(2))
    assert swap.swap_in(blocks, swapped, fits) is not None
    cache.transfers.take(1)
    cache.free(blocks, until=None)
    assert (cache.pool.num_used, cache.pool.num_free) == (2, 2)
    cache.check([])
    report(cache, swap, 2, range(2, 4), done=False)
    assert (cache.pool.num_used, cache.pool.num_free, swap.num_free) == (0, 4, 4)
    cache.check([])


@pytest.mark.parametrize("whole_plan", [True, False])
def test_a_copy_that_failed_is_given_up(whole_plan: bool) -> None:
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 4)
    _, swapped = out(cache, swap, 0, 8)
    cache.transfers.take(7)
    if whole_plan:
        swap.settle(cache.transfers.settle(7, [], failed=True))
    else:
        report(cache, swap, 7, range(1, 2), done=False)
        assert (swapped.tokens, swap.num_free) == (8, 2)
        report(cache, swap, 8, range(1))
    assert (swapped.storing.is_over, swapped.tokens, swap.num_free) == (True, 0, 4)
    swap.discard(swapped)
    assert swap.num_free == 4


def test_a_copy_that_is_discarded_on_its_way_frees_its_blocks_when_it_is_over() -> None:
    cache = KVCache(kv_spec(), 20)
    swap = SwapSpace(cache, 4)
    _, swapped = out(cache, swap, 0, 8)
    cache.transfers.take(0)
    swap.discard(swapped)
    assert (swapped.tokens, swap.num_free) == (0, 2)
    swap.check([])
    report(cache, swap, 0, range(2))
    assert swap.num_free == 4


def test_a_report_of_what_is_not_under_way_is_refused() -> None:
    cache = KVCache(kv_spec(), 20)
    with pytest.raises(RuntimeError, match="transfer 3 is reported"):
        cache.transfers.settle(0, [TransferResult(3, done=True)], failed=False)


def test_what_does_not_fit_stays_there() -> None:
    cache = KVCache(kv_spec(), 4)
    swap = SwapSpace(cache, 4)
    blocks, swapped = out(cache, swap, 0, 8)
    held(cache, 1, 12)
    assert not swap.swap_in(blocks, swapped, fits), "one block is free"
    assert not swap.swap_in(blocks, swapped, lambda _shared: False)
    assert (swapped.tokens, swap.num_used, blocks.tables) == (8, 2, [Table()])
