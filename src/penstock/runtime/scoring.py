"""Rows that score: how likely the prompt's own tokens are."""

from collections.abc import Sequence

from msgspec.structs import replace
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.plan import Gained, RowPlan, SampleResult, failed
from penstock.runtime.rows import RowTable
from penstock.sampling.sampler import Sampler
from penstock.stepping.gather import num_logits

Scores = dict[int, Gained]
"""What sequences have of scores, or why they have none."""


class Scorer:
    """Scores the rows of a step whose plans say so."""

    def __init__(self, table: RowTable, sampler: Sampler) -> None:
        self._table = table
        self._sampler = sampler

    def scores(self, plans: Sequence[RowPlan], logits: Tensor) -> Scores:
        """Those of all rows; `logits` are in the order of `gather_batch`."""
        scores: Scores = {}
        end = 0
        for plan in plans:
            first, end = end, end + num_logits(plan)
            count = plan.scored[1] - plan.scored[0]
            if count:
                scores[plan.sequence] = self._score(plan, logits[first : first + count])
        return scores

    def _score(self, planned: RowPlan, logits: Tensor) -> Gained:
        """How likely the tokens behind the row's scored positions were, `logits` being these positions'."""
        row = self._table.rows[planned.sequence]
        first, end = planned.scored
        try:
            scores = self._sampler.score(logits, row.tokens[first + 1 : end + 1], row.state.params.prompt_logprobs or 0)
        except RowFailed as failure:
            return failed(failure.message)
        return Gained([], prompt_logprobs=scores)


def with_scores(results: Sequence[SampleResult], scores: Scores) -> list[SampleResult]:
    """One result for each sequence that has a token, scores or both; one whose scores failed has failed."""
    left, merged = dict(scores), []
    for result in results:
        scored = left.pop(result.sequence, None)
        if scored is None:
            merged.append(result)
        elif scored.ending is not None:
            merged.append(SampleResult(result.sequence, scored))
        else:
            merged.append(replace(result, gained=replace(result.gained, prompt_logprobs=scored.prompt_logprobs)))
    return [*merged, *(SampleResult(sequence, gained) for sequence, gained in left.items())]
