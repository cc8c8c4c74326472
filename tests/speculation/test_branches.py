"""Branches of trees are rows of a step, with blocks of their own."""

import random

import numpy as np
import torch

from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.plan import BlockUpdate, RowPlan
from penstock.core.speculation import MOST_BRANCHES, blocks_of_branch, blocks_of_branches
from penstock.runtime.storage import KVStorage
from penstock.speculation.branches import Branches
from penstock.speculation.proposer import Proposal
from penstock.speculation.tree import branches, chain, path_to
from penstock.stepping.rows import NEWEST, StepRow, places_of, shares
from penstock.stepping.tables import BlockTables

SIZE, BLOCKS, DEPTH = 4, 24, 6


class Setup:
    """Sequences with blocks, and room for branches, in two KV groups."""

    def __init__(self, most: int = MOST_BRANCHES) -> None:
        self.groups = 2
        scratch = most * self.groups * blocks_of_branch(DEPTH, SIZE)
        spec = build_kv_spec([LayerKV(1, 2), LayerKV(1, 2, 9)], "float32", SIZE)
        assert spec.num_tables == self.groups
        self.storage = KVStorage(spec, BLOCKS + scratch)
        self.tables = BlockTables(spec.groups, SIZE)
        self.branches = Branches(self.storage, self.tables, self.groups, BLOCKS, DEPTH, most)
        self.keys = self.storage.planes(0)["key"]
        # Each slot of the pool says where it is.
        self.keys[:BLOCKS] = torch.arange(BLOCKS * SIZE, dtype=torch.float32).view(BLOCKS, SIZE, 1, 1)
        self._free = list(range(BLOCKS))

    def sequence(self, newest: int, depth: int = DEPTH) -> int:
        row, count = self.tables.open_row(), (newest + depth) // SIZE + 1
        updates = [BlockUpdate(group, 0, [self._free.pop() for _ in range(count)]) for group in range(self.groups)]
        self.tables.update(row, tuple(updates))
        return row

    def blocks(self, group: int, row: int, count: int) -> list[int]:
        found: list[int] = self.tables.rows_of(group, np.array([row]), count)[0].tolist()
        return found


def plan(sequence: int, newest: int, depth: int = DEPTH) -> RowPlan:
    return RowPlan(sequence, newest, 1, [100], None, (sequence,), (), depth)


def test_there_are_blocks_for_all_branches() -> None:
    assert blocks_of_branches(DEPTH, SIZE, 2) == MOST_BRANCHES * 2 * 3
    # The newest token may be the last of its block.
    assert [blocks_of_branch(depth, SIZE) for depth in (1, 4, 5)] == [2, 2, 3]


def test_a_branch_has_its_own_blocks_from_the_newest_token_on() -> None:
    setup = Setup()
    table = setup.sequence(6)
    tree = Proposal([1, 2, 3, 8, 9], None, [-1, 0, 1, 0, 3])
    rows, kept = setup.branches.lay_out([plan(0, 6)], [table], {0: tree})
    assert kept == {0: tree}
    own, branch = rows
    assert (own.plan.start, own.plan.tokens, own.plan.draft_depth, own.before) == (6, [100, 1, 2, 3], 3, None)
    assert (branch.plan.start, branch.plan.tokens, branch.plan.draft_depth) == (8, [8, 9], 1)
    assert branch.drafts == [3, 4] and branch.before == [0]
    # Token 0 of the step is the newest, and 1 the first draft: both are the branch's too.
    assert shares(rows) == [0, 1, 1, 1]
    for group in range(2):
        mine, others = setup.blocks(group, table, 3), setup.blocks(group, branch.table, 3)
        assert others[:1] == mine[:1] and min(others[1:]) >= BLOCKS > max(mine)
        # What stood in the newest token's block is there, and all are different ones.
        assert len({*mine, *others}) == 5
    block, old = setup.blocks(0, branch.table, 2)[1], setup.blocks(0, table, 2)[1]
    assert torch.equal(setup.keys[block], setup.keys[old])


