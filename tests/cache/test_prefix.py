"""The prefix index: what is hit is what was published, whatever the hash says."""

import pytest

from penstock.cache.chain import KeyFunction, PrefixChain, keyed_hash, token_bytes
from penstock.cache.groups import RELEASED, Table, TokenGroup
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex
from penstock.core.kv import EVERYTHING, GroupSpec, Visibility


def constant_key(parent: bytes, tokens: bytes) -> bytes:
    return b"same"


def chain_of(
    tokens: list[int], *, namespace: bytes = b"", block_size: int = 2, key_of: KeyFunction | None = None
) -> PrefixChain:
    key_of = key_of or keyed_hash(b"")
    chain = PrefixChain(namespace, key_of(b"", namespace), block_size, key_of)
    chain.extend(tokens, len(tokens))
    return chain


def test_only_full_blocks_have_keys() -> None:
    chain = chain_of([1, 2, 3])
    assert len(chain) == 1
    chain.extend([1, 2, 3, 4, 5], 5)
    assert len(chain) == 2


def test_a_key_depends_on_the_whole_prefix() -> None:
    assert chain_of([1, 2, 3, 4]).key(1) == chain_of([1, 2, 3, 4, 5]).key(1)
    assert chain_of([1, 2, 3, 4]).key(1) != chain_of([2, 2, 3, 4]).key(1)
    assert chain_of([1, 2], namespace=b"a").key(0) != chain_of([1, 2], namespace=b"b").key(0)


def test_the_secret_changes_every_key() -> None:
    keys = {chain_of([1, 2], key_of=keyed_hash(secret)).key(0) for secret in (b"", b"a", b"b")}
    assert len(keys) == 3


def test_token_ids_of_any_size_are_told_apart() -> None:
    assert token_bytes([1, 256]) != token_bytes([256, 1]) != token_bytes([65536 + 256, 1])


def test_lookup_finds_what_was_published() -> None:
    index = PrefixIndex(2)
    index.publish(1, chain_of([1, 2, 3, 4]), 1, 7)
    assert index.lookup(1, chain_of([1, 2, 3, 4]), 1) == 7
    assert index.lookup(0, chain_of([1, 2, 3, 4]), 1) is None, "groups are apart"
    assert index.lookup(1, chain_of([9, 2, 3, 4]), 1) is None
    assert index.is_published(7) and len(index) == 1
    index.withdraw(7)
    assert index.lookup(1, chain_of([1, 2, 3, 4]), 1) is None
    assert not index.is_published(7) and len(index) == 0


def test_the_first_block_published_under_a_key_stays() -> None:
    index = PrefixIndex(1)
    first, second = chain_of([1, 2]), chain_of([1, 2])
    index.publish(0, first, 0, 7)
    index.publish(0, second, 0, 8)
    assert index.lookup(0, chain_of([1, 2]), 0) == 7
    assert not index.is_published(8)
    assert second.node(0) is first.node(0), "whoever comes second adopts the node"


def test_a_block_has_one_key() -> None:
    index = PrefixIndex(1)
    index.publish(0, chain_of([1, 2]), 0, 7)
    index.publish(0, chain_of([3, 4]), 0, 7)
    assert index.lookup(0, chain_of([3, 4]), 0) is None and len(index) == 1
    index.withdraw(7)
    assert index.lookup(0, chain_of([1, 2]), 0) is None


@pytest.mark.parametrize("other", [[5, 2, 3, 4], [1, 5, 3, 4], [1, 2, 5, 4], [1, 2, 3, 5]])
def test_a_colliding_hash_is_a_miss(other: list[int]) -> None:
    index = PrefixIndex(1)
    index.publish(0, chain_of([1, 2, 3, 4], key_of=constant_key), 1, 7)
    assert index.lookup(0, chain_of(other, key_of=constant_key), 1) is None
    assert index.lookup(0, chain_of([1, 2, 3, 4], key_of=constant_key), 1) == 7


def test_a_collision_of_namespaces_is_a_miss() -> None:
    index = PrefixIndex(1)
    index.publish(0, chain_of([1, 2, 3, 4], namespace=b"tenant", key_of=constant_key), 1, 7)
    assert index.lookup(0, chain_of([1, 2, 3, 4], key_of=constant_key), 1) is None


def test_a_child_of_a_colliding_parent_is_a_miss() -> None:
    """The parents' keys are equal and the blocks' tokens are too; only the tokens before them differ."""

    def key_of(parent: bytes, tokens: bytes) -> bytes:
        return keyed_hash(b"")(parent, tokens if tokens not in (token_bytes([1, 2]), token_bytes([3, 4])) else b"")

    index = PrefixIndex(1)
    index.publish(0, chain_of([1, 2], key_of=key_of), 0, 6)
    index.publish(0, chain_of([3, 4, 5, 6], key_of=key_of), 1, 7)
    chain = chain_of([1, 2, 5, 6], key_of=key_of)
    assert index.lookup(0, chain, 0) == 6
    assert index.lookup(0, chain, 1) is None


