"""Rows that become vectors: their hidden states are added up, step by step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.core.plan import Gained, RowPlan, SampleResult, failed
from penstock.runtime.pool import Pool
from penstock.runtime.rows import RowTable
from penstock.stepping.gather import order_rows
from penstock.stepping.model import Model, begin

VectorsOf = Callable[[Sequence[Pool]], Sequence[bytes | None]]
_NO_VECTOR = "The model computed no vector of finite length for this text; try another dtype."


class Pooler:
    """Computes hidden states with the model that `encoder` makes when the first are asked for.

    `vectors_of` makes vectors of what is pooled, or None for a text that has none.
    """

    def __init__(self, table: RowTable, encoder: Callable[[], Model], vectors_of: VectorsOf) -> None:
        self._table = table
        self._vectors_of = vectors_of
        self._make_encoder = encoder
        self._encoder: Model | None = None

    def begin(self, planned: Sequence[RowPlan]) -> Callable[[], list[SampleResult]]:
        """Begin rows; what is returned adds their hidden states to their vectors.

        It has a result for each vector that is complete, or cannot be.
        """
        if self._encoder is None:
            self._encoder = self._make_encoder()
        self._table.place(planned)
        ordered = order_rows(planned)
        computed = begin(self._encoder, self._table.gather(ordered, self._table.tables_of(ordered)))
        return lambda: self._pooled(ordered, computed()[0])

    def _pooled(self, ordered: Sequence[RowPlan], computed: Tensor) -> list[SampleResult]:
        """What comes of the hidden states of some rows."""
        # Each of these numbers is one of float32, too.
        states = computed.detach().to(device="cpu", dtype=torch.float32).numpy()
        complete: list[tuple[int, Pool]] = []
        place = 0
        for plan in ordered:
            pool, count = self._table.rows[plan.sequence].pool, plan.pooled[1] - plan.pooled[0]
            assert pool is not None, "the row becomes a vector"
            pool.add(states[place : place + count])
            place += count
            if count and pool.is_complete:
                complete.append((plan.sequence, pool))
        if not complete:
            return []
        vectors = self._vectors_of([pool for _, pool in complete])
        return [
            SampleResult(sequence, failed(_NO_VECTOR) if vector is None else Gained([], embedding=vector))
            for (sequence, _), vector in zip(complete, vectors, strict=True)
        ]
