"""What a store is given of a slot: encrypted, and authenticated together with what it is of (AES-GCM, NIST SP 800-38D).

Whatever is not as it was written, is of another slot, or was written by somebody without the secret, is not opened. So
a store may fail, be spoiled or lie, and costs no more than a miss.
"""

import os
import struct

from cryptography.exceptions import InvalidTag

from penstock.cache.shelf_room import Name, tag_in
from penstock.runtime.tenant_keys import TenantKeys

MAGIC = b"penstock slot 1\n"
# The magic, group, bytes of the slot, and the tenant's tag with the prefix's key.
_HEAD = struct.Struct("<16sIQ32s")
_NONCE_BYTES, _TAG_BYTES = 12, 16


class Sealing:
    """Seals slots, and opens what was sealed. May be used on several threads.

    Attributes:
        beside: bytes of what is sealed beside the slot.
    """

    beside = _HEAD.size + _NONCE_BYTES + _TAG_BYTES

    def __init__(self, secret: bytes) -> None:
        """`secret` has 16 bytes."""
        self._keys = TenantKeys(secret)

    def seal(self, name: Name, slot: bytes | memoryview) -> bytes:
        """A copy of a slot, encrypted; the slot may change afterwards."""
        head, nonce = _head(name, len(slot)), os.urandom(_NONCE_BYTES)
        return b"".join((head, nonce, self._keys.cipher(tag_in(name)).encrypt(nonce, slot, head)))

    def opened(self, name: Name, size: int, sealed: bytes) -> bytes | None:
        """The slot of `size` bytes; None where that is not what was sealed."""
        content, head = memoryview(sealed), _head(name, size)
        if len(content) != self.beside + size or content[: _HEAD.size] != head:
            return None
        nonce = content[_HEAD.size :][:_NONCE_BYTES]
        try:
            return self._keys.cipher(tag_in(name)).decrypt(nonce, content[_HEAD.size + _NONCE_BYTES :], head)
        except InvalidTag:
            return None


def _head(name: Name, size: int) -> bytes:
    group, key = name
    return _HEAD.pack(MAGIC, group, size, key)
