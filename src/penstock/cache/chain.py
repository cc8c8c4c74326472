"""Chains of prefixes: the keys of a sequence's blocks, each from the tokens in it and all before it.

A block's key is a keyed BLAKE2b hash of its parent's key and its tokens, so equal keys mean equal whole prefixes. The
first parent is derived from a namespace: everything that changes KV (weights, quantization, adapter, KV format, rotary
configuration) and the tenant's salt.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

KeyFunction = Callable[[bytes, bytes], bytes]


def keyed_hash(secret: bytes) -> KeyFunction:
    """A 16-byte hash of (parent key, tokens) under `secret` (at most 64 bytes), unpredictable to clients."""

    def key_of(parent: bytes, tokens: bytes) -> bytes:
        return hashlib.blake2b(parent + tokens, digest_size=16, key=secret).digest()

    return key_of


_OF_TENANTS = b"tenant"


class Owner(NamedTuple):
    """The tenant for whom blocks are computed.

    Attributes:
        tag: a keyed hash of its name, 16 bytes.
        weight: how much of what is shared out it has beside others.
    """

    tag: bytes
    weight: float = 1.0


def tag_of(tenant: str, key_of: KeyFunction) -> bytes:
    """What stands for a tenant where its name is not to be read."""
    return key_of(_OF_TENANTS, tenant.encode())


NOBODY = Owner(bytes(16))


def token_bytes(tokens: Sequence[int]) -> bytes:
    """The tokens of a block as bytes, four per id."""
    return array("I", tokens).tobytes()


def token_at(tokens: bytes, place: int) -> int:
    """The token at a place of a block's bytes."""
    return array("I", tokens[4 * place : 4 * place + 4])[0]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixNode:
    """A block of one prefix: its key, its tokens, and the block before it (None for the root, the namespace).

    `content` is the same for the same tokens in every namespace. It is a hash that can collide, for diagnosis only.
    """

    key: bytes
    tokens: bytes
    parent: "PrefixNode | None" = None
    content: int = 0


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
        owner: whose the sequence is.
    """

    __slots__ = ("_key_of", "block_size", "nodes", "owner")

    def __init__(
        self, namespace: bytes, root: bytes, block_size: int, key_of: KeyFunction, owner: Owner = NOBODY
    ) -> None:
        self.block_size = block_size
        self.owner = owner
        self._key_of = key_of
        self.nodes = [PrefixNode(root, namespace)]

    def extend(self, known: list[int], tokens: int) -> None:
        """Add keys for the blocks that the first `tokens` tokens of `known`, the sequence's so far, have filled."""
        size = self.block_size
        for index in range(len(self), tokens // size):
            content = token_bytes(known[index * size : (index + 1) * size])
            parent = self.nodes[index]
            key = self._key_of(parent.key, content)
            self.nodes.append(PrefixNode(key, content, parent, hash((parent.content, content))))

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

    def kept_key(self, index: int) -> bytes:
        """By which shelves have the block at `index`: none of them gives a tenant what another one has there."""
        return self.owner.tag + self.key(index)

    def under(self, content: bytes) -> "PrefixChain":
        """An empty chain of what depends on `content` too, beside all that this chain stands for."""
        other, parent = self.copy(), self.nodes[-1]
        other.nodes = [PrefixNode(self._key_of(parent.key, content), content, parent)]
        return other

    def copy(self) -> "PrefixChain":
        """A chain for a fork, which may go on differently."""
        root = self.nodes[0]
        other = PrefixChain(root.tokens, root.key, self.block_size, self._key_of, self.owner)
        other.nodes = self.nodes.copy()
        return other