def test_a_hit_adopts_the_published_nodes() -> None:
    """So that comparing a long prefix takes one step for each block."""
    index = PrefixIndex(1)
    publisher, reader = chain_of([1, 2, 3, 4, 5, 6]), chain_of([1, 2, 3, 4, 5, 6])
    for position in range(3):
        index.publish(0, publisher, position, position)
    for position in range(3):
        assert index.lookup(0, reader, position) == position
        assert reader.node(position) is publisher.node(position)


def test_chains_of_forks_go_their_own_ways() -> None:
    chain = chain_of([1, 2])
    fork = chain.copy()
    chain.extend([1, 2, 3, 4], 4)
    fork.extend([1, 2, 5, 6], 4)
    assert chain.key(0) == fork.key(0) and chain.key(1) != fork.key(1)
    assert fork.key(1) == chain_of([1, 2, 5, 6]).key(1)


def test_pending_keys() -> None:
    index = PrefixIndex(1)
    index.announce(b"a", owner=1)
    index.announce(b"a", owner=2)
    index.announce(b"b", owner=2)
    assert index.is_pending(b"a") and index.is_pending(b"b")
    index.settle(2)
    assert index.is_pending(b"a") and not index.is_pending(b"b"), "the first owner still computes it"
    index.settle(1)
    index.settle(1)
    assert not index.is_pending(b"a")


def group_of(index: PrefixIndex, sees: Visibility = EVERYTHING, block_size: int = 2) -> TokenGroup:
    """A group of one layer."""
    return TokenGroup(0, GroupSpec((0,), sees), block_size, BlockPool(8, index), index)


def published(depths: set[int], blocks: int = 8, block_size: int = 2) -> tuple[PrefixIndex, PrefixChain]:
    """An index that has the blocks of `depths` of one chain of `blocks` blocks."""
    index, chain = PrefixIndex(1), chain_of(list(range(blocks * block_size)), block_size=block_size)
    for depth in depths:
        index.publish(0, chain, depth, depth)
    return index, chain


@pytest.mark.parametrize(
    ("depths", "limit", "hit"),
    [(set(), 8, 0), ({0, 1, 2}, 8, 3), ({0, 1, 3}, 8, 2), ({1, 2}, 8, 0), ({0, 1, 2, 3}, 2, 2), (set(range(8)), 8, 8)],
)
def test_full_attention_hits_an_unbroken_chain(depths: set[int], limit: int, hit: int) -> None:
    index, chain = published(depths)
    assert group_of(index).hit(chain, limit) == hit


@pytest.mark.parametrize(
    ("depths", "limit", "hit"),
    [
        (set(), 8, 0),
        ({4, 5, 6}, 8, 7),
        ({4, 5, 6}, 6, 6),
        ({3, 4, 6}, 8, 5),
        ({6}, 8, 0),
        ({0}, 8, 1),
        ({0, 1}, 8, 2),
        ({0, 5, 7}, 8, 1),
        (set(range(8)), 8, 8),
    ],
)
def test_a_window_hits_where_its_last_blocks_are(depths: set[int], limit: int, hit: int) -> None:
    # The last position of a prefix of whole blocks sees two tokens before it: its own block and the one before.
    index, chain = published(depths)
    assert group_of(index, Visibility(0, 3)).hit(chain, limit) == hit


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_hits_of_windows_equal_their_definition(first: int, window: int, block_size: int) -> None:
    for bits in range(2**6):
        depths = {depth for depth in range(6) if bits >> depth & 1}
        index, chain = published(depths, blocks=6, block_size=block_size)
        expected = max(
            length
            for length in range(7)
            if all(
                position // block_size in depths
                for position in range(length * block_size)
                if position >= length * block_size - window or position < first
            )
        )
        assert group_of(index, Visibility(first, window), block_size).hit(chain, 6) == expected


@pytest.mark.parametrize(
    ("sees", "needed"),
    [
        (EVERYTHING, [[0, 1, 2, 3]] * 6),
        (Visibility(0, 4), [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [1, 2, 3], [2, 3]]),
        (Visibility(1, 4), [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3]]),
    ],
)
def test_what_a_position_needs(sees: Visibility, needed: list[list[int]]) -> None:
    for position, indices in zip((0, 3, 4, 5, 6, 7), needed, strict=True):
        group, table = group_of(PrefixIndex(1), sees), Table()
        group.take(table, 0, 8, group.wants(table, 0, 8, drafts=False), 0, drafts=False)
        group.release_passed(table, position, None)
        assert [index for index, slot in enumerate(table.slots) if slot != RELEASED] == indices
