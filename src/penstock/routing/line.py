"""The requests that wait for a replica, and whose turn it is: by priority, and in one priority by tenant.

Tenants take turns as in an engine, by the same counters (`scheduler/fairness.py`). What a request costs is charged at
its turn, as far as it is expected, and set right at its end.
"""

import math
from collections import Counter, OrderedDict

import msgspec

from penstock.scheduler.fairness import OUTPUT_COST, PROMPT_COST, FairCounters

# Seconds with a line after which what was measured counts a third.
_MEMORY_SECONDS = 10.0
# What is measured for less than this says little.
_LEAST_SECONDS = 0.2
# Tenants whose paces are remembered.
_MOST_PACES = 1024


class Turn(msgspec.Struct, eq=False, gc=False):
    """A request that wants one.

    Attributes:
        number: in the order of arrival.
        tokens: of its prompt.
        tenant, weight: whose it is, and how much of the fleet that one has beside others.
        priority: lower ones come first.
        since: when it began to wait.
        charged: what its tenant was charged for it.
    """

    number: int
    tokens: int
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    since: float = 0.0
    charged: float = 0.0

    def cost(self, output: int) -> float:
        """Of its prompt and a number of tokens of an answer, by its tenant's weight."""
        return (self.tokens * PROMPT_COST + output * OUTPUT_COST) / self.weight


class Pace:
    """How fast a line moves, measured while there is one: at other times nothing is learnt of what replicas can do."""

    def __init__(self) -> None:
        self._seconds = self._turns = 0.0
        self._since: float | None = None

    def look(self, now: float, *, waiting: bool) -> None:
        """Take in the time since the last look, if there was a line; `waiting`: there is one from now on."""
        if self._since is not None:
            elapsed = max(0.0, now - self._since)
            fading = math.exp(-elapsed / _MEMORY_SECONDS)
            self._seconds = self._seconds * fading + elapsed
            self._turns *= fading
        self._since = now if waiting else None

    def served(self) -> None:
        """One that waited has had its turn."""
        self._turns += 1

    @property
    def per_second(self) -> float | None:
        """Turns a second; None while too little is known."""
        return self._turns / self._seconds if self._seconds >= _LEAST_SECONDS and self._turns else None


class _Class:
    """Those of one priority: what tenants were served, and who waits, by tenant, in the order of arrival."""

    def __init__(self) -> None:
        self.counters = FairCounters()
        self.waiting: dict[str, dict[int, Turn]] = {}

    def first(self) -> Turn | None:
        heads = (next(iter(turns.values())) for turns in self.waiting.values())
        return min(heads, key=lambda turn: (*self.counters.rank(turn.tenant), turn.number), default=None)

    def ahead(self, turn: Turn) -> float:
        """How many come before one that comes now: of each tenant what its weight is worth beside the own."""
        own = len(self.waiting.get(turn.tenant, ())) + 1
        return sum(
            min(len(turns), own * next(iter(turns.values())).weight / turn.weight)
            for tenant, turns in self.waiting.items()
            if tenant != turn.tenant
        ) + (own - 1)

    def largest(self) -> dict[int, Turn]:
        """Those of the tenant with the most, by its weight."""
        return max(self.waiting.values(), key=_by_weight)


def _by_weight(turns: dict[int, Turn]) -> float:
    return len(turns) / next(iter(turns.values())).weight