def test_what_was_right_comes_to_the_sequences_blocks() -> None:
    setup = Setup()
    table = setup.sequence(6)
    tree = Proposal([1, 2, 3, 7, 8], None, [-1, 0, 1, 0, 3])
    (_, branch), _ = setup.branches.lay_out([plan(0, 6)], [table], {0: tree})
    for group in range(2):
        for block in setup.blocks(group, branch.table, 3)[1:]:
            setup.keys[block] = 1000.0 + block
    before = setup.keys.clone()
    setup.branches.keep(branch, table, 6, 2)
    for group in range(2):
        one, two, three = setup.blocks(group, table, 3)
        assert torch.equal(setup.keys[one], before[one])
        for mine, other in zip((two, three), setup.blocks(group, branch.table, 3)[1:], strict=True):
            assert (setup.keys[mine] == 1000.0 + other).all()


def test_there_are_no_more_branches_than_there_is_room_for() -> None:
    setup = Setup(most=3)
    tables = [setup.sequence(2, 2) for _ in range(2)]
    tree = Proposal([1, 2, 3, 4], None, [-1, -1, -1, 2])
    planned = [plan(0, 2, 2), plan(1, 2, 2)]
    rows, kept = setup.branches.lay_out(planned, tables, {0: tree, 1: tree})
    assert kept == {0: tree, 1: Proposal([1, 2], None, [-1, -1])}
    assert sorted(row.plan.tokens for row in rows if row.before is not None) == [[2], [2], [3, 4]]
    # In the next step they are free again; without any room, a tree is a chain.
    _, kept = setup.branches.lay_out(planned[:1], tables[:1], {0: tree})
    assert kept == {0: tree}
    none = Branches(setup.storage, setup.tables, 2, most=0)
    rows, kept = none.lay_out(planned[:1], tables[:1], {0: tree})
    assert kept == {0: Proposal([1], None, [-1])} and [row.plan.tokens for row in rows] == [[100, 1]]


def test_rows_without_drafts_stay_as_they_are() -> None:
    setup = Setup()
    chunk = RowPlan(0, 0, 5, [1, 2, 3, 4, 5], None, (), ())
    rows, kept = setup.branches.lay_out([chunk, plan(1, 3), plan(2, 3)], [7, 8, 9], {1: Proposal([]), 2: Proposal([4])})
    assert kept == {1: Proposal([]), 2: Proposal([4])} and shares(rows) == []
    # Rows of one token come first.
    assert [row.plan.sequence for row in rows] == [1, 0, 2]
    assert rows[0].plan.draft_depth == 0 and rows[1] == StepRow(chunk, 7)
    assert places_of(rows, [row.logit_rows for row in rows]) == {(1, NEWEST): 0, (2, NEWEST): 1, (2, 0): 2}


def test_every_draft_is_computed_once_behind_its_ancestors() -> None:
    luck = random.Random(0)
    for _ in range(100):
        setup = Setup()
        planned, tables, trees = [], [], {}
        for sequence in range(luck.randint(1, 2)):
            parents = chain(luck.randint(1, 4))
            while len(parents) < 8 and luck.random() < 0.8:
                parent = luck.randrange(-1, len(parents))
                if len(path_to(parents, parent)) < DEPTH:
                    parents.append(parent)
            newest = luck.randint(0, 9)
            planned.append(plan(sequence, newest))
            tables.append(setup.sequence(newest))
            trees[sequence] = Proposal([10 * sequence + place for place in range(len(parents))], None, parents)
        rows, _ = setup.branches.lay_out(planned, tables, trees)
        tokens = places_of(rows, [row.plan.count for row in rows])
        assert sorted(tokens.values()) == list(range(sum(row.plan.count for row in rows)))
        flat = [token for row in rows for token in row.plan.tokens]
        pairs = shares(rows)
        shared = set(zip(pairs[::2], pairs[1::2], strict=True))
        for place, row in enumerate(rows):
            sequence = row.plan.sequence
            assert [flat[tokens[sequence, draft]] for draft in row.drafts] == [
                trees[sequence].tokens[draft] for draft in row.drafts
            ]
            if row.before is None:
                continue
            path = path_to(trees[sequence].parents or [], row.drafts[-1])
            assert [*row.before, *row.drafts] == path
            assert row.plan.start == planned[sequence].start + 1 + len(row.before)
            expected = {tokens[sequence, draft] for draft in (NEWEST, *row.before)}
            assert {token for token, at in shared if at == place} == expected
        assert len(rows) == sum(len(branches(tree.parents or [])) for tree in trees.values())
