"""Slots of ranks' pools, as one process has them: taken from all, and given to all."""

import random

import pytest

from penstock.core.kv import KVSpec, LayerKV, build_kv_spec
from penstock.core.shares import head_shares
from penstock.parallel.leader import LeadingStorage, Telling
from penstock.parallel.messages import Clear, Put, ToRank
from penstock.parallel.slots import LeadingSlots, RankSlots
from penstock.runtime.storage import KVStorage
from support.ranks import shared_ranks, together

BLOCKS = 8


def geometry(heads: int, size: int, kept: str) -> tuple[KVSpec, list[KVSpec]]:
    """Of one process, and of each rank."""
    whole = build_kv_spec([LayerKV(heads, 64)] * 3, "bfloat16", 16, kept)
    dealt = [share.kv.count for share in head_shares(4 * heads, heads, size)]
    return whole, [build_kv_spec([LayerKV(count, 64)] * 3, "bfloat16", 16, kept) for count in dealt]


def filled(whole: KVSpec, luck: random.Random) -> bytes:
    """A slot of one process with anything in its planes."""
    slot = bytearray(whole.slot_bytes(0))
    for piece in (each for pieces in whole.pieces for each in pieces):
        start, size = piece.part * whole.block_bytes + piece.offset, piece.plane.slot_bytes(16)
        slot[start : start + size] = luck.randbytes(size)
    return bytes(slot)


@pytest.mark.parametrize(("heads", "size", "kept"), [(4, 2, "auto"), (3, 2, "int8"), (1, 3, "auto"), (8, 3, "int4")])
def test_what_was_put_is_what_is_taken(heads: int, size: int, kept: str) -> None:
    whole, specs = geometry(heads, size, kept)
    luck = random.Random(size)
    slots = [filled(whole, luck) for _ in range(3)]
    with shared_ranks(size) as ranks:
        pools = [KVStorage(spec, BLOCKS) for spec in specs]
        parts = [RankSlots(pool, ranks[rank], rank, whole, specs) for rank, pool in enumerate(pools)]
        places = [[1 + each] for each in range(3)]
        for part in parts:
            for blocks, slot in zip(places, slots, strict=True):
                part.put(blocks, slot)
        for blocks, slot in zip(places, slots, strict=True):
            met = together(ranks, lambda rank, blocks=blocks: parts[rank].meet(blocks))
            assert bytes(parts[0].joined(met[0])) == slot


def test_what_comes_is_put_behind_what_was_asked_for_before() -> None:
    """Blocks are cleared, and then filled, in each rank: with the step that is begun next."""
    whole, specs = geometry(2, 2, "auto")
    slot, told = filled(whole, random.Random(1)), list[ToRank]()
    with shared_ranks(2) as ranks:
        pool = KVStorage(specs[0], BLOCKS)
        tell = Telling(lambda _content: None, lambda message: told.append(message) or b"", lambda: None)
        storage = LeadingStorage(pool, tell)
        part = RankSlots(pool, ranks[0], 0, whole, specs)
        slots = LeadingSlots(part, storage, tell)
        storage.clear_blocks([3])
        given = bytearray(slot)
        slots.put_slots([([3], given)])
        given[:] = bytes(len(given))
        for change in storage.postponed():
            change()
    assert told == [Clear([3]), Put([3], slot)]
    found = bytearray()
    pool.copied([3], found.extend)
    first = whole.pieces[0][0]
    half = first.plane.slot_bytes(16) // 2
    assert found[:half] == slot[:half] and any(found)


def test_what_is_taken_has_what_was_put_before_in_all_ranks() -> None:
    """Also where no step has begun between the two."""
    whole, specs = geometry(4, 2, "auto")
    slot, got = filled(whole, random.Random(3)), bytearray()
    with shared_ranks(2) as ranks:
        pools = [KVStorage(spec, BLOCKS) for spec in specs]
        parts = [RankSlots(pool, ranks[rank], rank, whole, specs) for rank, pool in enumerate(pools)]
        tell = Telling(lambda _content: None, lambda _message: b"", lambda: None)
        leading = LeadingSlots(parts[0], LeadingStorage(pools[0], tell), tell)

        def work(rank: int) -> None:
            if rank == 0:
                leading.put_slots([([3], slot)])
                leading.copied([3], got.extend)
            else:
                parts[1].put([3], slot)
                parts[1].meet([3])

        together(ranks, work)
    assert bytes(got) == slot
