"""Rows that generate: each gets its next token, or what is right of its drafts and one more."""

import time
from collections.abc import Sequence

from torch import Tensor

from penstock.core.plan import RowPlan, SampleResult
from penstock.runtime.handles import StepTimes
from penstock.runtime.rows import Row, RowTable
from penstock.runtime.scoring import Scorer, with_scores
from penstock.runtime.verifying import DraftVerifier
from penstock.sampling.sampler import Sampler
from penstock.stepping.gather import order_rows
from penstock.stepping.model import Model
from penstock.stepping.rows import StepRow


class Generator:
    """Computes logits and chooses tokens from them; with a `verifier`, of drafts too."""

    def __init__(self, table: RowTable, model: Model, sampler: Sampler, verifier: DraftVerifier | None = None) -> None:
        self._table = table
        self._model = model
        self._sampler = sampler
        self._scorer = Scorer(table, sampler)
        self._verifier = verifier

    def compute(self, planned: Sequence[RowPlan], times: StepTimes) -> list[SampleResult]:
        """Results of the rows that sample or score."""
        table, verifier = self._table, self._verifier
        table.place(planned)
        if verifier is None:
            rows = order_rows(table.step_rows(planned))
            logits = self._model.run(table.gather(rows))
            started = time.perf_counter()
            results = self._choose(rows, logits)
        else:
            rows, drafts = verifier.lay_out(planned, times)
            logits, *states = self._model.results(table.gather(rows))
            started = time.perf_counter()
            results = verifier.verify(rows, drafts, logits, states)
        if any(row.scored[1] for row in planned):
            results = with_scores(results, self._scorer.scores(rows, logits))
        times.sampling = time.perf_counter() - started
        return results

    def _choose(self, rows: Sequence[StepRow], logits: Tensor) -> list[SampleResult]:
        """Results of the rows that sample; `logits` are in the order of `gather_batch`."""
        known = self._table.rows
        chosen: list[Row] = []
        places: list[int] = []
        end = 0
        for step_row in rows:
            end += step_row.logit_rows
            for sample in step_row.plan.samples:
                chosen.append(known[sample])
                places.append(end - 1)
        if not chosen:
            return []
        results = []
        gains = self._sampler.sample(logits, [row.state for row in chosen], places)
        for row, gained in zip(chosen, gains, strict=True):
            row.tokens += gained.tokens
            results.append(SampleResult(row.state.sequence, gained))
        return results
