"""The block pool: states, transactions, eviction, retirement."""

import random

import pytest

from penstock.cache.chain import PrefixChain, keyed_hash
from penstock.cache.eviction import BlockUse, least_recently_used
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex


def make_pool(num_blocks: int) -> tuple[BlockPool, PrefixIndex]:
    index = PrefixIndex(1)
    return BlockPool(num_blocks, index), index


def publish(index: PrefixIndex, block: int, tokens: list[int]) -> PrefixChain:
    """Publish `block` as the only block of `tokens`."""
    chain = PrefixChain(b"", b"root", len(tokens), keyed_hash(b""))
    chain.extend(tokens, len(tokens))
    index.publish(0, chain, 0, block)
    return chain


def take(pool: BlockPool, count: int) -> list[int]:
    return pool.take(count)


def counts(pool: BlockPool) -> tuple[int, int, int, int]:
    return pool.num_free, pool.num_used, pool.num_cached, pool.num_retiring


def test_allocation_is_all_or_nothing() -> None:
    pool, _ = make_pool(4)
    first = take(pool, 3)
    assert len(set(first)) == 3
    with pytest.raises(RuntimeError, match="blocks are there"):
        pool.take(2)
    assert counts(pool) == (1, 3, 0, 0)
    assert pool.take(0) == []
    second = take(pool, 1)
    assert not set(first) & set(second)
    pool.check(dict.fromkeys(first + second, 1))


def test_wide_slots_are_held_and_given_back_whole() -> None:
    pool, index = make_pool(8)
    (narrow,) = pool.take(1)
    first, second = pool.take(2, 3)
    assert len({narrow, *pool.blocks_of(first), *pool.blocks_of(second)}) == 7
    assert (pool.blocks_of(narrow), counts(pool)) == ((narrow,), (1, 7, 0, 0))
    with pytest.raises(RuntimeError, match="1 blocks are there"):
        pool.take(1, 2)
    publish(index, first, [1])
    pool.release(first)
    pool.release(second, until=0)
    assert counts(pool) == (1, 1, 3, 3)
    pool.check({narrow: 1})
    # Any free blocks make a slot: what is left of those that an eviction gave free too.
    (wide,) = pool.take(1, 2)
    assert counts(pool) == (2, 3, 0, 3) and not index.is_published(first)
    pool.retire(0)
    assert counts(pool) == (5, 3, 0, 0)
    pool.check({narrow: 1, wide: 1})


def test_kept_slots_count_all_of_their_blocks() -> None:
    index = PrefixIndex(1)
    pool = BlockPool(8, index, max_kept=5)
    first, second = pool.take(2, 3)
    publish(index, first, [1])
    publish(index, second, [2])
    assert pool.keep(first, 1.0) and not pool.keep(second, 1.0)
    assert pool.num_kept == 3
    pool.release(first)
    assert (pool.num_available, pool.num_spare) == (5, 2)
    pool.check({second: 1})


def test_low_blocks_are_given_out_first() -> None:
    pool, _ = make_pool(8)
    assert pool.take(3) == [0, 1, 2]


def test_a_block_returns_with_its_last_reference() -> None:
    pool, _ = make_pool(2)
    block = take(pool, 1)[0]
    pool.share(block)
    pool.release(block)
    assert counts(pool) == (1, 1, 0, 0)
    pool.release(block)
    assert counts(pool) == (2, 0, 0, 0)


def test_double_free_is_refused() -> None:
    pool, _ = make_pool(2)
    block = take(pool, 1)[0]
    pool.release(block)
    with pytest.raises(RuntimeError, match="no sequence holds it"):
        pool.release(block)
    assert counts(pool) == (2, 0, 0, 0)
    pool.check({})


def test_what_nobody_holds_cannot_be_shared() -> None:
    pool, _ = make_pool(2)
    with pytest.raises(RuntimeError, match="not published"):
        pool.share(0)


