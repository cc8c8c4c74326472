"""What is not as it was sealed is not opened: spoiled, cut off, another slot's, or another's altogether."""

import random

import pytest
from cryptography.exceptions import InvalidTag

from penstock.runtime.sealing import Sealing
from penstock.runtime.tenant_keys import TenantKeys

SLOT = random.Random(0).randbytes(300)
NAME = (1, bytes(range(32)))


@pytest.fixture
def sealing() -> Sealing:
    return Sealing(b"s" * 16)


def test_what_was_sealed_is_opened_and_not_to_be_read_before(sealing: Sealing) -> None:
    sealed = sealing.seal(NAME, memoryview(bytearray(SLOT)))
    assert len(sealed) == Sealing.beside + len(SLOT) and SLOT[:32] not in sealed
    assert Sealing(b"s" * 16).opened(NAME, len(SLOT), sealed) == SLOT
    assert sealing.seal(NAME, SLOT) != sealed, "no two are encrypted alike"


def test_each_flipped_byte_is_seen(sealing: Sealing) -> None:
    good, luck = sealing.seal(NAME, SLOT), random.Random(1)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << luck.randrange(8)
        assert sealing.opened(NAME, len(SLOT), bytes(bad)) is None, place


@pytest.mark.parametrize("length", [0, 1, 59, 60, 72, 73, Sealing.beside, Sealing.beside + len(SLOT) - 1])
def test_what_was_cut_off_is_not_opened(sealing: Sealing, length: int) -> None:
    assert sealing.opened(NAME, len(SLOT), sealing.seal(NAME, SLOT)[:length]) is None


def test_what_is_longer_or_of_another_size_is_not_opened(sealing: Sealing) -> None:
    sealed = sealing.seal(NAME, SLOT)
    for size, content in ((len(SLOT) - 1, sealed), (len(SLOT) + 1, sealed), (len(SLOT), sealed + b"x")):
        assert sealing.opened(NAME, size, content) is None


def test_what_is_of_another_slot_or_of_others_is_not_opened(sealing: Sealing) -> None:
    """Nobody can make up a slot without the secret, nor pass one off as another."""
    sealed = sealing.seal(NAME, SLOT)
    assert Sealing(b"another secret 1").opened(NAME, len(SLOT), sealed) is None
    for name in ((0, NAME[1]), (1, NAME[1][:16] + b"x" * 16), (1, b"x" * 16 + NAME[1][16:])):
        assert sealing.opened(name, len(SLOT), sealed) is None


def test_a_tenants_key_opens_nothing_of_anothers(sealing: Sealing) -> None:
    sealed, keys = sealing.seal(NAME, SLOT), TenantKeys(b"s" * 16)
    head, nonce, content = sealed[:60], sealed[60:72], sealed[72:]
    assert keys.cipher(NAME[1][:16]).decrypt(nonce, content, head) == SLOT
    for tag in (b"x" * 16, bytes(16), b"s" * 16):
        with pytest.raises(InvalidTag):
            keys.cipher(tag).decrypt(nonce, content, head)
    # Nor where the head says that it is the other's.
    theirs = (1, b"x" * 16 + NAME[1][16:])
    assert sealing.opened(theirs, len(SLOT), sealed[:28] + theirs[1] + sealed[60:]) is None
