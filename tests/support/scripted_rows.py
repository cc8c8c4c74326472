"""What the scripted executor keeps for a sequence, and what must hold of each row that is planned for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cache.held import SequenceBlocks
from penstock.core.kv import GroupSpec, KVSpec
from penstock.core.plan import BeginRow, RowPlan
from support.made_up_model import History

RELEASED = -1


def slots_of(blocks: Sequence[int], width: int) -> list[tuple[int, ...]]:
    """The blocks of each slot together."""
    assert len(blocks) % width == 0, "an update cuts a slot"
    return [tuple(blocks[first : first + width]) for first in range(0, len(blocks), width)]


def slots_written(spec: KVSpec, blocks: SequenceBlocks, row: RowPlan) -> list[int]:
    """The slots of a sequence that a row's positions and drafts go to, over all groups."""
    return [
        slot
        for number, (group, table) in enumerate(zip(spec.groups, blocks.tables, strict=True))
        for slot in (table.slots[indices_of(spec, row, number)] if group.record_interval is None else table.slots[:1])
    ]


def indices_of(spec: KVSpec, row: RowPlan, group: int) -> slice:
    """Where in a group's table the slots of a row's positions and drafts stand, or of the source that it encodes."""
    if spec.groups[group].sees.source:
        return slice(0, -(-row.encodes // spec.block_size))
    start = row.start - dropped_of(row, group)
    return slice(start // spec.block_size, -(-(start + row.count + row.draft_depth) // spec.block_size))


def positions_written(group: GroupSpec, row: RowPlan, end: int) -> range:
    """The positions of a group that a row computes up to `end`, or those of the source that it encodes."""
    return range(row.encodes) if group.sees.source else range(row.start, end)


def dropped_of(row: RowPlan, group: int) -> int:
    """How many of the positions before a row have no slot in a group."""
    return row.dropped[group] if row.dropped else 0


@dataclass
class Row:
    """What the executor keeps for a sequence."""

    begin: BeginRow
    history: History
    prompt_length: int
    tables: list[list[tuple[int, ...]]]
    last_sampled_in: int | None = None
    scored: int = 0
    pooled: int | None = None
    vector: int = 0
    computed: int = 0

    def computes_again(self, row_plan: RowPlan) -> bool:
        """Whether it computes the first tokens anew, as they are at other positions."""
        return bool(row_plan.dropped) and row_plan.start != self.computed

    def first_token(self, row_plan: RowPlan) -> int:
        """Which of the sequence's tokens is the first that is computed."""
        return row_plan.start - (max(row_plan.dropped) if self.computes_again(row_plan) else 0)

    def check_tokens(self, row_plan: RowPlan) -> None:
        """Its tokens are known; those that are not in the plan come from the sequence's newest sample."""
        assert row_plan.count >= 1
        assert row_plan.start + row_plan.count <= len(self.history.tokens), "a token is computed before it is known"
        first = self.first_token(row_plan)
        assert row_plan.tokens == self.history.tokens[first : first + len(row_plan.tokens)]
        if len(row_plan.tokens) < row_plan.count:
            assert row_plan.source is not None and row_plan.source == self.last_sampled_in, "tokens from nowhere"
        else:
            assert row_plan.source is None

    def check_scores(self, row_plan: RowPlan) -> None:
        """Every position but the prompt's last is scored once, in order."""
        first, end = row_plan.scored
        if first == end:
            return
        assert self.begin.sampling.prompt_logprobs is not None, "nobody asked for scores"
        assert self.begin.forked_from is None, "a fork's prompt was scored with its origin's"
        assert row_plan.start <= first < end <= row_plan.start + row_plan.count
        assert first == self.scored and end < self.prompt_length
        self.scored = end

    def check_pooled(self, row_plan: RowPlan) -> None:
        """Every position that is asked for goes into the vector once, in order."""
        first, end = row_plan.pooled
        if first == end:
            return
        assert self.begin.pooling is not None, "nobody asked for a vector"
        assert row_plan.start <= first < end <= row_plan.start + row_plan.count
        if self.pooled is None:
            assert first == (self.prompt_length - 1 if self.begin.pooling == "last" else 0)
        else:
            assert first == self.pooled
        self.pooled = end
