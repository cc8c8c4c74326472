"""Rows that generate: each gets its next token, or what is right of its drafts and one more, or is a beam."""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from penstock.core.plan import RowPlan, SampleResult
from penstock.runtime.beams import BeamSearcher
from penstock.runtime.handles import StepNotes
from penstock.runtime.rows import Row, RowTable
from penstock.runtime.scoring import Scorer, with_scores
from penstock.runtime.verifying import DraftVerifier
from penstock.sampling.sampler import Sampler
from penstock.stepping.gather import order_rows
from penstock.stepping.model import Model, begin
from penstock.stepping.rows import shares


class Generator:
    """Computes logits and chooses tokens from them; with a `verifier`, of drafts too.

    Sources of rows that are not encoded yet are read first, by `reader`.
    """

    def __init__(
        self,
        table: RowTable,
        model: Model,
        sampler: Sampler,
        verifier: DraftVerifier | None = None,
        beams: BeamSearcher | None = None,
        reader: Model | None = None,
    ) -> None:
        """Without `beams`, none of the rows is one."""
        self._table = table
        self._beams = beams
        self._model = model
        self._sampler = sampler
        self._scorer = Scorer(table, sampler)
        self._verifier = verifier
        self._reader = reader

    def begin(self, planned: Sequence[RowPlan], notes: StepNotes) -> Callable[[], list[SampleResult]]:
        """Begin rows; what is returned waits for the results of those that sample or score."""
        self._table.place(planned)
        if self._reader is not None:
            sources = self._table.gather_sources(planned)
            if sources is not None:
                self._reader.results(sources)
        if self._verifier is not None:
            return self._begin_drafted(self._verifier, planned, notes)
        plans = order_rows(planned)
        batch = self._table.gather(plans, self._table.tables_of(plans))
        computed = begin(self._model, batch)

        def finish() -> list[SampleResult]:
            logits, *_ = computed()
            started = time.perf_counter()
            results = self._scored(plans, logits, self._choose(plans, logits, notes))
            notes.sampling = time.perf_counter() - started
            notes.attended = self._table.attended(plans, batch)
            return results

        return finish

    def _choose(self, plans: Sequence[RowPlan], logits: Tensor, notes: StepNotes) -> list[SampleResult]:
        """Results of the rows that sample; `logits` are in the order of `gather_batch`."""
        known = self._table.rows
        searched: list[tuple[RowPlan, int]] = []
        chosen: list[Row] = []
        places: list[int] = []
        end = 0
        for plan in plans:
            first, last = plan.scored
            end += last - first
            if self._beams and plan.samples and plan.sequence in self._beams:
                searched.append((plan, end))
            else:
                for sample in plan.samples:
                    chosen.append(known[sample])
                    places.append(end)
            end += bool(plan.samples)
        results: list[SampleResult] = []
        if self._beams and searched:
            results, notes.beams = self._beams.take(searched, logits)
        if not chosen:
            return results
        gains = self._sampler.sample(logits, [row.state for row in chosen], places)
        for row, gained in zip(chosen, gains, strict=True):
            row.tokens += gained.tokens
            results.append(SampleResult(row.state.sequence, gained))
        return results

    def _begin_drafted(
        self, verifier: DraftVerifier, planned: Sequence[RowPlan], notes: StepNotes
    ) -> Callable[[], list[SampleResult]]:
        """The same with drafts."""
        rows, drafts = verifier.lay_out(planned, notes)
        plans, tables = [row.plan for row in rows], [row.table for row in rows]
        batch = self._table.gather(plans, tables, shared=shares(rows))
        computed = begin(self._model, batch)

        def finish() -> list[SampleResult]:
            logits, *states = computed()
            started = time.perf_counter()
            results = self._scored(plans, logits, verifier.verify(rows, drafts, logits, states))
            notes.sampling = time.perf_counter() - started
            notes.attended = self._table.attended(plans, batch)
            return results

        return finish

    def _scored(self, plans: Sequence[RowPlan], logits: Tensor, results: list[SampleResult]) -> list[SampleResult]:
        """The results with what rows score."""
        if not any(plan.scored[1] for plan in plans):
            return results
        return with_scores(results, self._scorer.scores(plans, logits))
