"""Keys of a prompt's blocks: each stands for all tokens up to its block's end.

They are a router's own. Replicas name their blocks by hashes of their own, and say which tokens each has; so a router
needs no secret of theirs, and replicas of several programs meet in one index.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

_DIGEST = 8


class Keys(NamedTuple):
    """Those of a prompt's full blocks, in order.

    Attributes:
        tokens: of each block, or about that number where only its text is known.
        places: of the replicas that name blocks so, and so have no others; None: those that no other keys are for.
    """

    keys: Sequence[int]
    tokens: int
    places: frozenset[int] | None = None


NO_KEYS = Keys((), 0)


def following(parent: int, tokens: bytes) -> int:
    """The key of a block behind that of key `parent`, from four bytes a token: 64 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(parent.to_bytes(_DIGEST) + tokens, digest_size=_DIGEST).digest())


def keys_of(tokens: Sequence[int], block: int, root: int) -> Keys:
    """Of the full blocks of `block` tokens each, behind a root that sets apart what must not share."""
    content, size = array("I", tokens).tobytes(), 4 * block
    found, parent = [], root
    for start in range(0, len(content) - size + 1, size):
        parent = following(parent, content[start : start + size])
        found.append(parent)
    return Keys(found, block)


def namespace(*parts: bytes) -> int:
    """A root for what is named so, in this order: a model, an adapter, a salt."""
    content = b"".join(len(part).to_bytes(4) + part for part in parts)
    return int.from_bytes(hashlib.blake2b(content, digest_size=_DIGEST).digest())


def token_root(reads: str = "", salt: bytes = b"") -> int:
    """What sets prompts apart whose tokens are known: how they are read, and the salt that they were given."""
    return namespace(b"tokens", reads.encode(), salt)
