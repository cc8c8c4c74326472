"""Rows that generate: each gets its next token, or what is right of its drafts and one more."""

import time
from collections.abc import Sequence

from torch import Tensor

from penstock.core.plan import RowPlan, SampleResult
from penstock.runtime.handles import StepTimes
from penstock.runtime.rows import RowTable
from penstock.runtime.scoring import Scorer, with_scores
from penstock.runtime.verifying import DraftVerifier
from penstock.sampling.sampler import Place, Sampler, take
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
        known = self._table.rows
        places: list[Place] = []
        end = 0
        for row in rows:
            end += row.logit_rows
            for sample in row.plan.samples:
                places.append(Place(known[sample].state, end - 1))
        chosen = self._sampler.choose(logits, places) if places else ()
        results = [take(place.row, one) for place, one in zip(places, chosen, strict=True)]
        for result in results:
            known[result.sequence].tokens += result.tokens
        return results
