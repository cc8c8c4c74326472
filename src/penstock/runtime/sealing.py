"""What a store is given of a slot: encrypted, and authenticated together with what it is of (AES-GCM, NIST SP 800-38D).

Whatever is not as it was written, is of another slot, or was written by somebody without the secret, is not opened. So
a store may fail, be spoiled or lie, and costs no more than a miss.
"""

import os
import struct

from cryptography.exceptions import InvalidTag

from penstock.cache.shelf_room import Name, tag_in
from penstock.runtime.tenant_keys import TenantKeys

Bytes = bytes | bytearray | memoryview

MAGIC = b"penstock slot 1\n"
# The magic, group, bytes of the slot, and the tenant's tag with the prefix's key.
_HEAD = struct.Struct("<16sIQ32s")
_NONCE_BYTES, _TAG_BYTES = 12, 16
_SEALED_AT = _HEAD.size + _NONCE_BYTES


class Sealing:
    """Seals slots, and opens what was sealed. May be used on several threads.

    Attributes:
        beside: bytes of what is sealed beside the slot.
    """

    beside = _SEALED_AT + _TAG_BYTES

    def __init__(self, secret: bytes) -> None:
        """`secret` has 16 bytes."""
        self._keys = TenantKeys(secret)

    def seal(self, name: Name, slot: Bytes, into: bytearray) -> None:
        """Put a slot, encrypted, into a copy that is `beside` bytes longer; the slot may change afterwards."""
        content = memoryview(into)
        head, nonce = _head(name, len(content) - self.beside), os.urandom(_NONCE_BYTES)
        content[:_SEALED_AT] = head + nonce
        self._keys.cipher(tag_in(name)).encrypt_into(nonce, slot, head, content[_SEALED_AT:])

    def open(self, name: Name, sealed: Bytes, into: bytearray) -> bool:
        """Put what was sealed into a copy as long as the slot; False where that is not what was sealed."""
        content, head = memoryview(sealed), _head(name, len(into))
        if len(content) != self.beside + len(into) or content[: _HEAD.size] != head:
            return False
        nonce = content[_HEAD.size : _SEALED_AT]
        try:
            self._keys.cipher(tag_in(name)).decrypt_into(nonce, content[_SEALED_AT:], head, into)
        except InvalidTag:
            return False
        return True


def _head(name: Name, size: int) -> bytes:
    group, key = name
    return _HEAD.pack(MAGIC, group, size, key)
