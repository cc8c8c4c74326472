"""Block tables in transactions: what a reservation takes, gives back and tells the executor."""

import copy

import pytest

from penstock.cache.held import SequenceBlocks
from penstock.cache.manager import KVCache
from penstock.core.plan import TransferResult
from support.made_up_model import kv_spec
from support.scripted_rows import RELEASED


def make_cache(num_blocks: int = 40, windows: tuple[int | None, ...] = (None,), **options: bool) -> KVCache:
    return KVCache(kv_spec(4, windows), num_blocks, **options)


def computed(cache: KVCache, tokens: list[int], salt: str = "", sequence: int = 0) -> SequenceBlocks:
    """A sequence whose tokens are all computed and published."""
    blocks = cache.open(sequence, salt)
    assert cache.reserve(blocks, 0, len(tokens), plan=0, until=None) == 0
    cache.publish(blocks, tokens, len(tokens))
    return blocks


def copied(cache: KVCache) -> list[tuple[int, int]]:
    """The copies of the plan in the making, which are over at once."""
    taken = cache.transfers.take(0)
    cache.transfers.settle(0, [TransferResult(each.id, done=True) for each in taken], failed=False)
    return [(each.source.blocks[0], each.target.blocks[0]) for each in taken]


def forked(cache: KVCache, blocks: SequenceBlocks, sequence: int, tokens: int) -> SequenceBlocks:
    """A fork for which everything is held."""
    fork = cache.fork(blocks, sequence, tokens)
    assert fork is not None
    return fork


def state(cache: KVCache, blocks: SequenceBlocks) -> object:
    """Everything that a failed reservation must leave as it was."""
    pool = cache.pool
    return (
        copy.deepcopy(blocks.tables),
        blocks.room,
        blocks.published,
        blocks.shares,
        [pool.references(block) for block in range(pool.num_blocks)],
        (pool.num_free, pool.num_cached, pool.num_retiring),
        len(cache.index),
    )


def scenario(cache: KVCache, fail_at: int | None) -> tuple[list[object], int]:
    """A fixed run of operations; the `fail_at`-th reservation that wants blocks finds none at first."""
    history: list[object] = []
    attempts = 0

    def reserve(blocks: SequenceBlocks, start: int, end: int, plan: int) -> None:
        nonlocal attempts
        free = cache.pool.num_free
        if attempts == fail_at:
            hoard = cache.pool.take(cache.pool.num_available)
            before = state(cache, blocks)
            missing = cache.reserve(blocks, start, end, plan=plan, until=None)
            if missing:
                assert state(cache, blocks) == before
                assert copied(cache) == []
            # In the order in which they came, so that what follows is the same as without a failure.
            for block in reversed(hoard):
                cache.pool.release(block)
            if missing:
                assert cache.reserve(blocks, start, end, plan=plan, until=None) == 0
        else:
            assert cache.reserve(blocks, start, end, plan=plan, until=None) == 0
        attempts += cache.pool.num_free != free or fail_at is None
        history.append((copy.deepcopy(blocks.tables), copied(cache), cache.take_updates(blocks)))

    first = cache.open(0, "")
    reserve(first, 0, 6, 0)
    reserve(first, 6, 13, 1)
    second = forked(cache, first, 1, 13)
    reserve(second, 13, 14, 2)
    reserve(first, 13, 17, 3)
    third = forked(cache, second, 2, 14)
    cache.free(second, until=None)
    reserve(third, 14, 30, 4)
    for blocks in (first, third):
        cache.free(blocks, until=None)
    cache.pool.retire(4)
    assert cache.pool.num_free == cache.pool.num_blocks
    return history, attempts


@pytest.mark.parametrize("windows", [(None,), (None, None)])
def test_failing_every_reservation_once_changes_nothing(windows: tuple[int | None, ...]) -> None:
    expected, attempts = scenario(make_cache(windows=windows, prefix_caching=False), None)
    assert attempts >= 5
    for fail_at in range(attempts):
        history, _ = scenario(make_cache(windows=windows, prefix_caching=False), fail_at)
        assert history == expected


