"""Which bytes of a slot each of several ranks has: a slot outside the pool is as one process would have it.

In a plane of a block, what belongs to a head of keys and values is one piece of memory (`native/src/kv.hpp`), and a
rank has some heads (`core/shares.py`). So a rank's part of a slot is a number of runs of bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.kv import KVSpec, Piece
from penstock.core.shares import shares


class Run(NamedTuple):
    """`size` bytes, which begin at `own` of the slot as a rank has it, and at `whole` as one process has it."""

    own: int
    whole: int
    size: int


def slices(whole: KVSpec, specs: Sequence[KVSpec], group: int = 0) -> tuple[tuple[Run, ...], ...]:
    """The runs of each of the ranks, whose pools have these geometries, of a group's slots.

    Several ranks may have the same heads. Raises ValueError where slots are not cut by heads.
    """
    return tuple(_runs(whole, own, rank, len(specs), group) for rank, own in enumerate(specs))


def _runs(whole: KVSpec, own: KVSpec, rank: int, size: int, group: int) -> tuple[Run, ...]:
    runs = []
    for layer in whole.groups[group].layers:
        for all_heads, some in zip(whole.pieces[layer], own.pieces[layer], strict=True):
            if all_heads.plane.granularity != "token":
                raise ValueError("Records of sequences are not cut by heads.")
            heads, held = all_heads.plane.shape[0], some.plane.shape[0]
            bytes_of_head = all_heads.plane.slot_bytes(whole.block_size) // heads
            first = _first_head(heads, held, rank, size)
            start = _start(whole, all_heads) + first * bytes_of_head
            runs.append(Run(_start(own, some), start, held * bytes_of_head))
    return tuple(runs)


def _start(spec: KVSpec, piece: Piece) -> int:
    """Where a plane begins in a slot, whose blocks are one behind the other."""
    return piece.part * spec.block_bytes + piece.offset


def _first_head(heads: int, held: int, rank: int, size: int) -> int:
    """The first of the heads that a rank has, as `head_shares` deals them out; of latent attention, each has all."""
    if held == heads:
        return 0
    if heads >= size:
        share = shares(heads, size)[rank]
        first, count = share.first, share.count
    else:
        # Several ranks have the same one.
        first, count = (
            next(head for head, ranks in enumerate(shares(size, heads)) if rank in range(size)[ranks.span]),
            1,
        )
    if count != held:
        raise ValueError(f"Rank {rank} of {size} has {held} of {heads} heads, which are not dealt out in order.")
    return first
