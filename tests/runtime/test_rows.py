"""The table of rows: what it keeps of sequences, what a step reads of it, and what is void before plans know it."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from penstock.core.kv import GroupSpec, LayerKV, build_kv_spec
from penstock.core.plan import BeginRow, BlockUpdate, RowPlan, StepPlan
from penstock.core.sampling import SamplingParams
from penstock.runtime.row_states import RowStates
from penstock.runtime.rows import Carried, RowTable
from penstock.runtime.storage import KVStorage
from penstock.stepping.tables import BlockTables

SIZE = 4
PARAMS = SamplingParams(temperature=0.0)


class Setup:
    """A table over a pool whose values are all 1."""

    def __init__(self) -> None:
        spec = build_kv_spec([LayerKV(1, 2)], "float32", SIZE)
        self.storage = KVStorage(spec, 16)
        self.keys = self.storage.planes(0)["key"]
        self.keys.fill_(1.0)
        self.tables = BlockTables((GroupSpec((0,)),), SIZE)
        self.table = RowTable(self.tables, [self.storage], RowStates(None, None).begin)

    def begin(self, sequence: int, tokens: list[int], **more: Any) -> None:
        self.table.begin(BeginRow(sequence, 0, tokens, PARAMS, (), **more))


def plan(sequence: int, start: int, tokens: list[int], **more: Any) -> RowPlan:
    return replace(RowPlan(sequence, start, len(tokens), tokens, None, (sequence,), ()), **more)


def held(*blocks: int) -> tuple[BlockUpdate, ...]:
    """A sequence's first blocks."""
    return (BlockUpdate(0, 0, list(blocks)),)


def test_a_fork_has_the_tokens_of_the_row_that_it_forks_from() -> None:
    setup = Setup()
    setup.begin(1, [7, 8, 9])
    setup.begin(2, [], forked_from=1)
    rows = setup.table.rows
    assert rows[2].tokens == [7, 8, 9] and rows[2].prompt == 3 and rows[2].table != rows[1].table
    rows[1].tokens.append(5)
    assert rows[2].tokens == [7, 8, 9]


def test_a_row_that_ends_gives_its_tables_back_and_one_that_never_began_is_no_error() -> None:
    setup = Setup()
    setup.begin(1, [7], pooling="mean")
    freed = setup.table.rows[1].table
    assert setup.table.pooled == {1} and setup.table.rows[1].pool is not None
    setup.table.end(1)
    setup.table.end(1)
    assert not setup.table.rows and not setup.table.pooled
    setup.begin(2, [7])
    assert setup.table.rows[2].table == freed and setup.table.rows[2].pool is None


def test_blocks_behind_what_is_computed_are_cleared_and_those_before_stay() -> None:
    setup = Setup()
    setup.begin(1, [7] * 9)
    # Positions 0 to 4 came from the prefix cache: block 3 and a part of block 5.
    setup.table.place([plan(1, 5, [7] * 4, blocks=held(3, 5, 8))])
    cleared = [block for block in range(16) if not setup.keys[block].any()]
    assert cleared == [8]


def test_a_step_reads_tokens_of_plans_rows_and_a_device() -> None:
    setup = Setup()
    for sequence in (1, 2, 3):
        setup.begin(sequence, [10 + sequence])
        setup.table.place([plan(sequence, 0, [10 + sequence], blocks=held(sequence))])
    setup.table.rows[2].tokens.append(42)
    known = plan(1, 1, [21])
    finished, under_way = (plan(sequence, 1, [], count=1, source=source) for sequence, source in ((2, 4), (3, 5)))
    plans = [known, finished, under_way]
    carried = Carried(5, {9: 0, 3: 1}, torch.tensor([1.0, 2.0], dtype=torch.float64))
    batch = setup.table.gather(plans, setup.table.tables_of(plans), carried)
    assert batch.token_ids.tolist() == [21, 42, -2] and batch.carried is carried.tokens
    assert batch.block_tables[0][:, 0].tolist() == [1, 2, 3]
    # All are known once that step has been read.
    setup.table.rows[3].tokens.append(43)
    batch = setup.table.gather(plans, setup.table.tables_of(plans))
    assert batch.token_ids.tolist() == [21, 42, 43] and batch.carried is None


@pytest.mark.parametrize("over", [1, 2])
def test_what_has_ended_is_left_out_with_what_was_to_fork_from_it(over: int) -> None:
    setup = Setup()
    for sequence in (1, 2, 3):
        setup.begin(sequence, [7])
    forking = plan(1, 0, [7], samples=(1, 3))
    step = StepPlan(0, (forking, plan(2, 0, [7])))
    table = setup.table
    assert table.without_void(step) == step.rows
    table.make_void([over, 99])
    assert [row.sequence for row in table.without_void(step)] == [3 - over]
    assert table.is_void(3) == (over == 1) and table.is_void(99)
    # A sequence that ends is void because it has no row, and nothing is kept of that.
    table.end(over)
    assert table.is_void(over)
    setup.begin(over, [7])
    assert not table.is_void(over)


def test_sources_that_are_not_encoded_yet_are_gathered() -> None:
    spec = build_kv_spec([LayerKV(1, 2), LayerKV(1, 2, source=True)], "float32", SIZE)
    storage = KVStorage(spec, 16)
    table = RowTable(BlockTables(spec.groups, SIZE), [storage], RowStates(None, None).begin)
    table.begin(BeginRow(1, 0, [7], PARAMS, (), source=(3, 4, 5)))
    table.begin(BeginRow(2, 0, [], PARAMS, (), forked_from=1))
    assert table.rows[2].source == (3, 4, 5)
    storage.planes(1)["key"].fill_(1.0)
    source = (BlockUpdate(0, 0, [8]), BlockUpdate(1, 0, [9]))
    planned = [plan(1, 0, [7], encodes=3, blocks=source), plan(2, 0, [7], blocks=source)]
    table.place(planned[1:])
    assert storage.planes(1)["key"][9].all(), "what another has encoded stays"
    table.place(planned)
    assert not storage.planes(1)["key"][9].any()
    read = table.gather_sources(planned)
    assert read is not None and read.token_ids.tolist() == [3, 4, 5]
    assert table.gather_sources(planned[1:]) is None
    assert table.gather(planned, table.tables_of(planned)).sources == [3, 3]
    assert table.one_token().sources == [1] and table.one_token_source().context_lengths == [1]