def test_missing_blocks_are_counted() -> None:
    cache = make_cache(5)
    blocks = cache.open(0, "")
    assert cache.reserve(blocks, 0, 25, plan=0, until=None) == 2
    assert cache.pool.num_free == 5
    assert cache.reserve(blocks, 0, 20, plan=0, until=None) == 0
    assert cache.reserve(blocks, 20, 21, plan=1, until=None) == 1


def test_reserving_within_a_block_takes_nothing() -> None:
    cache = make_cache()
    blocks = computed(cache, [1, 2])
    for position in (2, 3):
        assert cache.reserve(blocks, position, position + 1, plan=0, until=None) == 0
    assert cache.pool.num_used == 1


def test_updates_tell_the_executor_only_what_is_new() -> None:
    cache = make_cache()
    blocks = computed(cache, list(range(6)))
    (update,) = cache.take_updates(blocks)
    assert (update.group, update.first, len(update.blocks)) == (0, 0, 2)
    assert cache.take_updates(blocks) == ()
    cache.reserve(blocks, 6, 9, plan=1, until=None)
    (update,) = cache.take_updates(blocks)
    assert (update.first, len(update.blocks)) == (2, 1)


def test_a_hit_shares_published_blocks() -> None:
    cache = make_cache()
    first = computed(cache, list(range(10)))
    second = cache.open(1, "")
    known = [*range(8), 50, 51]
    hit = cache.longest_hit(second, known)
    assert hit == 2
    assert cache.attach_prefix(second, hit, len(known)) == 8
    assert second.tables[0].slots == first.tables[0].slots[:2]
    assert cache.pool.num_used == 3
    assert second.published == 2, "what was hit is not offered again"


@pytest.mark.parametrize(("most", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (100, 2)])
def test_a_hit_ends_before_the_first_position_whose_output_is_wanted(most: int, blocks: int) -> None:
    cache = make_cache()
    computed(cache, list(range(10)))
    second = cache.open(1, "")
    assert cache.longest_hit(second, list(range(10)), most) == blocks


def test_the_last_token_is_computed_in_a_copy_of_its_block() -> None:
    cache = make_cache()
    first = computed(cache, list(range(8)))
    second = cache.open(1, "")
    assert cache.attach_prefix(second, cache.longest_hit(second, list(range(8))), 8) == 7
    assert cache.blocks_needed(second, 8, 32) == 1
    assert cache.reserve(second, 7, 8, plan=1, until=None) == 0
    ((source, target),) = copied(cache)
    assert (source, target) == (first.tables[0].slots[1], second.tables[0].slots[1])
    assert second.tables[0].slots[0] == first.tables[0].slots[0]
    assert source != target


def test_the_source_of_a_copy_outlives_the_plan() -> None:
    cache = make_cache()
    first = computed(cache, list(range(8)))
    second = cache.open(1, "")
    cache.attach_prefix(second, cache.longest_hit(second, list(range(8))), 8)
    cache.free(first, until=None)
    assert cache.reserve(second, 7, 8, plan=5, until=None) == 0
    assert cache.pool.num_retiring == 1
    cache.pool.retire(5)
    assert (cache.pool.num_retiring, cache.pool.num_cached) == (0, 1)


def test_a_copy_is_published_where_its_source_was_evicted() -> None:
    cache = make_cache()
    first = computed(cache, list(range(8)))
    second = cache.open(1, "")
    cache.attach_prefix(second, cache.longest_hit(second, list(range(8))), 8)
    cache.reserve(second, 7, 8, plan=1, until=None)
    cache.index.withdraw(first.tables[0].slots[1])
    cache.publish(second, list(range(8)), 8)
    assert cache.index.is_published(second.tables[0].slots[1])
    assert cache.longest_hit(cache.open(2, ""), list(range(8))) == 2


@pytest.mark.parametrize("windows", [(None,), (None, None)])
def test_the_executor_is_told_of_a_copy_in_a_block_it_knows(windows: tuple[int | None, ...]) -> None:
    cache = make_cache(windows=windows, prefix_caching=False)
    first = computed(cache, list(range(6)))
    cache.take_updates(first)
    cache.fork(first, 1, 6)
    assert cache.reserve(first, 6, 7, plan=1, until=None) == 0
    updates = [(update.group, update.first, list(update.blocks)) for update in cache.take_updates(first)]
    assert updates == [(group, 1, first.tables[group].slots[1:]) for group in range(len(windows))]
    assert [target for _, target in copied(cache)] == [table.slots[1] for table in first.tables]


