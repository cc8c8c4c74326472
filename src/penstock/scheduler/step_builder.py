"""A plan in the making, and what its commit has to know of it."""

from dataclasses import dataclass, field

from penstock.core.plan import BeginRow, BlockUpdate, RowPlan, StepPlan, Transfer
from penstock.scheduler.depth import NO_DRAFTS, Tree
from penstock.scheduler.sequence import Sequence

_NOTHING = (0, 0)


@dataclass(slots=True)
class PlannedRow:
    """A planned row, as its commit needs it.

    Attributes:
        sequence: the row's sequence.
        epoch: its sequence's when it was planned.
        end: the position behind it.
        samples: the sequences that get a token from its last position.
        depth: how many tokens may be drafted behind it, one behind the other; text_only: by its text alone.
        encodes: tokens of its source that are encoded before it.
    """

    sequence: Sequence
    epoch: int
    end: int
    samples: tuple[Sequence, ...]
    depth: int = 0
    text_only: bool = False
    encodes: int = 0


@dataclass(slots=True)
class StepBuilder:
    """A plan in the making.

    Attributes:
        number: the plan's.
        budget, scores: positions that may still be computed, and scored; the budget is overdrawn by a long source.
        rows, begin: of the plan so far.
        committed_by: its rows, for the commit.
    """

    number: int
    budget: int
    scores: int
    rows: list[RowPlan] = field(default_factory=list)
    begin: list[BeginRow] = field(default_factory=list)
    committed_by: list[PlannedRow] = field(default_factory=list)

    @property
    def has_prompts(self) -> bool:
        """Whether it computes more of a sequence than its newest token."""
        return any(row.count > 1 or row.encodes for row in self.rows)

    def start(self, sequence: Sequence, forked_from: int | None = None) -> None:
        """A sequence that the executor has not seen before, or a sample of one that it has."""
        request = sequence.request
        self.begin.append(
            BeginRow(
                sequence.id,
                sequence.sample_index,
                [] if forked_from is not None else request.prompt_token_ids,
                request.sampling,
                request.eos_token_ids,
                forked_from,
                request.pooling,
                request.standing.cache_salt,
                request.output,
                request.pooled_from,
                () if forked_from is not None else request.source,
                request.unseen,
                request.second_from,
            )
        )

    def add_again(self, sequence: Sequence, row: RowPlan) -> None:
        """A row for positions that were computed before, which yields nothing."""
        self.rows.append(row)
        self.committed_by.append(PlannedRow(sequence, sequence.epoch, sequence.reserved, ()))
        self.budget -= row.count
        sequence.last_plan = self.number

    def add(
        self,
        sequence: Sequence,
        count: int,
        samples: tuple[Sequence, ...],
        blocks: tuple[BlockUpdate, ...],
        tree: Tree = NO_DRAFTS,
        text_only: bool = False,
        dropped: tuple[int, ...] = (),
        encodes: int = 0,
    ) -> None:
        """A row for the next `count` positions of a sequence, which `samples` get a token from, and for drafts.

        `dropped` and `encodes` are as in the row.
        """
        start = sequence.reserved
        end = start + count
        wanted = (max(start, sequence.extracted), min(end, sequence.to_extract))
        if wanted[0] >= wanted[1]:
            wanted = _NOTHING
        else:
            sequence.extracted = wanted[1]
        text_only = text_only and tree.depth > 0
        pooling = sequence.request.pooling is not None
        scored, pooled = (_NOTHING, wanted) if pooling else (wanted, _NOTHING)
        self.scores -= scored[1] - scored[0]
        self.rows.append(
            RowPlan(
                sequence=sequence.id,
                start=start,
                count=count,
                tokens=sequence.tokens[start:end],
                source=sequence.last_plan if end > len(sequence.tokens) else None,
                samples=tuple(sample.id for sample in samples),
                blocks=blocks,
                draft_depth=tree.depth,
                draft_width=tree.width,
                text_only=text_only,
                scored=scored,
                pooled=pooled,
                dropped=dropped,
                weighed=0 if sequence.bounded is None else sequence.bounded.weighed(start, count),
                encodes=encodes,
            )
        )
        self.committed_by.append(PlannedRow(sequence, sequence.epoch, end, samples, tree.depth, text_only, encodes))
        self.budget -= count + sum(tree) + encodes
        sequence.reserved = end
        sequence.drafting = tree.depth
        sequence.last_plan = self.number
        for sample in samples:
            sample.in_flight += 1

    def plan(self, ended: tuple[int, ...], transfers: tuple[Transfer, ...], *, waits: bool) -> StepPlan:
        """The plan of the step, with what was decided beside it."""
        return StepPlan(self.number, tuple(self.rows), tuple(self.begin), ended, transfers, waits)
