"""Rows that become vectors: their hidden states are added up, step by step."""

from collections.abc import Callable, Sequence

from penstock.core.errors import RowFailed
from penstock.core.plan import Gained, RowPlan, SampleResult, failed
from penstock.runtime.pool import Pool
from penstock.runtime.rows import RowTable
from penstock.stepping.gather import order_rows
from penstock.stepping.model import Model


class Pooler:
    """Computes hidden states with the model that `encoder` makes when the first are asked for.

    `vector_of` makes vectors of what is pooled.
    """

    def __init__(self, table: RowTable, encoder: Callable[[], Model], vector_of: Callable[[Pool], bytes]) -> None:
        self._table = table
        self._vector_of = vector_of
        self._make_encoder = encoder
        self._encoder: Model | None = None

    def compute(self, planned: Sequence[RowPlan]) -> list[SampleResult]:
        """Add the rows' hidden states to their vectors; a result for each that is complete, or cannot be."""
        if self._encoder is None:
            self._encoder = self._make_encoder()
        self._table.place(planned)
        ordered = order_rows(planned)
        states = self._encoder.run(self._table.gather(ordered, self._table.tables_of(ordered)))
        results = []
        place = 0
        for plan in ordered:
            row, count = self._table.rows[plan.sequence], plan.pooled[1] - plan.pooled[0]
            assert row.pool is not None, "the row becomes a vector"
            row.pool.add(states[place : place + count])
            place += count
            if count and row.pool.is_complete:
                results.append(self._vector(plan.sequence, row.pool))
        return results

    def _vector(self, sequence: int, pool: Pool) -> SampleResult:
        try:
            return SampleResult(sequence, Gained([], embedding=self._vector_of(pool)))
        except RowFailed as failure:
            return SampleResult(sequence, failed(failure.message))
