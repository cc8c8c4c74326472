"""The prefix index: which published block holds the KV of which tokens after which prefix.

A block's key is a keyed BLAKE2b hash of its parent's key and its tokens, so equal keys mean equal whole prefixes. The
first parent is derived from a namespace: everything that changes KV (weights, quantization, adapter, KV format, rotary
configuration) and the tenant's salt. A hit compares the tokens of the whole prefix besides, so that a colliding hash is
a miss; since sequences adopt the nodes they hit, that ends after one step for all but the first block.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

KeyFunction = Callable[[bytes, bytes], bytes]


def keyed_hash(secret: bytes) -> KeyFunction:
    """A 16-byte hash of (parent key, tokens) under `secret` (at most 64 bytes), unpredictable to clients."""

    def key_of(parent: bytes, tokens: bytes) -> bytes:
        return hashlib.blake2b(parent + tokens, digest_size=16, key=secret).digest()

    return key_of


def token_bytes(tokens: Sequence[int]) -> bytes:
    """The tokens of a block as bytes, four per id."""
    return array("I", tokens).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class PrefixNode:
    """A block of one prefix: its key, its tokens, and the block before it (None for the root, the namespace)."""

    key: bytes
    tokens: bytes
    parent: "PrefixNode | None" = None


def same_prefix(one: PrefixNode | None, other: PrefixNode | None) -> bool:
    """Whether two nodes stand for the same tokens from the root on, whatever their keys; stops where they join."""
    while one is not other:
        if one is None or other is None or one.tokens != other.tokens:
            return False
        one, other = one.parent, other.parent
    return True


class PrefixChain:
    """The nodes of one sequence's full blocks, extended as tokens become known.

    Args:
        namespace: what the sequence shares blocks within, beside what all sequences of a cache have in common.
        root: its key.
        block_size: tokens in a block.
        key_of: key of a block from its parent's key and its tokens.
    """

    __slots__ = ("_key_of", "block_size", "nodes")

    def __init__(self, namespace: bytes, root: bytes, block_size: int, key_of: KeyFunction) -> None:
        self.block_size = block_size
        self._key_of = key_of
        self.nodes = [PrefixNode(root, namespace)]

    def extend(self, known: list[int]) -> None:
        """Add keys for the blocks that `known`, the sequence's tokens so far, has filled."""
        size = self.block_size
        for index in range(len(self), len(known) // size):
            content = token_bytes(known[index * size : (index + 1) * size])
            parent = self.nodes[index]
            self.nodes.append(PrefixNode(self._key_of(parent.key, content), content, parent))

    def __len__(self) -> int:
        return len(self.nodes) - 1

    def node(self, index: int) -> PrefixNode:
        """The block at `index`."""
        return self.nodes[index + 1]

    def adopt(self, index: int, node: PrefixNode) -> None:
        """Take `node`, which stands for the same prefix, so that later comparisons end where it joins."""
        self.nodes[index + 1] = node

    def key(self, index: int) -> bytes:
        """Key of the block at `index`."""
        return self.nodes[index + 1].key

    def copy(self) -> "PrefixChain":
        """A chain for a fork, which may go on differently."""
        root = self.nodes[0]
        other = PrefixChain(root.tokens, root.key, self.block_size, self._key_of)
        other.nodes = self.nodes.copy()
        return other


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    node: PrefixNode


class PrefixIndex:
    """Published blocks of all groups, and the keys whose computation is under way."""

    def __init__(self, num_groups: int) -> None:
        self._entries: list[dict[bytes, _Entry]] = [{} for _ in range(num_groups)]
        self._published: dict[int, tuple[int, bytes]] = {}
        self._pending: dict[bytes, int] = {}
        self._announced: dict[int, list[bytes]] = {}

    def lookup(self, group: int, chain: PrefixChain, index: int) -> int | None:
        """The block that holds the KV of `chain`'s block `index` in `group`; None if it is not published."""
        entry = self._entries[group].get(chain.key(index))
        if entry is None or not self._adopt(chain, index, entry):
            return None
        return entry.block

    def _adopt(self, chain: PrefixChain, index: int, entry: _Entry) -> bool:
        """Whether `entry` is of the chain's own prefix; the chain then takes its node."""
        own = chain.node(index)
        # The chain's block before it may have adopted a node since this one was made.
        if own is not entry.node and not (
            own.tokens == entry.node.tokens and same_prefix(chain.nodes[index], entry.node.parent)
        ):
            return False
        chain.adopt(index, entry.node)
        return True

    def publish(self, group: int, chain: PrefixChain, index: int, block: int) -> None:
        """Offer `block` under its key; the first block published under a key stays."""
        key = chain.key(index)
        entry = self._entries[group].get(key)
        if entry is not None:
            self._adopt(chain, index, entry)
        elif block not in self._published:
            self._entries[group][key] = _Entry(block, chain.node(index))
            self._published[block] = (group, key)

    def withdraw(self, block: int) -> None:
        """Forget `block`, whose content is about to be lost."""
        group, key = self._published.pop(block)
        del self._entries[group][key]

    def is_published(self, block: int) -> bool:
        """Whether the content of `block` may be hit."""
        return block in self._published

    def announce(self, key: bytes, owner: int) -> None:
        """Note that sequence `owner` computes the block of `key` in an outstanding plan."""
        if self._pending.setdefault(key, owner) == owner:
            self._announced.setdefault(owner, []).append(key)

    def is_pending(self, key: bytes) -> bool:
        """Whether the block of `key` is being computed."""
        return key in self._pending

    def settle(self, owner: int) -> None:
        """Drop all announcements of `owner`: its plan has committed, or it has gone."""
        for key in self._announced.pop(owner, ()):
            self._pending.pop(key, None)

    def __len__(self) -> int:
        return len(self._published)
