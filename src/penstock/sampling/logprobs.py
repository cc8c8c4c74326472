"""Log probabilities of the model's own distribution, before temperature.

Those of an output's tokens come after penalties, biases and masks.
"""

from collections.abc import Sequence

import numpy as np

from penstock.core.plan import TokenLogprobs
from penstock.sampling.pipeline import Floats, best, ranked


def token_logprobs(logits: Floats, peak: float, token: int, top: int) -> TokenLogprobs:
    """Natural log probabilities of `token` and of the `top` most likely tokens, by (probability descending, id).

    `logits` is float32 [V] and `peak` its largest value. Exponentials are float32, their sum and the results float64.
    Masked tokens have no place among the most likely, so the list is shorter where too few are left.
    """
    with np.errstate(over="ignore"):
        weights = np.subtract(logits, np.float32(peak))
    np.exp(weights, out=weights)
    total = peak + float(np.log(weights.sum(dtype=np.float64)))
    order = ranked(logits, best(logits, top)) if top else np.empty(0, np.int64)
    values = logits[order].astype(np.float64)
    possible = values > -np.inf
    return TokenLogprobs(
        token=token,
        logprob=float(logits[token]) - total,
        top_tokens=order[possible].tolist(),
        top_logprobs=(values[possible] - total).tolist(),
    )


def scored_token(
    logits: Floats, token: int, peak: float, logprob: float, top_tokens: Sequence[int], top_logprobs: Sequence[float]
) -> TokenLogprobs:
    """The log probability and rank of a given `token`.

    `logprob` is that of the row's most likely token, whose logit is `peak`; the rest are those of a `Chosen`.
    """
    tops, values = list(top_tokens), list(top_logprobs)
    if token in tops:
        place = tops.index(token)
        return TokenLogprobs(token, values[place], tops, values, place + 1)
    logit = logits[token]
    # Equal logits have equal log probabilities, to the bit.
    own = logprob if logit == peak else float(logit) - (peak - logprob)
    before = np.count_nonzero(logits > logit) + np.count_nonzero(logits[:token] == logit)
    return TokenLogprobs(token, own, tops, values, 1 + int(before))
