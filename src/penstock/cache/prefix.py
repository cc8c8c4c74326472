"""The prefix index: which published block holds the KV of which tokens after which prefix.

A block's key is a keyed BLAKE2b hash of its parent's key and its tokens, so equal keys mean equal whole prefixes. The
first parent is derived from a namespace: everything that changes KV (weights, quantization, adapter, KV format, rotary
configuration) and the tenant's salt. A hit compares parent and tokens besides, so that a colliding hash is a miss.
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


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    parent: bytes
    tokens: bytes


class PrefixChain:
    """The keys of one sequence's full blocks, extended as tokens become known."""

    __slots__ = ("_key_of", "block_size", "keys", "tokens")

    def __init__(self, root: bytes, block_size: int, key_of: KeyFunction) -> None:
        self.block_size = block_size
        self._key_of = key_of
        self.keys = [root]
        self.tokens: list[bytes] = []

    def extend(self, known: list[int]) -> None:
        """Add keys for the blocks that `known`, the sequence's tokens so far, has filled."""
        size = self.block_size
        for index in range(len(self.tokens), len(known) // size):
            content = token_bytes(known[index * size : (index + 1) * size])
            self.tokens.append(content)
            self.keys.append(self._key_of(self.keys[index], content))

    def __len__(self) -> int:
        return len(self.tokens)

    def key(self, index: int) -> bytes:
        """Key of the block at `index`."""
        return self.keys[index + 1]

    def copy(self) -> "PrefixChain":
        """A chain for a fork, which may go on differently."""
        other = PrefixChain(self.keys[0], self.block_size, self._key_of)
        other.keys, other.tokens = self.keys.copy(), self.tokens.copy()
        return other


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
        if entry is None or entry.tokens != chain.tokens[index] or entry.parent != chain.keys[index]:
            return None
        return entry.block

    def publish(self, group: int, chain: PrefixChain, index: int, block: int) -> None:
        """Offer `block` under its key; the first block published under a key stays."""
        key = chain.key(index)
        if key not in self._entries[group] and block not in self._published:
            self._entries[group][key] = _Entry(block, chain.keys[index], chain.tokens[index])
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
