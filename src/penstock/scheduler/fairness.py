"""Which of several tenants comes next, and how a step's budget is shared out among them.

Virtual token counters as in "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, section 4): what a
tenant was served, by its weight. Of those that wait, the one with the least counter comes next. While two of them
always have waiting requests, what they were served differs by no more than a bound that does not grow with time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.scheduler.pace import LEAST_PROMPT

# A token of output is worth two of prompt, as in the paper: it takes a row of a step for itself.
PROMPT_COST = 1.0
OUTPUT_COST = 2.0
# Where there are several tenants, a step has room for this part of its budget, or for what is worth one.
SHARED_PART = 8
# Tenants without requests whose counters are remembered, in one priority.
MAX_IDLE = 1024


@dataclass(slots=True)
class _Account:
    """A tenant's counter, and how many of its sequences wait for their first turn and were admitted."""

    tenant: str
    counter: float = 0.0
    waiting: int = 0
    admitted: int = 0


class FairCounters:
    """What each tenant of one priority was served, and so whose turn it is.

    An idle tenant keeps its counter, so that it cannot leave behind what it was served beyond others. A tenant that
    comes back is lifted to the least counter of those that wait: no credit is saved up. Idle tenants are not
    remembered for ever. Once the priority has no request left, no tenant is owed anything. Of more than `MAX_IDLE`
    idle tenants the one with the least counter, which would be lifted anyway or owes least, is forgotten.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._waiting: dict[str, _Account] = {}
        self._idle: set[str] = set()
        # A tenant that comes while no tenant waits is lifted to the counter of the last one that waited.
        self._last: _Account | None = None

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def unused(self) -> bool:
        """Whether no tenant has any request."""
        return len(self._idle) == len(self._accounts)

    def counter(self, tenant: str) -> float:
        """What a tenant was served; 0 where it is not known."""
        account = self._accounts.get(tenant)
        return account.counter if account else 0.0

    def enter(self, tenant: str, owed: Callable[[], Mapping[str, float]] = dict) -> None:
        """A request begins to wait for a turn; `owed` says what tenants were charged for but have not got yet."""
        account = self._accounts.setdefault(tenant, _Account(tenant))
        self._idle.discard(tenant)
        if not account.waiting:
            account.counter = max(account.counter, self._floor(owed()))
            self._waiting[tenant] = account
        account.waiting += 1

    def leave(self, tenant: str) -> None:
        """A request waits no more: it was admitted, or ended."""
        account = self._accounts[tenant]
        account.waiting -= 1
        if not account.waiting:
            del self._waiting[tenant]
            self._last = account
        self._forget_idle(tenant)

    def admit(self, tenant: str) -> None:
        """One more sequence was admitted."""
        self._accounts[tenant].admitted += 1

    def end(self, tenant: str) -> None:
        """A sequence that was admitted has ended."""
        self._accounts[tenant].admitted -= 1
        self._forget_idle(tenant)

    def charge(self, tenant: str, cost: float) -> None:
        """Count what a tenant with requests is served; below 0 is what it was charged for and will not get."""
        self._accounts[tenant].counter += cost

    def rank(self, tenant: str) -> tuple[float, int]:
        """The sort key of turns, least first: what the tenant was served, then how many sequences it has admitted."""
        # A tenant that was lifted has the very counter of another. Those with nothing admitted are equal. Then the one
        # that waits longer goes first, so that ever new tenants cannot keep it from its turn.
        account = self._accounts[tenant]
        return account.counter, account.admitted

    def _floor(self, owed: Mapping[str, float]) -> float:
        known = self._waiting.values() or ([self._last] if self._last else ())
        return min((account.counter - owed.get(account.tenant, 0.0) for account in known), default=0.0)

    def _forget_idle(self, tenant: str) -> None:
        account = self._accounts[tenant]
        if account.waiting or account.admitted:
            return
        self._idle.add(tenant)
        if len(self._idle) > MAX_IDLE:
            least = min(self._idle, key=lambda name: (self._accounts[name].counter, name))
            self._idle.remove(least)
            del self._accounts[least]


@dataclass(slots=True)
class Demand:
    """What one tenant's prompts could take of a step.

    Attributes:
        tokens: of its prompts; 0 where it only decodes.
        weight: of the tenant.
        served: what it was served, by its weight.
        first: the tokens that belong to the first of its requests; 0: all of them.
        charged: those of the tokens that `served` counts already, since their requests are in the batch.
    """

    tokens: int = 0
    weight: float = 1.0
    served: float = 0.0
    first: int = 0
    charged: int = 0

    @property
    def wanted(self) -> float:
        """The tokens that are wanted, by the tenant's weight."""
        return self.tokens / self.weight

    @property
    def finish(self) -> float:
        """What it will have been served once its first request has what it wants."""
        return self.served + PROMPT_COST * ((self.first or self.tokens) - self.charged) / self.weight


def share_out(
    budget: int, demands: dict[str, Demand], *, least: int = LEAST_PROMPT, beside: bool = False
) -> dict[str, int]:
    """Shares of `budget` for the prompts of several tenants in one step, by weight.

    A step lasts as long as all that it computes, so those who want least (nothing, where they only decode) are not made
    to wait for all that others could compute besides: it ends with theirs, but has the `least` tokens that are worth a
    step, so that weights are read for many at a time, and room for the shortest prompt where that is short. Where there
    are tenants `beside` them, these are taken to want nothing too: a request of theirs that comes next waits for the
    step's end.

    Shares are max-min fair. But a tenant that wants less than others, and would be through before them all (by finish
    tags, as in weighted fair queueing: Demers et al., "Analysis and simulation of a fair queueing algorithm", SIGCOMM
    1989), leads: it has all it wants. The others have what is left of so short a step, or an eighth as much, so that
    they do not stand still while ever new ones come first. The first tenant's share is at least 1.
    """
    ordered = sorted(demands.items(), key=lambda item: item[1].wanted)
    weights = sum(demand.weight for demand in demands.values())
    shortest = min((demand.first or demand.tokens for demand in demands.values() if demand.tokens), default=0)
    size = max(budget // SHARED_PART, least, shortest if shortest <= LEAST_PROMPT else 0)
    ends_with_least = not beside and ordered[0][1].tokens > 0
    shares: dict[str, int] = {}
    if (leader := _leader(ordered)) is not None:
        demand = demands[leader]
        size = max(size, demand.tokens) if ends_with_least else size
        shares[leader] = min(demand.tokens, size, budget)
        left = min(budget, max(size, shares[leader] + shares[leader] // SHARED_PART)) - shares[leader]
        weights -= demand.weight
    else:
        left = min(budget, max(size, int(ordered[0][1].wanted * weights) if ends_with_least else 0))
    for name, demand in ordered:
        if name == leader:
            continue
        shares[name] = min(demand.tokens, int(left * demand.weight / weights))
        left -= shares[name]
        weights -= demand.weight
    first = next(iter(demands))
    shares[first] = max(shares[first], 1)
    return shares


def _leader(ordered: list[tuple[str, Demand]]) -> str | None:
    """The tenant that wants something, less than others, and would be through before them all."""
    wanting = [(name, demand) for name, demand in ordered if demand.tokens]
    if len(wanting) < 2:
        return None
    (name, least), *others = wanting
    return name if all(least.finish < other.finish for _, other in others) else None
