"""Block tables as arrays: what the plan says is what the kernels see."""

import numpy as np

from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.plan import BlockCopy, BlockUpdate, RowPlan
from penstock.kernels.dispatch import StepState
from penstock.runtime.storage import KVStorage
from penstock.stepping.gather import gather_batch, order_rows
from penstock.stepping.tables import BlockTables


def test_tables_grow_and_keep_their_content() -> None:
    tables = BlockTables(1, 4)
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
    tables = BlockTables(1, 4)
    row = tables.open_row()
    tables.update(row, (BlockUpdate(0, 0, [-1, -1, 9]),))
    assert tables.rows_of(0, np.array([row]), 3).tolist() == [[0, 0, 9]]


def row(sequence: int, start: int, tokens: list[int], *, sampled: bool = True) -> RowPlan:
    return RowPlan(sequence, start, len(tokens), tokens, None, (sequence,) if sampled else (), ())


def test_a_ragged_batch_puts_single_tokens_first() -> None:
    planned = [row(1, 4, [11, 12, 13], sampled=False), row(2, 6, [21]), row(3, 0, [31, 32]), row(4, 9, [41])]
    ordered = order_rows(planned)
    assert [member.sequence for member in ordered] == [2, 4, 1, 3]
    tables = BlockTables(2, 4)
    places = {member.sequence: tables.open_row() for member in planned}
    for sequence, place in places.items():
        for group in range(2):
            tables.update(place, (BlockUpdate(group, 0, [10 * sequence + 100 * group + index for index in range(3)]),))
    tokens = [token for member in ordered for token in member.tokens]
    batch = gather_batch(ordered, tokens, [places[member.sequence] for member in ordered], tables, (0, 1))
    assert batch.num_decodes == 2
    assert batch.token_ids.tolist() == [21, 41, 11, 12, 13, 31, 32]
    assert batch.positions.tolist() == [6, 9, 4, 5, 6, 0, 1]
    assert batch.query_lengths == [1, 1, 3, 2]
    assert batch.context_lengths == [7, 10, 7, 2]
    # Row 1 is not sampled: no logits of its tokens.
    assert batch.logit_rows.tolist() == [0, 1, 6]
    slots = StepState(batch).slots(0).tolist()
    assert slots == [21 * 4 + 2, 42 * 4 + 1, 11 * 4, 11 * 4 + 1, 11 * 4 + 2, 30 * 4, 30 * 4 + 1]
    assert StepState(batch).slots(1).tolist() == [slot + 400 for slot in slots]
    assert batch.block_tables[0].tolist() == [[20, 21, 22], [40, 41, 42], [10, 11, 12], [30, 31, 32]]


def test_scored_positions_come_before_the_one_that_is_sampled() -> None:
    tables = BlockTables(1, 4)
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


def test_block_copies_move_every_layer() -> None:
    spec = build_kv_spec([LayerKV(1, 2, 8), LayerKV(1, 2), LayerKV(1, 2), LayerKV(1, 2, 8)], "float32", 4)
    storage = KVStorage(spec, 6)
    assert storage.group_of(1) == storage.group_of(2) != storage.group_of(0)
    assert storage.planes(0)[0].data_ptr() == storage.planes(1)[0].data_ptr(), "groups share arrays and block ids"
    for layer in (1, 2):
        for plane in storage.planes(layer):
            assert plane.shape == (24, 1, 2)
            plane[4:8] = float(layer)
    storage.copy_blocks((BlockCopy(1, 3), BlockCopy(3, 5)))
    for layer in (1, 2):
        for plane in storage.planes(layer):
            assert bool((plane[20:24] == layer).all())
            assert bool((plane[:4] == 0).all())


def test_cleared_blocks_are_zero_in_every_layer_and_others_stay() -> None:
    for dtype in ("float32", "bfloat16"):
        storage = KVStorage(build_kv_spec([LayerKV(1, 2, 8), LayerKV(1, 2), LayerKV(1, 2)], dtype, 4), 6)
        planes = [plane for layer in range(3) for plane in storage.planes(layer)]
        for plane in planes:
            plane.fill_(3.0)
        storage.clear_blocks([1, 4])
        storage.clear_blocks([])
        for plane in planes:
            blocks = plane.view(6, -1)
            assert bool((blocks[[1, 4]] == 0).all()) and bool((blocks[[0, 2, 3, 5]] == 3).all())