def test_the_executor_is_told_of_a_copy_in_one_group_only() -> None:
    cache = make_cache(windows=(None, None))
    first = computed(cache, list(range(8)))
    second = cache.open(1, "")
    cache.attach_prefix(second, cache.longest_hit(second, list(range(8))), 8)
    cache.free(first, until=None)
    # Its only holder may write to it now.
    cache.index.withdraw(second.tables[0].slots[1])
    cache.take_updates(second)
    assert cache.reserve(second, 7, 8, plan=1, until=None) == 0
    (update,) = cache.take_updates(second)
    assert (update.group, update.first, list(update.blocks)) == (1, 1, second.tables[1].slots[1:])


def test_the_last_holder_of_an_unpublished_block_writes_in_place() -> None:
    cache = make_cache(prefix_caching=False)
    first = computed(cache, list(range(6)))
    second = forked(cache, first, 1, 6)
    assert cache.reserve(first, 6, 7, plan=1, until=None) == 0
    assert len(copied(cache)) == 1
    assert cache.reserve(second, 6, 7, plan=1, until=None) == 0
    assert copied(cache) == []


def test_a_fork_shares_no_more_than_its_own_tokens() -> None:
    cache = make_cache()
    first = computed(cache, list(range(20)))
    second = forked(cache, first, 1, 9)
    assert second.tables[0].slots == first.tables[0].slots[:3]
    assert second.published == 2


def test_salts_and_caches_without_prefix_caching_never_hit() -> None:
    cache = make_cache()
    computed(cache, list(range(8)), salt="one")
    for salt, hit in (("", 0), ("two", 0), ("one", 2)):
        assert cache.longest_hit(cache.open(1, salt), list(range(8))) == hit
    cache = make_cache(prefix_caching=False)
    blocks = computed(cache, list(range(8)))
    assert cache.longest_hit(cache.open(1, ""), list(range(8))) == 0
    cache.free(blocks, until=None)
    assert (cache.pool.num_cached, cache.pool.num_free) == (0, 40)


def test_namespaces_give_different_keys() -> None:
    chains = [KVCache(kv_spec(4), 4, namespace=namespace).open(0, "").chain for namespace in (b"", b"int8")]
    for chain in chains:
        chain.extend([1, 2, 3, 4], 4)
    assert chains[0].key(0) != chains[1].key(0)


def test_blocks_before_the_window_are_released() -> None:
    cache = make_cache(windows=(None, 6), prefix_caching=False)
    blocks = computed(cache, list(range(16)))
    assert cache.pool.num_used == 8
    cache.reserve(blocks, 16, 17, plan=1, until=None)
    # Position 16 sees 11 to 16.
    assert blocks.tables[1].slots[:2] == [RELEASED, RELEASED]
    assert RELEASED not in blocks.tables[0].slots
    assert cache.pool.num_used == 5 + 3


def test_released_blocks_wait_for_outstanding_plans() -> None:
    cache = make_cache(windows=(6,), prefix_caching=False)
    blocks = computed(cache, list(range(16)))
    cache.reserve(blocks, 16, 17, plan=1, until=0)
    assert cache.pool.num_retiring == 2
    cache.pool.retire(0)
    assert cache.pool.num_retiring == 0


def test_a_window_hit_holds_only_what_it_sees() -> None:
    cache = make_cache(windows=(6,))
    computed(cache, list(range(24)))
    second = cache.open(1, "")
    known = [*range(24), 50]
    assert cache.attach_prefix(second, cache.longest_hit(second, known), len(known)) == 24
    assert second.tables[0].slots[:4] == [RELEASED] * 4
    assert RELEASED not in second.tables[0].slots[4:]


def test_groups_agree_on_the_length_of_a_hit() -> None:
    cache = make_cache(windows=(None, 6))
    first = computed(cache, list(range(24)))
    cache.index.withdraw(first.tables[1].slots[4])
    assert cache.longest_hit(cache.open(1, ""), list(range(24))) == 4
    cache.index.withdraw(first.tables[0].slots[2])
    assert cache.longest_hit(cache.open(1, ""), list(range(24))) == 2


