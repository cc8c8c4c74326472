"""How long answers will be, as far as those that a tenant has had tell."""

from collections import OrderedDict
from math import ceil, sqrt

# The factor by which an answer counts less with each later one, and the tenants that are remembered.
_FADING = 0.98
_MOST_TENANTS = 10_000
# Four answers of 512 tokens, as if there had been these before all others: sums of weights, tokens and their squares.
_PRIOR = 4.0, 4 * 512.0, 4 * 512.0**2
# Standard deviations above the mean: what is not used is given back, and what is used beyond is over the bound.
_DEVIATIONS = 2.0


class AnswerLengths:
    """Mean and deviation of the answers of each tenant. The recent ones count more."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, tuple[float, float, float]] = OrderedDict()

    def observe(self, tenant: str, tokens: int) -> None:
        """An answer has ended with these tokens."""
        weight, total, squares = self._tenants.pop(tenant, _PRIOR)
        self._tenants[tenant] = weight * _FADING + 1, total * _FADING + tokens, squares * _FADING + tokens * tokens
        if len(self._tenants) > _MOST_TENANTS:
            self._tenants.popitem(last=False)

    def expect(self, tenant: str, most: int | None) -> int:
        """Tokens that an answer is unlikely to exceed; no more than the `most` that it may have."""
        weight, total, squares = self._tenants.get(tenant, _PRIOR)
        mean = total / weight
        expected = ceil(mean + _DEVIATIONS * sqrt(max(0.0, squares / weight - mean * mean)))
        return expected if most is None else min(expected, most)
