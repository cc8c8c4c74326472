"""How much of a step's budget each tenant's prompts may have."""

from collections.abc import Iterable

from penstock.scheduler.fairness import Demand, share_out
from penstock.scheduler.queue import WaitingQueue
from penstock.scheduler.sequence import Sequence


class Allowances:
    """What is left to the prompts of each tenant in one step.

    Within one priority, tenants share the tokens that earlier priorities leave. Within one tenant, and between
    priorities, the first sequence takes all that it can. So nothing is bounded where there is one tenant.
    """

    def __init__(
        self, budget: int, demands: Iterable[tuple[Sequence, int]], waiting: WaitingQueue, *, least: int
    ) -> None:
        """`demands`: how many prompt tokens each sequence could compute; those that could compute any come first.

        Where tenants share it, the `least` tokens of prompts are worth a step.

        `waiting` knows how many tenants a priority has, in the step or not, and what they were served.
        """
        self._left: dict[int, dict[str, int]] = {}
        by_priority: dict[int, dict[str, Demand]] = {}
        for sequence, tokens in demands:
            standing = sequence.request.standing
            tenants = by_priority.setdefault(standing.priority, {})
            if standing.tenant not in tenants:
                tenants[standing.tenant] = Demand(weight=standing.weight, served=waiting.served(sequence))
            demand = tenants[standing.tenant]
            demand.first = demand.first or tokens
            demand.tokens += tokens
            demand.charged += tokens if sequence.admitted else 0
        for priority, tenants in sorted(by_priority.items()):
            known = waiting.tenants(priority)
            if known > 1:
                self._left[priority] = share_out(max(0, budget), tenants, least=least, beside=known > len(tenants))
            budget -= sum(demand.tokens for demand in tenants.values())

    def of(self, sequence: Sequence, most: int) -> int:
        """What its prompt may have, up to `most`; a tenant without a share waits for the next step."""
        standing = sequence.request.standing
        shares = self._left.get(standing.priority)
        return most if shares is None else min(most, shares.get(standing.tenant, 0))

    def take(self, sequence: Sequence, tokens: int) -> None:
        """Take `tokens` of its tenant's share."""
        standing = sequence.request.standing
        shares = self._left.get(standing.priority)
        if shares is not None:
            shares[standing.tenant] = shares.get(standing.tenant, 0) - tokens