def test_published_blocks_are_cached_and_evicted_oldest_first() -> None:
    pool, index = make_pool(3)
    blocks = take(pool, 3)
    for position, block in enumerate(blocks):
        publish(index, block, [position])
    for block in (blocks[1], blocks[2], blocks[0]):
        pool.release(block)
    assert counts(pool) == (0, 0, 3, 0)
    assert pool.take(2) == [blocks[1], blocks[2]]
    assert not index.is_published(blocks[1]) and index.is_published(blocks[0])


def test_of_one_release_the_deepest_block_is_evicted_first() -> None:
    shallow, deep = BlockUse(last_used=5, depth=0), BlockUse(last_used=5, depth=3)
    assert least_recently_used(deep) < least_recently_used(shallow)


def test_a_hit_saves_a_block_from_eviction() -> None:
    pool, index = make_pool(2)
    blocks = take(pool, 2)
    for position, block in enumerate(blocks):
        publish(index, block, [position])
        pool.release(block)
    pool.share(blocks[0])
    assert pool.take(1) == [blocks[1]]
    with pytest.raises(RuntimeError, match="blocks are there"):
        pool.take(1)
    pool.release(blocks[0])
    assert counts(pool) == (0, 1, 1, 0)


def test_shared_and_published_blocks_are_not_writable() -> None:
    pool, index = make_pool(2)
    blocks = take(pool, 2)
    assert pool.is_writable(blocks[0])
    pool.share(blocks[0])
    assert not pool.is_writable(blocks[0])
    publish(index, blocks[1], [1])
    assert not pool.is_writable(blocks[1])


def test_retiring_blocks_come_back_with_their_plan() -> None:
    pool, index = make_pool(3)
    blocks = take(pool, 3)
    publish(index, blocks[2], [1])
    pool.release(blocks[0], until=4)
    pool.release(blocks[1], until=5)
    pool.release(blocks[2], until=5)
    assert counts(pool) == (0, 0, 0, 3)
    with pytest.raises(RuntimeError, match="blocks are there"):
        pool.take(1)
    pool.retire(4)
    assert counts(pool) == (1, 0, 0, 2)
    pool.retire(5)
    assert counts(pool) == (2, 0, 1, 0)


def test_a_shared_block_waits_for_the_plans_of_all_who_let_go() -> None:
    pool, _ = make_pool(2)
    first, second = take(pool, 2)
    for block in (first, second):
        pool.share(block)
        pool.release(block, until=4)
    pool.release(first)
    assert counts(pool) == (0, 1, 0, 1)
    pool.retire(4)
    pool.release(second)
    assert counts(pool) == (2, 0, 0, 0)


@pytest.mark.parametrize("plans", [(4, 5), (5, 4)])
def test_a_shared_block_waits_for_the_newest_of_their_plans(plans: tuple[int, int]) -> None:
    pool, _ = make_pool(1)
    block = take(pool, 1)[0]
    for plan in plans:
        pool.share(block)
        pool.release(block, until=plan)
    pool.release(block)
    pool.retire(4)
    assert counts(pool) == (0, 0, 0, 1)
    pool.retire(5)
    assert counts(pool) == (1, 0, 0, 0)


def test_a_published_block_can_be_hit_while_it_retires() -> None:
    pool, index = make_pool(1)
    block = take(pool, 1)[0]
    publish(index, block, [1])
    pool.release(block, until=4)
    pool.share(block)
    assert counts(pool) == (0, 1, 0, 0)
    pool.release(block)
    assert counts(pool) == (0, 0, 0, 1), "the hit does not make it forget the plan it waits for"
    pool.share(block)
    pool.retire(4)
    assert counts(pool) == (0, 1, 0, 0)


def test_checks_find_what_is_wrong() -> None:
    pool, _ = make_pool(3)
    block = take(pool, 1)[0]
    pool.check({block: 1})
    with pytest.raises(RuntimeError, match="references"):
        pool.check({})
    with pytest.raises(RuntimeError, match="references"):
        pool.check({block: 2})
    pool._returned += [block, block]
    with pytest.raises(RuntimeError, match="twice"):
        pool.check({block: 1})
    pool._returned.pop()
    with pytest.raises(RuntimeError, match="wrong state"):
        pool.check({block: 1})


