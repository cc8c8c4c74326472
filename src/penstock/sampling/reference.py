"""Choosing tokens in numpy: what the native kernels mean, and what stands in for them where there are none."""

import math
from collections.abc import Sequence

import numpy as np

from penstock.sampling.choice import Choice, Chosen, Masks, bits_of
from penstock.sampling.draw import TokenDraw
from penstock.sampling.logprobs import token_logprobs
from penstock.sampling.noise import Purpose, position_key
from penstock.sampling.pipeline import Candidates, Floats, narrowing_steps


class Reference:
    """Chooses tokens from rows of up to `vocab_size` logits, in buffers of its own; not for concurrent use."""

    def __init__(self, vocab_size: int) -> None:
        self._draw = TokenDraw(vocab_size)
        self._allowed = np.empty(vocab_size, np.float32)

    def choose(self, logits: Floats, choices: Sequence[Choice], masks: Masks) -> list[Chosen]:
        """One token for each choice, in order, from `logits` [S, V], float32 and contiguous."""
        return [self._choose_one(self._masked(logits[choice.row], choice, masks), choice) for choice in choices]

    def _masked(self, logits: Floats, choice: Choice, masks: Masks) -> Floats:
        if choice.mask < 0:
            return logits
        bits = bits_of(masks[choice.mask], logits.size)
        allowed = self._allowed[: logits.size]
        np.copyto(allowed, logits)
        # NaN stays, since it says that the whole row is broken.
        allowed[~bits & ~np.isnan(logits)] = -np.inf
        return allowed

    def _choose_one(self, logits: Floats, choice: Choice) -> Chosen:
        token = int(logits.argmax())
        # The maximum is NaN where any logit is, so one look at it finds NaN and +infinity.
        peak = float(logits[token])
        if not math.isfinite(peak):
            return Chosen(token, peak, 0.0, [], [])
        if choice.temperature > 0.0:
            token = self._sample(logits, peak, choice)
        if choice.logprobs < 0:
            return Chosen(token, peak, 0.0, [], [])
        found = token_logprobs(logits, peak, token, choice.logprobs)
        return Chosen(token, peak, found.logprob, found.top_tokens, found.top_logprobs)

    def _sample(self, logits: Floats, peak: float, choice: Choice) -> int:
        key = position_key(choice.seed, choice.sample_index, Purpose(choice.purpose), choice.position)
        steps = narrowing_steps(choice)
        candidates = Candidates(logits, peak)
        # Sorting for top-p is dear, and needed only if the best of all tokens may not be among the survivors.
        if choice.top_p < 1.0 and choice.top_k == 0:
            token = self._draw.draw(logits, peak, choice.temperature, None, key)
            candidates.temperature = choice.temperature
            if all(step.surely_keeps(candidates, token) for step in steps):
                return token
        for step in steps:
            step.apply(candidates)
        return self._draw.draw(logits, peak, candidates.temperature, candidates.ids, key)
