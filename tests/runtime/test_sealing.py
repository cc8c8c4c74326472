"""What is not as it was sealed is not opened: spoiled, cut off, another slot's, or another's altogether."""

import random

import pytest
from cryptography.exceptions import InvalidTag

from penstock.cache.shelf_room import Name
from penstock.runtime.sealing import Sealing
from penstock.runtime.tenant_keys import TenantKeys

SLOT = random.Random(0).randbytes(300)
NAME = (1, bytes(range(32)))


@pytest.fixture
def sealing() -> Sealing:
    return Sealing(b"s" * 16)


def seal(sealing: Sealing, slot: bytes | memoryview = SLOT) -> bytes:
    into = bytearray(Sealing.beside + len(slot))
    sealing.seal(NAME, slot, into)
    return bytes(into)


def opened(sealing: Sealing, name: Name, size: int, sealed: bytes) -> bytes | None:
    into = bytearray(size)
    return bytes(into) if sealing.open(name, sealed, into) else None


def test_what_was_sealed_is_opened_and_not_to_be_read_before(sealing: Sealing) -> None:
    sealed = seal(sealing, memoryview(bytearray(SLOT)))
    assert len(sealed) == Sealing.beside + len(SLOT) and SLOT[:32] not in sealed
    assert opened(Sealing(b"s" * 16), NAME, len(SLOT), sealed) == SLOT
    assert seal(sealing) != sealed, "no two are encrypted alike"


def test_each_flipped_byte_is_seen(sealing: Sealing) -> None:
    good, luck = seal(sealing), random.Random(1)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << luck.randrange(8)
        assert opened(sealing, NAME, len(SLOT), bytes(bad)) is None, place


@pytest.mark.parametrize("length", [0, 1, 59, 60, 72, 73, Sealing.beside, Sealing.beside + len(SLOT) - 1])
def test_what_was_cut_off_is_not_opened(sealing: Sealing, length: int) -> None:
    assert opened(sealing, NAME, len(SLOT), seal(sealing)[:length]) is None


def test_what_is_longer_or_of_another_size_is_not_opened(sealing: Sealing) -> None:
    sealed = seal(sealing)
    for size, content in ((len(SLOT) - 1, sealed), (len(SLOT) + 1, sealed), (len(SLOT), sealed + b"x")):
        assert opened(sealing, NAME, size, content) is None


def test_what_is_of_another_slot_or_of_others_is_not_opened(sealing: Sealing) -> None:
    """Nobody can make up a slot without the secret, nor pass one off as another."""
    sealed = seal(sealing)
    assert opened(Sealing(b"another secret 1"), NAME, len(SLOT), sealed) is None
    for name in ((0, NAME[1]), (1, NAME[1][:16] + b"x" * 16), (1, b"x" * 16 + NAME[1][16:])):
        assert opened(sealing, name, len(SLOT), sealed) is None


def test_a_tenants_key_opens_nothing_of_anothers(sealing: Sealing) -> None:
    sealed, keys = seal(sealing), TenantKeys(b"s" * 16)
    head, nonce, content = sealed[:60], sealed[60:72], sealed[72:]
    assert keys.cipher(NAME[1][:16]).decrypt(nonce, content, head) == SLOT
    for tag in (b"x" * 16, bytes(16), b"s" * 16):
        with pytest.raises(InvalidTag):
            keys.cipher(tag).decrypt(nonce, content, head)
    # Nor where the head says that it is the other's.
    theirs = (1, b"x" * 16 + NAME[1][16:])
    assert opened(sealing, theirs, len(SLOT), sealed[:28] + theirs[1] + sealed[60:]) is None
