"""Chooses the next token of every row of a step."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.plan import SampleResult, TokenLogprobs
from penstock.sampling.choice import Choice, Choose
from penstock.sampling.logprobs import scored_token
from penstock.sampling.native import chooser
from penstock.sampling.noise import Purpose
from penstock.sampling.pipeline import Candidates, Floats
from penstock.sampling.row import RowState

_NONE_LEFT = "No token is left to choose once penalties, logit_bias and min_tokens are applied."


class Sampler:
    """Samples rows of logits of one vocabulary; it keeps buffers, so one step at a time."""

    def __init__(self, vocab_size: int, choose: Choose | None = None) -> None:
        """`choose` is the implementation, by default the fastest that there is."""
        self._choose = chooser(vocab_size) if choose is None else choose
        self._edited = np.empty((1, vocab_size), np.float32)
        self._floats = torch.empty(0, vocab_size, dtype=torch.float32)

    def sample(self, logits: Tensor, rows: Sequence[RowState], logit_index: Sequence[int]) -> list[SampleResult]:
        """Choose one token for each row and advance the row's state.

        Args:
            logits: [S, V] in bfloat16, float16 or float32, on any device; never written to.
            rows: states of the sequences, in any order.
            logit_index: for each row, which row of `logits` is its own; samples of one prompt may share one.

        Returns:
            One result for each row, in order. Where a row's logits are not finite at their largest, or no token is
            left, its result has finish "error" and its state stays as it was; the others are not affected.
        """
        floats = self._as_floats(logits)
        pairs = list(zip(rows, logit_index, strict=True))
        together = iter(self._choose(floats, [row.choice(index) for row, index in pairs if not row.editing]))
        results = []
        for row, index in pairs:
            try:
                chosen = self._edit_and_choose(floats[index], row) if row.editing else next(together)
                if not math.isfinite(chosen[1]):
                    raise RowFailed(_not_finite(chosen[1]))
                results.append(_advance(row, *chosen))
            except RowFailed as failure:
                results.append(SampleResult(row.sequence, [], "error", error=failure.message))
        return results

    def score(self, logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
        """How likely each of `tokens` is by its row of `logits` alone, with the `top` most likely ones beside it.

        Raises RowFailed where the logits are not finite at their largest.
        """
        floats = self._as_floats(logits)
        # At temperature 0 the most likely token is chosen, whatever the seed, and its log probability is what the
        # others' follow from.
        found = self._choose(
            floats,
            [Choice(row, 0, 0.0, 0, 1.0, -math.inf, top, 0, 0, int(Purpose.TOKEN)) for row in range(len(tokens))],
        )
        scores = []
        for row, token, (_, peak, logprob, top_tokens, top_logprobs) in zip(floats, tokens, found, strict=True):
            if not math.isfinite(peak):
                raise RowFailed(_not_finite(peak))
            scores.append(scored_token(row, token, peak, logprob, top_tokens, top_logprobs))
        return scores

    def _as_floats(self, logits: Tensor) -> Floats:
        """The logits as float32 in host memory, without a copy where they are that already."""
        if logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.is_contiguous():
            view: Floats = logits.detach().numpy()
            return view
        if len(self._floats) < len(logits):
            self._floats = torch.empty(logits.shape, dtype=torch.float32)
        target = self._floats[: len(logits)]
        target.copy_(logits.detach())
        converted: Floats = target.numpy()
        return converted

    def _edit_and_choose(self, logits: Floats, row: RowState) -> tuple[int, float, float, list[int], list[float]]:
        """Choose from a copy of the row that the editing steps have changed."""
        peak = float(logits.max())
        if not math.isfinite(peak):
            raise RowFailed(_not_finite(peak))
        edited = self._edited[0]
        np.copyto(edited, logits)
        candidates = Candidates(edited)
        for step in row.editing:
            step.apply(candidates)
        (chosen,) = self._choose(self._edited, [row.choice(0)])
        if not math.isfinite(chosen[1]):
            raise RowFailed(_NONE_LEFT)
        return chosen


def _advance(
    row: RowState, token: int, peak: float, logprob: float, top_tokens: list[int], top_logprobs: list[float]
) -> SampleResult:
    """Give the row its token; the fields after `row` are those of `Chosen`."""
    logprobs = None
    if row.params.logprobs is not None:
        logprobs = [TokenLogprobs(token, logprob, top_tokens, top_logprobs)]
    finish, reason = row.advance(token)
    return SampleResult(row.sequence, [token], finish, reason, logprobs)


def _not_finite(peak: float) -> str:
    if math.isnan(peak):
        return "The model computed NaN for this request's next token; try another dtype or check the weights."
    if peak > 0:
        return "The model computed an infinite logit for this request's next token; try another dtype."
    return "The model gave no token a probability above zero for this request's next token; check the weights."
