"""The keys with which slots are encrypted: each tenant has one of its own, so that it opens nothing of another's."""

from functools import lru_cache

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

# Bytes of a key: AES-128.
_KEY_BYTES = 16
_FOR = b"penstock slots of tenant "
# Of tenants, those whose keys are not made again.
_MOST_KNOWN = 1024


class TenantKeys:
    """Keys by tenants' tags, from one secret by HKDF (RFC 5869, section 2.3). May be used on several threads."""

    def __init__(self, secret: bytes) -> None:
        """`secret` has 16 bytes, each as likely as any."""
        self._secret = secret
        self.cipher = lru_cache(maxsize=_MOST_KNOWN)(self._cipher)

    def _cipher(self, tag: bytes) -> AESGCM:
        return AESGCM(HKDFExpand(SHA256(), _KEY_BYTES, _FOR + tag).derive(self._secret))