def test_the_eviction_order_survives_much_churn() -> None:
    rng = random.Random(1)
    pool, index = make_pool(8)
    held: list[int] = []
    order: list[int] = []
    for step in range(3000):
        if held and rng.random() < 0.5:
            block = held.pop(rng.randrange(len(held)))
            if not index.is_published(block):
                publish(index, block, [step])
            pool.release(block)
            order.append(block)
        elif order and rng.random() < 0.3:
            block = order.pop(rng.randrange(len(order)))
            pool.share(block)
            held.append(block)
        elif pool.num_available:
            evicts = pool.num_free == 0
            block = take(pool, 1)[0]
            if evicts:
                assert block == order.pop(0)
            held.append(block)
        pool.check(dict.fromkeys(held, 1))


def kept_pool(num_blocks: int, max_kept: int) -> tuple[BlockPool, PrefixIndex, list[int]]:
    """A pool full of cached blocks, the first ones used last."""
    index = PrefixIndex(1)
    pool = BlockPool(num_blocks, index, max_kept=max_kept)
    blocks = take(pool, num_blocks)
    for block in blocks:
        publish(index, block, [block])
    for block in reversed(blocks):
        pool.release(block)
    return pool, index, blocks


def test_what_is_kept_is_evicted_last() -> None:
    pool, _, blocks = kept_pool(4, max_kept=2)
    # The two that would go first.
    assert pool.keep(blocks[3], 60)
    assert pool.keep(blocks[2], 60)
    assert (pool.num_available, pool.num_spare) == (4, 2)
    assert take(pool, 2) == [blocks[1], blocks[0]]
    assert (pool.num_available, pool.num_spare, pool.num_kept) == (2, 0, 2)
    # Where nothing else is left they give way.
    assert take(pool, 1) == [blocks[3]]
    assert pool.num_kept == 1
    pool.check(dict.fromkeys([blocks[0], blocks[1], blocks[3]], 1))


def test_no_more_are_kept_than_may_be() -> None:
    pool, _, blocks = kept_pool(4, max_kept=1)
    assert pool.keep(blocks[0], 60)
    assert not pool.keep(blocks[1], 60)
    assert pool.keep(blocks[0], 60)
    assert [pool.is_kept(block) for block in blocks] == [True, False, False, False]


def test_keeping_ends_and_a_use_begins_it_again() -> None:
    pool, _, blocks = kept_pool(3, max_kept=3)
    pool.tick(100.0)
    assert pool.keep(blocks[0], 60)
    assert pool.keep(blocks[1], 60)
    pool.tick(150.0)
    pool.share(blocks[0])
    pool.release(blocks[0])
    pool.tick(160.0)
    assert [pool.is_kept(block) for block in blocks] == [True, False, False]
    assert pool.num_spare == 2
    pool.tick(209.9)
    assert pool.is_kept(blocks[0])
    pool.tick(210.0)
    assert (pool.num_kept, pool.num_spare, pool.num_available) == (0, 3, 3)
    pool.check({})


def test_the_longer_time_counts() -> None:
    pool, _, blocks = kept_pool(1, max_kept=1)
    assert pool.keep(blocks[0], 3600)
    assert pool.keep(blocks[0], 300)
    pool.tick(3599)
    assert pool.is_kept(blocks[0])
    pool.tick(3600)
    assert not pool.is_kept(blocks[0])


def test_hits_leave_the_eviction_queue_short() -> None:
    pool, index = make_pool(4)
    for block in take(pool, 4):
        publish(index, block, [block])
        pool.release(block)
    for step in range(1000):
        pool.share(step % 4)
        pool.release(step % 4)
    assert len(pool._eviction_heap) <= 2 * 4 + 65
    assert take(pool, 4) == [0, 1, 2, 3], "those that are left are in order"
