"""Block tables as arrays: what the plan says is what the kernels see."""

import numpy as np
import torch

from penstock.core.kv import GroupSpec, LayerKV, build_kv_spec
from penstock.core.plan import BlockUpdate, RowPlan
from penstock.kernels.dispatch import StepState
from penstock.runtime.storage import KVStorage
from penstock.stepping.gather import gather_batch, gather_sources, order_rows
from penstock.stepping.tables import BlockTables


def test_tables_grow_and_keep_their_content() -> None:
    tables = BlockTables((GroupSpec((0,)),), 4)
    rows = [tables.open_row() for _ in range(40)]
    assert len(set(rows)) == 40
    for row in rows:
        tables.update(row, (BlockUpdate(0, 0, [row + 1, row + 2]),))
    tables.update(rows[3], (BlockUpdate(0, 100, [7, 8]),))
    wide = tables.rows_of(0, np.array(rows), 102)
    assert wide[:, 0].tolist() == [row + 1 for row in rows]
    assert wide[3, 100:].tolist() == [7, 8]
    tables.close_row(rows[5])
    assert tables.open_row() == rows[5]


def test_released_entries_become_block_zero() -> None:
    tables = BlockTables((GroupSpec((0,)),), 4)
    row = tables.open_row()
    tables.update(row, (BlockUpdate(0, 0, [-1, -1, 9]),))
    assert tables.rows_of(0, np.array([row]), 3).tolist() == [[0, 0, 9]]


def row(sequence: int, start: int, tokens: list[int], *, sampled: bool = True) -> RowPlan:
    return RowPlan(sequence, start, len(tokens), tokens, None, (sequence,) if sampled else (), ())


def test_a_ragged_batch_puts_single_tokens_first() -> None:
    planned = [row(1, 4, [11, 12, 13], sampled=False), row(2, 6, [21]), row(3, 0, [31, 32]), row(4, 9, [41])]
    ordered = order_rows(planned)
    assert [member.sequence for member in ordered] == [2, 4, 1, 3]
    tables = BlockTables((GroupSpec((0,)), GroupSpec((1,))), 4)
    rows = {member.sequence: tables.open_row() for member in planned}
    for sequence, place in rows.items():
        for group in range(2):
            tables.update(place, (BlockUpdate(group, 0, [10 * sequence + 100 * group + index for index in range(3)]),))
    tokens = [token for member in ordered for token in member.tokens]
    batch = gather_batch(ordered, tokens, [rows[member.sequence] for member in ordered], tables, (0, 1))
    assert batch.num_decodes == 2
    assert batch.token_ids.tolist() == [21, 41, 11, 12, 13, 31, 32]
    assert batch.positions.tolist() == [6, 9, 4, 5, 6, 0, 1]
    assert batch.query_lengths == [1, 1, 3, 2]
    assert batch.context_lengths == [7, 10, 7, 2]
    # Row 1 is not sampled: no logits of its tokens.
    assert batch.logit_rows.tolist() == [0, 1, 6]
    blocks, places = StepState(batch).slots(0)
    assert blocks.tolist() == [21, 42, 11, 11, 11, 30, 30]
    assert places.tolist() == [2, 1, 0, 1, 2, 0, 1]
    assert torch.equal(StepState(batch).slots(1)[0], blocks + 100)
    assert batch.block_tables[0].tolist() == [[20, 21, 22], [40, 41, 42], [10, 11, 12], [30, 31, 32]]


def test_scored_positions_come_before_the_one_that_is_sampled() -> None:
    tables = BlockTables((GroupSpec((0,)),), 4)
    planned = [
        RowPlan(1, 5, 1, [21], None, (), (), scored=(5, 6)),
        RowPlan(2, 9, 1, [31], None, (2,), ()),
        RowPlan(3, 4, 4, [11, 12, 13, 14], None, (3,), (), scored=(5, 7)),
        RowPlan(4, 0, 2, [41, 42], None, (), ()),
    ]
    places = [tables.open_row() for _ in planned]
    for place in places:
        tables.update(place, (BlockUpdate(0, 0, [0, 1, 2]),))
    tokens = [token for member in planned for token in member.tokens]
    batch = gather_batch(planned, tokens, places, tables, (0,))
    # Tokens 2 to 5 are row 3's positions 4 to 7: two are scored, the last is sampled.
    assert batch.logit_rows.tolist() == [0, 1, 3, 4, 5]


def test_each_block_of_a_slot_is_in_a_table_of_its_own() -> None:
    tables = BlockTables((GroupSpec((0,)), GroupSpec((1,), width=3)), 4)
    row = tables.open_row()
    tables.update(row, (BlockUpdate(0, 0, [5, 6]), BlockUpdate(1, 0, [10, 11, 12, -1, -1, -1, 30, 31, 32])))
    tables.update(row, (BlockUpdate(1, 2, [40, 41, 42]),))
    assert [tables.row_of(number, row, 3).tolist() for number in range(4)] == [
        [5, 6, 0],
        [10, 0, 40],
        [11, 0, 41],
        [12, 0, 42],
    ]


