"""Chooses the next token of every row of a step."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.plan import SampleResult
from penstock.sampling.draw import TokenDraw
from penstock.sampling.logprobs import token_logprobs
from penstock.sampling.pipeline import Candidates, Floats
from penstock.sampling.row import RowState


class Sampler:
    """Samples rows of logits of one vocabulary; it keeps buffers, so one step at a time."""

    def __init__(self, vocab_size: int) -> None:
        self._draw = TokenDraw(vocab_size)
        self._edited = np.empty(vocab_size, np.float32)
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
        tops = floats.argmax(axis=1)
        peaks = floats[np.arange(len(floats)), tops].tolist()
        top_tokens = tops.tolist()
        results = []
        for row, index in zip(rows, logit_index, strict=True):
            try:
                result = self._sample_row(floats[index], peaks[index], top_tokens[index], row)
            except RowFailed as failure:
                result = SampleResult(row.sequence, [], "error", error=failure.message)
            results.append(result)
        return results

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

    def _sample_row(self, logits: Floats, peak: float, top: int, row: RowState) -> SampleResult:
        # The maximum is NaN where any logit is, so one look at it finds NaN and +infinity.
        if not math.isfinite(peak):
            raise RowFailed(_not_finite(peak))
        if row.editing:
            np.copyto(self._edited, logits)
            logits = self._edited
            candidates = Candidates(logits)
            for step in row.editing:
                step.apply(candidates)
            top = int(logits.argmax())
            peak = float(logits[top])
            if not math.isfinite(peak):
                raise RowFailed("No token is left to choose once penalties, logit_bias and min_tokens are applied.")
        token = top if row.params.greedy else self._choose(logits, peak, row)
        wanted = row.params.logprobs
        logprobs = None if wanted is None else [token_logprobs(logits, peak, token, wanted)]
        finish, reason = row.advance(token)
        return SampleResult(row.sequence, [token], finish, reason, logprobs)

    def _choose(self, logits: Floats, peak: float, row: RowState) -> int:
        params = row.params
        candidates = Candidates(logits, peak)
        # Sorting for top-p is dear, and needed only if the best of all tokens may not be among the survivors.
        if params.top_p < 1.0 and params.top_k <= 0:
            token = self._draw.draw(logits, peak, params.temperature, None, row.key())
            candidates.temperature = params.temperature
            if all(step.surely_keeps(candidates, token) for step in row.narrowing):
                return token
        for step in row.narrowing:
            step.apply(candidates)
        return self._draw.draw(logits, peak, candidates.temperature, candidates.ids, row.key())


def _not_finite(peak: float) -> str:
    if math.isnan(peak):
        return "The model computed NaN for this request's next token; try another dtype or check the weights."
    if peak > 0:
        return "The model computed an infinite logit for this request's next token; try another dtype."
    return "The model gave no token a probability above zero for this request's next token; check the weights."
