"""Accepting drafts by chance: output has the target's distribution, though other tokens than without drafts.

Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023, algorithm 1; Chen et al.,
"Accelerating large language model decoding with speculative sampling", 2023, algorithm 2. A draft x that was drawn from
q is kept with probability min(1, p(x) / q(x)), p being the target's distribution there; else a token is drawn from what
p has more than q. Draft, acceptance and what replaces a draft each have random numbers of their own.
"""

import numpy as np

from penstock.sampling.choice import Choice
from penstock.sampling.distribution import Distribution
from penstock.sampling.noise import Purpose, gumbel, position_key, random_word, random_words


def judged(target: Distribution, draft: int, drawn_from: Distribution, choice: Choice) -> int:
    """The token at one position: `draft` where it is kept, else what replaces it, which is another one.

    `choice` says how the target would choose there; its random numbers decide.
    """
    stream = choice.seed, choice.sample_index
    chance = random_word(position_key(*stream, Purpose.ACCEPTANCE, choice.position), draft)
    # A uniform number strictly between 0 and 1; so what the target never says is never kept.
    uniform = 1.0 - (chance + 0.5) * 2.0**-32
    if uniform * drawn_from.of(draft) < target.of(draft):
        return draft
    more = residual(target, drawn_from)
    noise = gumbel(random_words(position_key(*stream, Purpose.RESIDUAL, choice.position), more.ids))
    return int(more.ids[(np.log(more.probabilities) + noise).argmax()])


def residual(target: Distribution, drawn_from: Distribution) -> Distribution:
    """What the target has more than the draft: max(0, p - q), normalized; `target` itself where that is nothing.

    It is nothing where the two are the same but for rounding.
    """
    places = np.searchsorted(drawn_from.ids, target.ids)
    places[places == drawn_from.ids.size] = 0
    both = drawn_from.ids[places] == target.ids
    more = target.probabilities - np.where(both, drawn_from.probabilities[places], 0.0)
    kept = more > 0
    if not kept.any():
        return target
    return Distribution(target.ids[kept], more[kept] / more[kept].sum())