LAYERS = [LayerKV(1, 2, 8), LayerKV(1, 2), LayerKV(3, 4), LayerKV(1, 2, 8)]


def test_planes_of_layers_are_apart() -> None:
    for kept in ("auto", "int8"):
        storage = KVStorage(build_kv_spec(LAYERS, "float32", 4, kept), 6)
        for layer, kind in enumerate(LAYERS):
            for name, plane in storage.planes(layer).items():
                own = () if name.endswith("scale") else (kind.head_dim,)
                assert plane.shape == (6, 4, kind.kv_heads, *own)
        # Layers of one table have different places in its blocks.
        for table in range(storage.spec.num_tables):
            layers = [layer for layer in range(len(LAYERS)) if storage.table_of(layer) == table]
            planes = [plane for layer in layers for plane in storage.planes(layer).values()]
            for number, plane in enumerate(planes):
                plane.view(torch.uint8).fill_(number + 1)
            for number, plane in enumerate(planes):
                assert bool((plane.view(torch.uint8) == number + 1).all())
        assert {storage.table_of(1)} & {storage.table_of(2)} and storage.table_of(0) != storage.table_of(1)


def test_block_copies_move_every_layer() -> None:
    storage = KVStorage(build_kv_spec(LAYERS, "float32", 4), 6)
    for layer in (1, 2):
        for plane in storage.planes(layer).values():
            plane[1] = float(layer)
    storage.copy_blocks([(1, 3), (3, 5)])
    for layer in (1, 2):
        for plane in storage.planes(layer).values():
            assert bool((plane[5] == layer).all())
            assert bool((plane[0] == 0).all())


def test_cleared_blocks_are_zero_in_every_layer_and_others_stay() -> None:
    for dtype in ("float32", "bfloat16"):
        storage = KVStorage(build_kv_spec(LAYERS, dtype, 4), 6)
        planes = [plane for layer in range(4) for plane in storage.planes(layer).values()]
        for plane in planes:
            plane.fill_(3.0)
        storage.clear_blocks([1, 4])
        storage.clear_blocks([])
        for plane in planes:
            assert bool((plane[[1, 4]] == 0).all()) and bool((plane[[0, 2, 3, 5]] == 3).all())


def test_only_slots_behind_what_is_computed_are_fresh() -> None:
    tables = BlockTables((GroupSpec((0,)), GroupSpec((1,), width=2), GroupSpec((2,), record_interval=8)), 4)
    assert [tables.fresh(BlockUpdate(0, 1, [7, 8, 9]), start) for start in (4, 5, 16)] == [[7, 8, 9], [8, 9], []]
    assert tables.fresh(BlockUpdate(1, 1, [7, 8, 9, 10]), 5) == [9, 10]
    # A record that goes on is a copy of what it was.
    assert list(tables.fresh(BlockUpdate(2, 0, [7]), 0)) == [7] and not tables.fresh(BlockUpdate(2, 0, [7]), 4)


SOURCED = build_kv_spec([LayerKV(1, 2), LayerKV(1, 2, source=True)], "float32", 4)


def sourced_row(tables: BlockTables, own: list[int], source: list[int]) -> int:
    row = tables.open_row()
    tables.update(row, (BlockUpdate(0, 0, own), BlockUpdate(1, 0, source)))
    return row


def test_a_source_has_a_table_as_wide_as_the_longest() -> None:
    tables = BlockTables(SOURCED.groups, 4)
    rows = [sourced_row(tables, [1], [4, 5, 6]), sourced_row(tables, [2, 3], [7])]
    planned = [row(1, 0, [9]), row(2, 4, [9])]
    batch = gather_batch(planned, [9, 9], rows, tables, (0, 1), sources=[11, 2])
    assert batch.sources == [11, 2]
    assert [table.tolist() for table in batch.block_tables] == [[[1, 0], [2, 3]], [[4, 5, 6], [7, 0, 0]]]


def test_sources_are_read_whole_and_those_of_one_token_first() -> None:
    tables = BlockTables(SOURCED.groups, 4)
    rows = [sourced_row(tables, [1], [4, 5]), sourced_row(tables, [2], [6])]
    batch = gather_sources([(30, 31, 32, 33, 34), (40,)], rows, tables, (0, 1))
    assert batch.token_ids.tolist() == [40, 30, 31, 32, 33, 34]
    assert batch.positions.tolist() == [0, 0, 1, 2, 3, 4]
    assert (batch.query_lengths, batch.context_lengths, batch.num_decodes) == ([1, 5], [1, 5], 1)
    assert batch.block_tables[1].tolist() == [[6, 0], [4, 5]]
    assert batch.logit_rows.tolist() == [] and not batch.sources


def test_blocks_of_a_source_are_fresh_where_it_is_encoded() -> None:
    """Others hold what other requests read."""
    tables = BlockTables(SOURCED.groups, 4)
    change = BlockUpdate(1, 0, [4, 5])
    assert list(tables.fresh(change, 0)) == [] and list(tables.fresh(change, 0, (), 7)) == [4, 5]
