"""Runs of bytes that ranks have of a slot: together all of it, and each from its own place."""

import itertools

import pytest

from penstock.core.kv import LayerKV, LayerState, Plane, build_kv_spec, lay_out
from penstock.core.kv_slices import slices
from penstock.core.shares import head_shares


def specs_of(heads: int, readers: int, size: int, layers: int, kept: str, latent: bool):
    """The geometry of one process, and of each rank."""
    whole = [LayerKV(heads, 64, latent=latent) for _ in range(layers)]
    dealt = head_shares(heads * readers, heads, size)
    own = [[LayerKV(heads if latent else share.kv.count, 64, latent=latent)] * layers for share in dealt]
    return build_kv_spec(whole, "bfloat16", 16, kept), [build_kv_spec(each, "bfloat16", 16, kept) for each in own]


@pytest.mark.parametrize(
    ("heads", "size", "kept", "latent"),
    [
        *(
            (heads, size, kept, False)
            for heads, size in itertools.product((1, 2, 3, 8), (2, 3, 4))
            for kept in ("auto", "int8")
        ),
        (4, 2, "int4", False),
        (1, 2, "auto", True),
    ],
)
def test_ranks_have_all_bytes_of_all_planes(heads: int, size: int, kept: str, latent: bool) -> None:
    """Each byte of each plane is in a rank that has it at the place of the same head."""
    whole, specs = specs_of(heads, 4, size, 3, kept, latent)
    slot = bytearray(whole.slot_bytes(0))
    planes = [
        (layer, number, piece) for layer, pieces in enumerate(whole.pieces) for number, piece in enumerate(pieces)
    ]
    # A number for each head of each plane.
    for layer, number, piece in planes:
        size_of_head = piece.plane.slot_bytes(16) // piece.plane.shape[0]
        for head in range(piece.plane.shape[0]):
            start = piece.part * whole.block_bytes + piece.offset + head * size_of_head
            slot[start : start + size_of_head] = bytes([1 + 60 * layer + 10 * number + head]) * size_of_head
    dealt = head_shares(heads * 4, heads, size)
    again = bytearray(len(slot))
    for spec, runs, share in zip(specs, slices(whole, specs), dealt, strict=True):
        own = bytearray(spec.slot_bytes(0))
        for run in runs:
            own[run.own : run.own + run.size] = slot[run.whole : run.whole + run.size]
            again[run.whole : run.whole + run.size] = own[run.own : run.own + run.size]
        held = range(heads) if latent else range(heads)[share.kv.span]
        for layer, pieces in enumerate(spec.pieces):
            for number, piece in enumerate(pieces):
                size_of_head = piece.plane.slot_bytes(16) // piece.plane.shape[0]
                for place, head in enumerate(held):
                    start = piece.part * spec.block_bytes + piece.offset + place * size_of_head
                    assert (
                        own[start : start + size_of_head] == bytes([1 + 60 * layer + 10 * number + head]) * size_of_head
                    )
    assert again == slot


def test_what_is_not_cut_by_heads_is_refused() -> None:
    record = lay_out([LayerState((Plane("state", (4, 8), "float32", "sequence"),))], 16)
    with pytest.raises(ValueError, match="Records of sequences"):
        slices(record, [record, record])
    whole, specs = specs_of(4, 1, 2, 1, "auto", latent=False)
    with pytest.raises(ValueError, match="not dealt out in order"):
        slices(whole, [*specs, specs[0]])