def test_groups_ask_again_until_they_agree() -> None:
    cache = make_cache(windows=(6, None))
    first = computed(cache, list(range(24)))
    # All of the window's last six tokens are there, but the other group shortens the hit to where some are not.
    cache.index.withdraw(first.tables[1].slots[4])
    cache.index.withdraw(first.tables[0].slots[2])
    assert cache.longest_hit(cache.open(1, ""), list(range(24))) == 2


@pytest.mark.parametrize("windows", [(6,), (None, 6), (6, None)])
def test_a_fork_needs_what_its_position_sees(windows: tuple[int | None, ...]) -> None:
    cache = make_cache(windows=windows, prefix_caching=False)
    blocks = computed(cache, list(range(16)))
    assert cache.fork(blocks, 1, 16) is not None
    # Position 17 sees 12 to 17, and 16 one token of the block before.
    cache.reserve(blocks, 17, 18, plan=1, until=None)
    assert cache.fork(blocks, 2, 17) is not None
    references = [cache.pool.references(block) for block in range(cache.pool.num_blocks)]
    assert cache.fork(blocks, 3, 16) is None
    assert references == [cache.pool.references(block) for block in range(cache.pool.num_blocks)], "it held something"


def test_blocks_held_with_others_are_not_exclusive() -> None:
    cache = make_cache(windows=(None, 6), prefix_caching=False)
    first = computed(cache, list(range(16)))
    cache.reserve(first, 16, 17, plan=1, until=None)
    assert cache.exclusive_blocks(first) == 5 + 3
    second = forked(cache, first, 1, 14)
    # They share four blocks of one group, and of the other the two that are still held.
    assert cache.exclusive_blocks(first) == 2 and cache.exclusive_blocks(second) == 0
    cache.free(second, until=None)
    assert cache.exclusive_blocks(first) == 5 + 3


def test_a_sequence_that_was_freed_begins_again() -> None:
    cache = make_cache(windows=(None, 6))
    blocks = computed(cache, list(range(16)))
    cache.reserve(blocks, 16, 17, plan=1, until=None)
    cache.take_updates(blocks)
    cache.free(blocks, until=None)
    new = cache.open(1, "")
    for name in ("tables", "room", "published", "shares", "apart"):
        assert getattr(blocks, name) == getattr(new, name), name


def test_rolling_back_gives_back_whole_blocks() -> None:
    cache = make_cache(prefix_caching=False)
    blocks = computed(cache, list(range(10)))
    cache.take_updates(blocks)
    cache.roll_back(blocks, 5, until=None)
    assert len(blocks.tables[0].slots) == 2
    cache.reserve(blocks, 5, 9, plan=1, until=None)
    (update,) = cache.take_updates(blocks)
    assert (update.first, len(update.blocks)) == (2, 1)


def test_pending_prefixes_are_seen_by_others() -> None:
    cache = make_cache()
    first, second = cache.open(0, ""), cache.open(1, "")
    for blocks in (first, second):
        assert cache.longest_hit(blocks, list(range(8))) == 0
    cache.reserve(first, 0, 8, plan=0, until=None)
    cache.announce(first, 0, 8)
    assert cache.next_is_pending(second, 0) and cache.next_is_pending(second, 1)
    assert not cache.next_is_pending(cache.open(2, "other"), 0)
    cache.settle(first)
    assert not cache.next_is_pending(second, 0)


def test_a_block_that_a_later_chunk_fills_is_pending() -> None:
    cache = make_cache()
    first, second = cache.open(0, ""), cache.open(1, "")
    for blocks in (first, second):
        cache.longest_hit(blocks, list(range(8)))
    cache.announce(first, 0, 2)
    assert not cache.next_is_pending(second, 0)
    cache.announce(first, 2, 7)
    assert cache.next_is_pending(second, 0) and not cache.next_is_pending(second, 1)
    cache.free(first, until=None)
    assert not cache.next_is_pending(second, 0), "nobody computes it any more"
