"""What changes in a prefix cache, told in the order in which it does."""

import msgspec


class Stored(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A block of the cache can be hit from now on.

    Attributes:
        key: of the block, with all before it.
        parent: the key of the block before; None for a prompt's first.
        tokens: four bytes an id, as the machine orders them.
        salt: of a first block; prompts with another one are others.
    """

    key: bytes
    parent: bytes | None
    tokens: bytes
    salt: bytes = b""


class Removed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A block can be hit no longer."""

    key: bytes


class Cleared(msgspec.Struct, frozen=True, tag=True, gc=False):
    """No block can be hit any longer."""


KVEvent = Stored | Removed | Cleared
