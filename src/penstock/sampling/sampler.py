"""Chooses the next token of every row of a step."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.plan import SampleResult, TokenLogprobs
from penstock.sampling.choice import Choice, Choose, Masks
from penstock.sampling.logprobs import scored_token
from penstock.sampling.native import chooser
from penstock.sampling.noise import Purpose
from penstock.sampling.pipeline import Candidates, Floats
from penstock.sampling.row import GrammarState, RowState

_NONE_LEFT = "No token is left to choose once penalties, logit_bias, min_tokens and the grammar are applied."


class FillMasks(Protocol):
    """What says which tokens grammars allow next."""

    def __call__(self, matchers: Sequence[GrammarState], masks: Masks) -> None:
        """Write one mask for each matcher."""


class Sampler:
    """Samples rows of logits of one vocabulary; it keeps buffers, so one step at a time."""

    def __init__(self, vocab_size: int, choose: Choose | None = None, fill_masks: FillMasks | None = None) -> None:
        """`choose` is the implementation, by default the fastest there is; rows with grammars need `fill_masks`."""
        self._choose = chooser(vocab_size) if choose is None else choose
        self._fill_masks = fill_masks
        self._edited = np.empty((1, vocab_size), np.float32)
        self._masks: Masks = np.empty((0, (vocab_size + 31) // 32), np.uint32)
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
        masks, places = self._masks_of(rows)
        asked = list(zip(rows, logit_index, places, strict=True))
        choices = [row.choice(index, place) for row, index, place in asked if not row.editing]
        together = iter(self._choose(floats, choices, masks))
        results = []
        for row, index, place in asked:
            try:
                chosen = self._edit_and_choose(floats[index], row, masks, place) if row.editing else next(together)
                if not math.isfinite(chosen[1]):
                    nothing_allowed = place >= 0 and math.isfinite(float(floats[index].max()))
                    raise RowFailed(_NONE_LEFT if nothing_allowed else _not_finite(chosen[1]))
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
            [Choice(row, -1, 0, 0.0, 0, 1.0, -math.inf, top, 0, 0, int(Purpose.TOKEN)) for row in range(len(tokens))],
            self._masks[:0],
        )
        scores = []
        for row, token, (_, peak, logprob, top_tokens, top_logprobs) in zip(floats, tokens, found, strict=True):
            if not math.isfinite(peak):
                raise RowFailed(_not_finite(peak))
            scores.append(scored_token(row, token, peak, logprob, top_tokens, top_logprobs))
        return scores

    def guess(self, logits: Tensor, choices: Sequence[Choice]) -> list[int]:
        """One token for each choice, none of which has a mask; 0 where the logits are not finite at their largest."""
        chosen = self._choose(self._as_floats(logits), choices, self._masks[:0])
        return [token if math.isfinite(peak) else 0 for token, peak, *_ in chosen]

    def _masks_of(self, rows: Sequence[RowState]) -> tuple[Masks, list[int]]:
        """The masks of the rows that have a grammar, and for each row the place of its own, -1 for none."""
        matchers: list[GrammarState] = []
        places = []
        for row in rows:
            places.append(-1 if row.grammar is None else len(matchers))
            if row.grammar is not None:
                matchers.append(row.grammar)
        if len(self._masks) < len(matchers):
            self._masks = np.empty((len(rows), self._masks.shape[1]), np.uint32)
        masks = self._masks[: len(matchers)]
        if matchers:
            assert self._fill_masks is not None, "a row has a grammar"
            self._fill_masks(matchers, masks)
        return masks, places

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

    def _edit_and_choose(
        self, logits: Floats, row: RowState, masks: Masks, place: int
    ) -> tuple[int, float, float, list[int], list[float]]:
        """Choose from a copy of the row that the editing steps have changed."""
        peak = float(logits.max())
        if not math.isfinite(peak):
            raise RowFailed(_not_finite(peak))
        edited = self._edited[0]
        np.copyto(edited, logits)
        candidates = Candidates(edited)
        for step in row.editing:
            step.apply(candidates)
        (chosen,) = self._choose(self._edited, [row.choice(0, place)], masks)
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
