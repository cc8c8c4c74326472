"""Geometry of the cache: groups, bytes, and how many blocks a sequence can hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UnsupportedModel
from penstock.core.kv import LayerKV, build_kv_spec


def test_one_kind_of_layer_is_one_group() -> None:
    spec = build_kv_spec([LayerKV(2, 8)] * 5, "float32", 16)
    assert [group.layers for group in spec.groups] == [(0, 1, 2, 3, 4)]
    assert spec.block_bytes == 16 * 5 * 2 * (2 * 8 * 4)


def test_groups_have_as_many_layers_as_the_rarest_kind() -> None:
    local, full = LayerKV(1, 8, 32), LayerKV(1, 8)
    spec = build_kv_spec([local, local, local, full, local, local, full], "bfloat16", 16)
    assert [(group.window, group.layers) for group in spec.groups] == [
        (None, (3, 6)),
        (32, (0, 1)),
        (32, (2, 4)),
        (32, (5,)),
    ]
    assert spec.layers_per_block == 2


def test_layers_with_different_heads_are_refused() -> None:
    with pytest.raises(UnsupportedModel):
        build_kv_spec([LayerKV(1, 8), LayerKV(2, 8)], "float32")


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 400), st.integers(1, 8))
def test_a_window_group_never_holds_more_than_blocks_for(window: int, chunk: int, tokens: int, size: int) -> None:
    spec = build_kv_spec([LayerKV(1, 8, window)], "float32", size)
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        first = max(0, start - window + 1) // size
        assert -(-end // size) - first <= spec.blocks_for(tokens, chunk)
