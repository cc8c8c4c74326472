"""Geometry of the cache: groups, bytes, and how many blocks a sequence can hold."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.kv import LayerKV, LayerState, Plane, Visibility, build_kv_spec, lay_out
from penstock.core.layout import Item, pack, pack_rows


def test_one_kind_of_layer_is_one_group() -> None:
    spec = build_kv_spec([LayerKV(2, 8)] * 5, "float32", 16)
    assert [group.layers for group in spec.groups] == [(0, 1, 2, 3, 4)]
    assert spec.block_bytes == 16 * 5 * 2 * (2 * 8 * 4)


def test_layers_that_see_alike_are_one_group_in_few_blocks() -> None:
    local, full = LayerKV(1, 8, 32), LayerKV(1, 8)
    spec = build_kv_spec([local, local, local, full, local, local, full], "bfloat16", 16)
    assert [(group.sees.last, group.layers, group.width) for group in spec.groups] == [
        (None, (3, 6), 2),
        (32, (0, 1, 2, 4, 5), 5),
    ]
    assert spec.block_bytes == 16 * 2 * (8 * 2)
    assert [spec.table_of(layer) for layer in range(7)] == [2, 3, 4, 0, 5, 6, 1]


def test_layers_with_a_source_are_a_group_of_their_own_with_as_many_slots_as_that_has() -> None:
    own, source, local = LayerKV(2, 8), LayerKV(2, 8, source=True), LayerKV(2, 8, window=32)
    spec = build_kv_spec([local, own, own, source, source], "float32", 16)
    assert [(group.layers, group.sees.source) for group in spec.groups] == [
        ((1, 2), False),
        ((3, 4), True),
        ((0,), False),
    ]
    assert [group.is_whole for group in spec.groups] == [True, False, False]
    assert spec.source_group == 1
    widths = [group.width for group in spec.groups]
    assert spec.blocks_for(17, 1, source=33) - spec.blocks_for(17, 1) == 3 * widths[1]
    assert build_kv_spec([own], "float32", 16).source_group is None


def attention(kv_heads: int, head_dim: int, window: int | None = None, first: int = 0) -> LayerState:
    planes = tuple(Plane(name, (kv_heads, head_dim), "bfloat16") for name in ("key", "value"))
    return LayerState(planes, Visibility(first, window))


LATENT = LayerState((Plane("latent", (576,), "bfloat16"),))
RECORD = LayerState(
    (Plane("state", (32, 128, 128), "float32", "sequence"), Plane("tail", (3, 512), "bfloat16", "sequence"))
)
SHAPES = {
    "one kind": [attention(8, 64)] * 16,
    "a window in five of six layers": ([attention(16, 128, 1024)] * 5 + [attention(16, 128)]) * 10
    + [attention(16, 128, 1024)] * 2,
    "heads of 256 and 512": ([attention(4, 256, 1024)] * 5 + [attention(2, 512)]) * 5,
    "latents": [LATENT] * 27,
    "four kinds": [attention(2, 64)] * 6 + [attention(2, 128, 64, 4)] * 12 + [LATENT] * 4 + [RECORD] * 8,
    "records in three of four layers": ([RECORD] * 3 + [attention(2, 256)]) * 12,
}


@pytest.mark.parametrize("layers", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_every_plane_has_a_place_of_its_own(layers: list[LayerState], block_size: int) -> None:
    spec = lay_out(layers, block_size)
    taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for layer, pieces in zip(layers, spec.pieces, strict=True):
        for plane in layer.planes:
            mine = sorted((piece for piece in pieces if piece.plane == plane), key=lambda piece: piece.first_row)
            size = plane.slot_bytes(block_size)
            if mine[0].rows:
                # A record is cut between rows, and is all there.
                assert [piece.first_row for piece in mine] == list(
                    itertools.accumulate((piece.rows for piece in mine[:-1]), initial=0)
                )
                assert sum(piece.rows for piece in mine) == plane.shape[0]
            else:
                assert len(mine) == 1
            for piece in mine:
                part = size // plane.shape[0] * piece.rows if piece.rows else size
                taken.setdefault((piece.group, piece.part), []).append((piece.offset, piece.offset + part))
                assert piece.offset % 64 == 0 and piece.part < spec.groups[piece.group].width
    for places in taken.values():
        places.sort()
        assert all(end <= first for (_, end), (first, _) in itertools.pairwise(places))
        assert places[-1][1] <= spec.block_bytes
    assert len(taken) == spec.num_tables


@pytest.mark.parametrize("layers", SHAPES.values(), ids=SHAPES)
def test_less_than_a_tenth_of_the_blocks_is_empty(layers: list[LayerState]) -> None:
    spec = lay_out(layers, 16)
    groups = [group for group in spec.groups if group.record_interval is None]
    for case in (groups, [group for group in groups if group.sees.last is None], spec.groups):
        used, held = sum(group.used_bytes for group in case), sum(group.width for group in case) * spec.block_bytes
        assert used > 0.9 * held


def test_what_does_not_lie_in_a_block_is_not_cut() -> None:
    with pytest.raises(ValueError, match="100 bytes"):
        pack([Item(0, 100)], 99)
    with pytest.raises(ValueError, match="a row of 50 bytes"):
        pack_rows([Item(0, 100, rows=2)], 49)


@given(st.integers(0, 20), st.integers(1, 60), st.integers(1, 40), st.integers(1, 400), st.integers(1, 8))
def test_a_group_never_holds_more_than_blocks_for(first: int, window: int, chunk: int, tokens: int, size: int) -> None:
    spec = lay_out([attention(1, 8, window, first)], size)
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        beginning = -(-first // size)
        held = {*range(max(0, start - window + 1) // size, -(-end // size)), *range(min(beginning, -(-end // size)))}
        assert len(held) <= spec.blocks_for(tokens, chunk)
