"""Rows with drafts: these are asked for before a step is computed, and judged by what it computes."""

import time
from collections.abc import Mapping, Sequence

from torch import Tensor

from penstock.core.plan import RowPlan, SampleResult
from penstock.runtime.handles import StepNotes
from penstock.runtime.parts import Drafting
from penstock.runtime.rows import Row, RowTable
from penstock.sampling.sampler import Sampler
from penstock.speculation.proposer import NONE, Learner, Proposal, Wanted
from penstock.speculation.verifier import DraftedRow, verify
from penstock.stepping.rows import StepRow, places_of

Drafts = Mapping[int, Proposal]
"""What was drafted, by sequence; those for which nothing was wanted are left out."""
Paths = Mapping[int, Sequence[int]]
"""Which of its drafts were right, by sequence."""


class DraftVerifier:
    """Tells the proposer what it has to know, and the rows which of its drafts were right."""

    def __init__(self, table: RowTable, sampler: Sampler, drafting: Drafting) -> None:
        self._table = table
        self._sampler = sampler
        self._proposer = drafting.proposer
        self._learner = drafting.proposer if isinstance(drafting.proposer, Learner) else None
        self._branches = drafting.branches
        self._rejects = drafting.rejects

    def begin(self, sequence: int, row: Row, salt: str) -> None:
        """Tell the proposer of a new sequence, unless it becomes a vector."""
        if row.pool is None:
            self._proposer.begin(sequence, row.tokens, salt)

    def end(self, sequence: int) -> None:
        """Have the proposer forget a sequence that has ended."""
        self._proposer.forget(sequence)

    def lay_out(self, planned: Sequence[RowPlan], notes: StepNotes) -> tuple[list[StepRow], Drafts]:
        """The rows of a step with their drafts, ordered, and the drafts that there is room for."""
        tables = self._table.tables_of(planned)
        return self._branches.lay_out(planned, tables, self._propose(planned, tables, notes))

    def _propose(self, planned: Sequence[RowPlan], tables: Sequence[int], notes: StepNotes) -> Drafts:
        """What may come next in the rows that are to have drafts."""
        started = time.perf_counter()
        # Nothing is drafted where tokens were dropped, and a proposer's positions would not be those of the table.
        placed = [(row, table) for row, table in zip(planned, tables, strict=True) if row.blocks and not row.dropped]
        if placed:
            self._proposer.follow(placed)
        wanted = [
            Wanted(
                sequence=row.sequence,
                depth=row.draft_depth,
                state=self._table.rows[row.sequence].state,
                table=table,
                width=row.draft_width,
                text_only=row.text_only,
            )
            for row, table in zip(planned, tables, strict=True)
            if row.draft_depth
        ]
        if not wanted:
            return {}
        drafts = self._proposer.propose(wanted)
        notes.drafting = time.perf_counter() - started
        return {row.sequence: proposal for row, proposal in zip(wanted, drafts, strict=True)}

    def verify(
        self, rows: Sequence[StepRow], drafts: Drafts, logits: Tensor, states: Sequence[Tensor]
    ) -> list[SampleResult]:
        """The tokens of the rows that sample.

        `logits`, and hidden `states` for a proposer that learns from them, are in the order of `gather_batch`.
        """
        asked = self._asked(rows, drafts)
        results = verify(self._sampler, logits, asked, rejects=self._rejects)
        paths = {row.state.sequence: row.path for row in asked if row.path}
        self._keep_branches(rows, paths)
        if self._learner is not None:
            show(self._learner, rows, states[0], paths)
        for result in results:
            tokens = result.gained.tokens
            if tokens:
                self._table.rows[result.sequence].tokens += tokens
                if self._learner is not None or result.sequence in drafts:
                    self._proposer.observe(result.sequence, len(tokens))
        return results

    def _asked(self, rows: Sequence[StepRow], drafts: Drafts) -> list[DraftedRow]:
        """The rows that sample, with their drafts and where these are among the logits."""
        asked: list[DraftedRow] = []
        # Where drafts are chains, their logits follow one another.
        trees = any(row.before is not None for row in rows)
        places = places_of(rows, [row.logit_rows for row in rows]) if trees else {}
        end = 0
        for row in rows:
            end += row.logit_rows
            if row.before is not None or not row.plan.samples:
                continue
            sequence = row.plan.sequence
            guessed, newest = drafts.get(sequence, NONE), end - 1 - len(row.drafts)
            behind = [places[sequence, draft] for draft in range(len(guessed.tokens))] if trees else None
            asked += [
                DraftedRow(self._table.rows[sample].state, newest, *guessed, rows=behind) for sample in row.plan.samples
            ]
        return asked

    def _keep_branches(self, rows: Sequence[StepRow], paths: Paths) -> None:
        """Where another branch than the likeliest was right, its keys and values are the sequence's."""
        for row in rows:
            if row.before is None:
                continue
            path = paths.get(row.plan.sequence)
            if path and path[-1] in row.drafts:
                newest = row.plan.start - 1 - len(row.before)
                self._branches.keep(row, self._table.rows[row.plan.sequence].table, newest, len(path))


def show(learner: Learner, rows: Sequence[StepRow], states: Tensor, paths: Paths) -> None:
    """Show the learner the states of each row, in whose order they are, up to the last draft that was right."""
    whole = learner.states == "all"
    counts = [row.plan.count if whole else row.logit_rows for row in rows]
    places = places_of(rows, counts)
    end = 0
    for row, count in zip(rows, counts, strict=True):
        end += count
        plan, sequence = row.plan, row.plan.sequence
        if row.before is not None or plan.dropped or not (whole or plan.samples):
            continue
        known = end - len(row.drafts)
        first = end - count if whole else known - 1
        position = plan.start + plan.count - len(row.drafts) - (known - first)
        seen = [*range(first, known), *(places[sequence, draft] for draft in paths.get(sequence, ()))]
        together = seen[-1] - first == len(seen) - 1
        learner.see(sequence, position, states[first : seen[-1] + 1] if together else states[seen])
        for sample in plan.samples:
            if sample != sequence:
                learner.see(sample, plan.start + plan.count - 1, states[known - 1 : known])
