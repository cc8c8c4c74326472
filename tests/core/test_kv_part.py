"""A part of a model's layers has blocks with the ids of the whole, and no more bytes in them than it needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.kv import KVSpec, LayerKV, LayerState, Plane, build_kv_spec, lay_out
from penstock.core.kv_part import part_of


def _check(spec: KVSpec, part: KVSpec, layers: set[int]) -> None:
    """Tables are the same; planes of other layers are gone, and those that stay do not overlap."""
    assert [(group.sees, group.width) for group in part.groups] == [(group.sees, group.width) for group in spec.groups]
    taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for layer, pieces in enumerate(part.pieces):
        assert bool(pieces) == (layer in layers)
        assert [piece.plane for piece in pieces] == ([each.plane for each in spec.pieces[layer]] if pieces else [])
        assert len({(piece.group, piece.part) for piece in pieces}) <= 1, "a layer's planes for tokens are in one block"
        for piece in pieces:
            end = piece.offset + piece.plane.slot_bytes(spec.block_size)
            assert piece.offset % 64 == 0 and end <= part.block_bytes
            taken.setdefault((piece.group, piece.part), []).append((piece.offset, end))
    for spans in taken.values():
        ordered = sorted(spans)
        assert all(before[1] <= behind[0] for before, behind in zip(ordered, ordered[1:], strict=False))


LAYERS = st.lists(
    st.builds(LayerKV, st.integers(1, 4), st.sampled_from([8, 64]), st.sampled_from([None, None, 32, 64])),
    min_size=1,
    max_size=14,
)


@given(LAYERS, st.sampled_from(["auto", "int8"]), st.data())
def test_any_layers(layers: list[LayerKV], kept: str, data: st.DataObject) -> None:
    spec = build_kv_spec(layers, "bfloat16", 16, kept)
    own = data.draw(st.sets(st.integers(0, len(layers) - 1)))
    part = part_of(spec, own)
    _check(spec, part, own)
    assert part.block_bytes <= spec.block_bytes


def test_half_of_the_layers_of_each_kind_take_half_of_the_memory() -> None:
    layers = [LayerKV(4, 64, None if index % 6 == 5 else 512) for index in range(24)]
    spec = build_kv_spec(layers, "bfloat16", 16)
    assert part_of(spec, range(12)).block_bytes * 2 == spec.block_bytes


def test_records_of_sequences_are_refused() -> None:
    spec = lay_out([LayerState((Plane("state", (4, 64), "float32", "sequence"),))], 16)
    with pytest.raises(ValueError, match="for all layers together"):
        part_of(spec, {0})
