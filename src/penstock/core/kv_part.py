"""The cache's geometry for a part of a model's layers, whose blocks have the ids that those of the whole have."""

from collections.abc import Collection

from msgspec.structs import replace

from penstock.core.kv import GroupSpec, KVSpec, Piece
from penstock.core.layout import ALIGNMENT


def part_of(spec: KVSpec, layers: Collection[int]) -> KVSpec:
    """The same groups, with the same blocks to a slot, where only these layers store something.

    Each layer's planes stay together. Those of a group are dealt out anew over the blocks of its slots, the largest
    first and each to the emptiest, since a block has to be as large as the fullest.

    Raises ValueError where a group has records of whole sequences.
    """
    if any(group.record_interval is not None for group in spec.groups):
        raise ValueError("Records of sequences are cut for all layers together.")
    groups: list[GroupSpec] = []
    pieces: list[tuple[Piece, ...]] = [()] * len(spec.pieces)
    fullest = ALIGNMENT
    for index, group in enumerate(spec.groups):
        loads = [0] * group.width
        own = [layer for layer in group.layers if layer in layers]
        for layer in sorted(own, key=lambda layer: -_bytes_of(spec, layer)):
            part, first = loads.index(min(loads)), spec.pieces[layer][0].offset
            pieces[layer] = tuple(
                replace(piece, group=index, part=part, offset=loads[part] + piece.offset - first)
                for piece in spec.pieces[layer]
            )
            loads[part] += _bytes_of(spec, layer)
        fullest = max(fullest, *loads)
        groups.append(replace(group, layers=tuple(own), used_bytes=sum(loads)))
    return KVSpec(spec.block_size, fullest, tuple(groups), tuple(pieces))


def _bytes_of(spec: KVSpec, layer: int) -> int:
    """What a layer's planes take of a block."""
    pieces = spec.pieces[layer]
    last = pieces[-1]
    end = last.offset + last.plane.slot_bytes(spec.block_size)
    return -(-(end - pieces[0].offset) // ALIGNMENT) * ALIGNMENT