class Line:
    """Of one model. Times are seconds on a clock of the caller's."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._length = 0
        # None stands for all tenants.
        self._paces: OrderedDict[str | None, Pace] = OrderedDict({None: Pace()})
        self._waiting: Counter[str] = Counter()
        self._moves = True

    def __len__(self) -> int:
        """How many wait."""
        return self._length

    @property
    def unused(self) -> bool:
        """Whether nothing waits, and nothing that had its turn has yet to end."""
        return not self._classes

    def enter(self, turn: Turn, now: float) -> None:
        """A request begins to wait."""
        turn.since = now
        self._waiting[turn.tenant] += 1
        found = self._classes.setdefault(turn.priority, _Class())
        found.counters.enter(turn.tenant)
        found.waiting.setdefault(turn.tenant, {})[turn.number] = turn
        self._length += 1
        self._look(turn.tenant, now)

    def first(self) -> Turn | None:
        """The request whose turn it is; None where nothing waits."""
        for priority in sorted(self._classes):
            if (turn := self._classes[priority].first()) is not None:
                return turn
        return None

    def serve(self, turn: Turn, output: int, now: float) -> None:
        """It has its turn; `output` tokens of an answer are expected."""
        for pace in self._look(turn.tenant, now):
            if now > turn.since:
                pace.served()
        counters = self._classes[turn.priority].counters
        counters.admit(turn.tenant)
        self._remove(turn, now)
        turn.charged = turn.cost(output)
        counters.charge(turn.tenant, turn.charged)

    def leave(self, turn: Turn, now: float) -> None:
        """It waits no more, and had no turn."""
        self._remove(turn, now)
        self._forget(turn.priority)

    def end(self, turn: Turn, output: int) -> None:
        """A request that had its turn has ended, with `output` tokens of an answer."""
        found = self._classes[turn.priority]
        found.counters.charge(turn.tenant, turn.cost(output) - turn.charged)
        found.counters.end(turn.tenant)
        self._forget(turn.priority)

    def ahead(self, turn: Turn) -> float:
        """How many would come before a request that comes now."""
        return sum(
            found.ahead(turn) if priority == turn.priority else sum(map(len, found.waiting.values()))
            for priority, found in self._classes.items()
            if priority <= turn.priority
        )

    def worst(self, turn: Turn) -> Turn:
        """Which one is to go where there is no room for one more, beside a request that comes now.

        It is of the lowest class; of that, of the tenant with the most requests by its weight; of these, the last.
        """
        lowest = max((priority for priority, found in self._classes.items() if found.waiting), default=turn.priority)
        found = self._classes.get(lowest)
        if lowest < turn.priority or found is None or not found.waiting:
            return turn
        largest = found.largest()
        own = (len(found.waiting.get(turn.tenant, ())) + 1) / turn.weight
        if lowest == turn.priority and own >= _by_weight(largest):
            return turn
        return next(reversed(largest.values()))

    def moves(self, now: float, *, moves: bool) -> None:
        """Whether anything can have its turn at all: while nothing can, nothing is learnt of how fast they come."""
        if self._moves != moves:
            self._moves = moves
            for tenant in self._paces:
                self._paces[tenant].look(now, waiting=self._is_waiting(tenant))

    def wait(self, turn: Turn) -> float | None:
        """Seconds until a request that comes now would have its turn; None while too little is known."""
        rate = self._paces[None].per_second
        if rate is None:
            return None
        seconds = (self.ahead(turn) + 1) / rate
        # Others may come and go before it, whose turns are nearer.
        own = self._paces.get(turn.tenant)
        if own is not None and own.per_second is not None:
            seconds = max(seconds, (self._waiting[turn.tenant] + 1) / own.per_second)
        return seconds

    @property
    def seconds(self) -> float:
        """Until those who wait will have had their turns; 0 while too little is known."""
        rate = self._paces[None].per_second
        return self._length / rate if rate else 0.0

    def _look(self, tenant: str, now: float) -> list[Pace]:
        """Bring the paces up to a moment at which something changes."""
        own = self._paces.setdefault(tenant, Pace())
        self._paces.move_to_end(tenant)
        self._paces.move_to_end(None)
        if len(self._paces) > _MOST_PACES:
            self._paces.popitem(last=False)
        own.look(now, waiting=self._is_waiting(tenant))
        self._paces[None].look(now, waiting=self._is_waiting(None))
        return [own, self._paces[None]]

    def _is_waiting(self, tenant: str | None) -> bool:
        return self._moves and bool(self._length if tenant is None else self._waiting[tenant])

    def _remove(self, turn: Turn, now: float) -> None:
        found = self._classes[turn.priority]
        turns = found.waiting[turn.tenant]
        del turns[turn.number]
        if not turns:
            del found.waiting[turn.tenant]
        found.counters.leave(turn.tenant)
        self._length -= 1
        self._waiting[turn.tenant] -= 1
        if not self._waiting[turn.tenant]:
            del self._waiting[turn.tenant]
        self._look(turn.tenant, now)

    def _forget(self, priority: int) -> None:
        if self._classes[priority].counters.unused:
            del self._classes[priority]
