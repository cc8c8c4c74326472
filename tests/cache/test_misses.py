"""Why the cache has no more of a prefix."""

from penstock.cache.manager import KVCache
from penstock.core.facts import PrefixFound
from support.made_up_model import kv_spec


def cache_of(blocks: int = 16, windows: tuple[int | None, ...] = (None,)) -> KVCache:
    """A cache with blocks of four tokens."""
    return KVCache(kv_spec(4, windows), blocks)


def compute(cache: KVCache, tokens: list[int], salt: str = "", number: int = 0) -> PrefixFound:
    """Look up `tokens`, compute and publish what is missing, let go; what was found."""
    blocks = cache.open(number, salt)
    hit = cache.longest_hit(blocks, tokens)
    cached = cache.attach_prefix(blocks, hit, len(tokens))
    found = cache.explain_hit(blocks, tokens, len(tokens), cached)
    assert cache.reserve(blocks, cached, len(tokens), plan=0, until=None) == 0
    cache.publish(blocks, tokens, len(tokens))
    cache.free(blocks, until=None)
    cache.pool.retire(0)
    return found


def test_what_nobody_has_sent_is_unseen() -> None:
    cache = cache_of()
    assert compute(cache, [1, 2, 3, 4, 5]) == PrefixFound(4, 0, "unseen")
    assert compute(cache, [9, 2, 3, 4, 5]) == PrefixFound(4, 0, "unseen")


def test_the_first_token_that_differs_is_named() -> None:
    cache = cache_of()
    compute(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert compute(cache, [1, 2, 3, 9, 5, 6]) == PrefixFound(4, 0, "different", 3, 4)
    assert compute(cache, [1, 2, 3, 4, 7, 7, 7, 7, 7]) == PrefixFound(8, 4, "different", 4, 5)


def test_of_several_continuations_the_nearest_counts() -> None:
    cache = cache_of()
    for last in ([1, 2, 3, 3, 0], [1, 2, 2, 2, 0], [1, 1, 1, 1, 0]):
        compute(cache, last)
    assert compute(cache, [1, 2, 3, 9, 0]) == PrefixFound(4, 0, "different", 3, 3)


def test_what_was_evicted_is_known_and_for_how_long() -> None:
    cache = cache_of(4)
    cache.pool.tick(10.0)
    compute(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    cache.pool.tick(12.0)
    compute(cache, list(range(20, 36)))
    cache.pool.tick(15.0)
    assert compute(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == PrefixFound(8, 0, "evicted", evicted_seconds=3.0)


def test_what_only_another_tenant_has_is_not_shown() -> None:
    cache = cache_of()
    compute(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9], salt="one")
    assert compute(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9], salt="two") == PrefixFound(8, 0, "other_tenant")
    # What differs is told of the tenant's own blocks only.
    assert compute(cache, [1, 2, 3, 4, 5, 6, 0, 0, 9], salt="three") == PrefixFound(8, 0, "other_tenant")
    assert compute(cache, [1, 2, 0, 0, 5], salt="two") == PrefixFound(4, 0, "different", 2, 3)
    assert compute(cache, [1, 2, 0, 7, 5], salt="four") == PrefixFound(4, 0, "unseen")


def test_layers_with_a_window_lose_their_blocks_first() -> None:
    cache = cache_of(40, (None, 4))
    tokens = list(range(1, 22))
    compute(cache, tokens)
    blocks = cache.open(1, "")
    assert cache.longest_hit(blocks, tokens) == 5
    # The window's block at the end of what is in common has been given back.
    blocks = cache.open(2, "")
    hit = cache.longest_hit(blocks, tokens)
    for index in range(hit):
        block = cache.index.lookup(1, blocks.chain, index)
        if block is not None:
            cache.index.withdraw(block)
    found = compute(cache, tokens, number=3)
    assert (found.found, found.missing) == (0, "evicted")
