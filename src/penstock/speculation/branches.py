"""Branches of trees of drafts as rows of a step, so that all are verified in one pass.

A branch is a row of the ragged batch. Its tokens are those that no other branch has. Its block table is that of its
sequence up to the newest token, and from there on it has blocks of its own, which are none of the pool's. What it has
in common with other branches is computed once, and its keys and values are stored in its blocks too
(`StepBatch.shared`). So tree attention needs no mask: each token attends to its own ancestors, in the order of their
positions, and gets the bits that it would get without any draft. What was right is copied to the sequence's blocks.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from penstock.core.plan import RowPlan
from penstock.core.speculation import MOST_BRANCHES, blocks_of_branch
from penstock.speculation.proposer import Proposal
from penstock.speculation.tree import branches, path_to, pruned, renumbered
from penstock.stepping.gather import order_rows
from penstock.stepping.rows import StepRow
from penstock.stepping.storage import Blocks
from penstock.stepping.tables import BlockTables


class Branches:
    """Gives branches their blocks, for one step at a time.

    Args:
        storage: where keys and values are.
        tables: the block tables of all rows; groups: their KV groups.
        first: from this block on, the storage has `core.speculation.blocks_of_branches` which no sequence has.
        depth: how deep a tree may be.
        most: branches beside the likeliest, in one step.
    """

    def __init__(
        self,
        storage: Blocks,
        tables: BlockTables,
        groups: int,
        first: int = 0,
        depth: int = 0,
        most: int = MOST_BRANCHES,
    ) -> None:
        self._storage = storage
        self._tables = tables
        self._groups = groups
        each = blocks_of_branch(depth, tables.block_size)
        blocks = iter(range(first, first + most * groups * each))
        self._own = [[[next(blocks) for _ in range(each)] for _ in range(groups)] for _ in range(most)]
        self._rows = [tables.open_row() for _ in range(most)]
        self._used = 0

    def lay_out(
        self, planned: Sequence[RowPlan], tables: Sequence[int], drafts: Mapping[int, Proposal]
    ) -> tuple[list[StepRow], dict[int, Proposal]]:
        """The rows of a step whose plan has these, with these rows of the block tables, and what is left of drafts.

        For more branches than there are blocks for, nothing is computed.
        """
        self._used = 0
        if not drafts:
            return order_rows([StepRow(plan, table) for plan, table in zip(planned, tables, strict=True)]), {}
        rows: list[StepRow] = []
        kept = dict(drafts)
        copies: list[tuple[int, int]] = []
        for plan, table in zip(planned, tables, strict=True):
            proposal = kept.get(plan.sequence)
            if proposal is None:
                rows.append(StepRow(plan, table))
                continue
            if proposal.parents is not None:
                proposal = kept[plan.sequence] = self._within_room(plan, proposal)
            rows += self._rows_of(plan, table, proposal, copies)
        self._storage.copy_blocks(copies)
        return order_rows(rows), kept

    def keep(self, branch: StepRow, table: int, newest: int, right: int) -> None:
        """The newest token, at position `newest`, and `right` drafts behind it are in the blocks of their sequence."""
        first, end = self._reach(newest, right)
        self._storage.copy_blocks(self._copies(branch.table, table, first, end))

    def _within_room(self, plan: RowPlan, proposal: Proposal) -> Proposal:
        """The branches that there is room for; what a branch has in common with others begins with the newest token."""
        parents = proposal.parents or []
        kept = pruned(parents, 1 + (len(self._rows) - self._used if plan.count == 1 else 0))
        return Proposal([proposal.tokens[place] for place in kept], None, renumbered(parents, kept))

    def _rows_of(self, plan: RowPlan, table: int, proposal: Proposal, copies: list[tuple[int, int]]) -> list[StepRow]:
        """The sequence's own row, and those of other branches."""
        tokens, parents = proposal.tokens, proposal.parents
        if parents is None:
            return [StepRow(_with_drafts(plan, tokens), table, range(len(tokens)))]
        likeliest, *others = branches(parents)
        rows = [StepRow(_with_drafts(plan, [tokens[place] for place in likeliest]), table, likeliest)]
        for drafts in others:
            before = path_to(parents, parents[drafts[0]])
            start, count = plan.start + 1 + len(before), len(drafts)
            first, end = self._reach(plan.start, len(before) + count)
            row, own = self._rows[self._used], self._own[self._used]
            self._used += 1
            self._tables.branch(row, table, first, [blocks[: end - first] for blocks in own])
            copies += self._copies(table, row, first, end)
            branch = RowPlan(
                sequence=plan.sequence,
                start=start,
                count=count,
                tokens=[tokens[place] for place in drafts],
                source=None,
                samples=plan.samples,
                blocks=(),
                # Its first draft's logits are wanted too.
                draft_depth=count - 1,
            )
            rows.append(StepRow(branch, row, drafts, before))
        return rows

    def _reach(self, newest: int, drafts: int) -> tuple[int, int]:
        """The first block of the token at `newest` and `drafts` drafts behind it, and the block behind their last."""
        size = self._tables.block_size
        return newest // size, (newest + drafts) // size + 1

    def _copies(self, source: int, target: int, first: int, end: int) -> list[tuple[int, int]]:
        """From the blocks of one row of the tables to those of another."""
        rows = np.array([source, target])
        return [
            (int(one), int(other))
            for group in range(self._groups)
            for one, other in zip(*self._tables.rows_of(group, rows, end)[:, first:], strict=True)
        ]


def _with_drafts(plan: RowPlan, drafts: list[int]) -> RowPlan:
    """The row with its drafts behind it, as if they were known."""
    return replace(plan, count=plan.count + len(drafts), tokens=[*plan.tokens, *drafts], draft_depth=len(drafts))
