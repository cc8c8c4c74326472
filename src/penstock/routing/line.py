"""The requests that wait for replicas, and whose turn it is: by priority, in one priority by tenant, and of a tenant's
by the time that each has left.

Tenants take turns as in an engine, by the same counters (`scheduler/fairness.py`), whichever models they ask for. What
a request costs is charged at its turn, as far as it is expected, and set right at its end. A request for a model whose
replicas have no room does not hold up others.
"""

import math
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Container

import msgspec

from penstock.scheduler.fairness import OUTPUT_COST, PROMPT_COST, FairCounters

# Seconds with a line after which what was measured counts a third.
_MEMORY_SECONDS = 10.0
# What is measured for less than this says little.
_LEAST_SECONDS = 0.2
# Tenants and models whose paces are remembered.
_MOST_PACES = 1024


class Turn(msgspec.Struct, eq=False, gc=False):
    """A request that wants one.

    Attributes:
        number: in the order of arrival.
        tokens: of its prompt.
        model: that it wants; requests for the same one are answered by the same replicas. None: any.
        tenant, weight: whose it is, and how much of the fleet that one has beside others.
        priority: lower ones come first.
        since, until: when it began to wait, and for how long it may.
        charged: what its tenant was charged for it.
        has_turn: from when it was served until it has ended.
    """

    number: int
    tokens: int
    model: str | None = None
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    since: float = 0.0
    until: float = 0.0
    charged: float = 0.0
    has_turn: bool = False

    def cost(self, output: int) -> float:
        """Of its prompt and a number of tokens of an answer, by its tenant's weight."""
        return (self.tokens * PROMPT_COST + output * OUTPUT_COST) / self.weight


class Pace:
    """How fast a line moves, measured while there is one: at other times nothing is learnt of what replicas can do."""

    def __init__(self) -> None:
        self._seconds = self._turns = 0.0
        self._since: float | None = None
        self._looked = -math.inf

    def look(self, now: float, *, waiting: bool) -> None:
        """Take in the time since the last look, if there was a line; `waiting`: there is one from now on."""
        if self._since is None and now - self._looked > _MEMORY_SECONDS:
            self._seconds = self._turns = 0.0
        if self._since is not None:
            elapsed = max(0.0, now - self._since)
            fading = math.exp(-elapsed / _MEMORY_SECONDS)
            self._seconds = self._seconds * fading + elapsed
            self._turns *= fading
        self._since, self._looked = now if waiting else None, now

    def served(self) -> None:
        """One that waited has had its turn."""
        self._turns += 1

    def per_second(self, now: float) -> float | None:
        """Turns a second; None while too little is known, and where nothing has waited for a while."""
        if self._since is None and now - self._looked > _MEMORY_SECONDS:
            return None
        return self._turns / self._seconds if self._seconds >= _LEAST_SECONDS and self._turns else None


_Lane = tuple[str, str | None]


def _order(turn: Turn) -> tuple[float, int]:
    """Of a tenant's requests for a model: those that may wait for the same time come in the order of arrival."""
    return turn.until, turn.number


class _Class:
    """Those of one priority: what tenants were served, and who waits, by tenant and model, in order."""

    def __init__(self) -> None:
        self.counters = FairCounters()
        self.waiting: dict[_Lane, list[Turn]] = {}

    def first(self, models: Container[str | None]) -> Turn | None:
        heads = (turns[0] for (_, model), turns in self.waiting.items() if model in models)
        return min(heads, key=lambda turn: (*self.counters.rank(turn.tenant), turn.number), default=None)

    def ahead(self, turn: Turn) -> float:
        """How many for its model come before one that comes now: of each tenant what its weight is worth."""
        own = len(self.waiting.get((turn.tenant, turn.model), ())) + 1
        return sum(
            min(len(turns), own * turns[0].weight / turn.weight)
            for (tenant, model), turns in self.waiting.items()
            if model == turn.model and tenant != turn.tenant
        ) + (own - 1)

    def loads(self) -> dict[str, float]:
        """How many of each tenant wait, by its weight."""
        found: dict[str, float] = {}
        for (tenant, _), turns in self.waiting.items():
            found[tenant] = found.get(tenant, 0.0) + len(turns) / turns[0].weight
        return found

    def last(self, tenant: str) -> Turn:
        """The one of a tenant that came last."""
        own = (turn for (name, _), turns in self.waiting.items() if name == tenant for turn in turns)
        return max(own, key=lambda turn: turn.number)


class Line:
    """Times are seconds on a clock of the caller's."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._length = 0
        self._waiting: Counter[str | None | _Lane] = Counter()
        # Of each model, and of each tenant's requests for it.
        self._paces: OrderedDict[str | None | _Lane, Pace] = OrderedDict()
        # Models for which nothing can answer.
        self._still: set[str | None] = set()

    def __len__(self) -> int:
        """How many wait."""
        return self._length

    @property
    def unused(self) -> bool:
        """Whether nothing waits, and nothing that had its turn has yet to end."""
        return not self._classes

    @property
    def models(self) -> set[str | None]:
        """The models for which requests wait."""
        return {model for found in self._classes.values() for _, model in found.waiting}

    def length(self, model: str | None) -> int:
        """How many wait for a model."""
        return self._waiting[model]

    def enter(self, turn: Turn, now: float, until: float = math.inf) -> None:
        """A request begins to wait, at most `until` then."""
        turn.since, turn.until = now, until
        lane = turn.tenant, turn.model
        found = self._classes.setdefault(turn.priority, _Class())
        found.counters.enter(turn.tenant)
        insort(found.waiting.setdefault(lane, []), turn, key=_order)
        self._length += 1
        self._waiting.update((turn.model, lane))
        self._look(turn, now)

    def first(self, models: Container[str | None]) -> Turn | None:
        """The request whose turn it is, of those for models with room; None where there is none."""
        for priority in sorted(self._classes):
            if (turn := self._classes[priority].first(models)) is not None:
                return turn
        return None

    def serve(self, turn: Turn, output: int, now: float) -> None:
        """It has its turn; `output` tokens of an answer are expected."""
        if now > turn.since:
            for pace in self._look(turn, now):
                pace.served()
        counters = self._classes[turn.priority].counters
        counters.admit(turn.tenant)
        self._remove(turn, now)
        turn.charged, turn.has_turn = turn.cost(output), True
        counters.charge(turn.tenant, turn.charged)

    def at_once(self, turn: Turn, output: int, now: float) -> None:
        """One that comes has its turn, since nothing waits for its model: there is no line to learn from."""
        turn.since = now
        counters = self._classes.setdefault(turn.priority, _Class()).counters
        counters.enter(turn.tenant)
        counters.admit(turn.tenant)
        counters.leave(turn.tenant)
        turn.charged, turn.has_turn = turn.cost(output), True
        counters.charge(turn.tenant, turn.charged)

    def leave(self, turn: Turn, now: float) -> None:
        """It waits no more, and had no turn."""
        self._remove(turn, now)
        self._forget(turn.priority)

    def end(self, turn: Turn, output: int | None) -> None:
        """A request that had its turn has ended, with `output` tokens of an answer; None: nothing says how many.

        One that has none, since it waits for another or could not have it, is left as it is.
        """
        if not turn.has_turn:
            return
        turn.has_turn = False
        found = self._classes[turn.priority]
        if output is not None:
            found.counters.charge(turn.tenant, turn.cost(output) - turn.charged)
        found.counters.end(turn.tenant)
        self._forget(turn.priority)

    def ahead(self, turn: Turn) -> float:
        """How many for its model would come before a request that comes now."""
        before = 0.0
        for priority, found in self._classes.items():
            if priority == turn.priority:
                before += found.ahead(turn)
            elif priority < turn.priority:
                before += sum(len(turns) for (_, model), turns in found.waiting.items() if model == turn.model)
        return before

    def worst(self, turn: Turn) -> Turn:
        """Which one is to go where there is no room for one more, beside a request that comes now.

        It is of the lowest class; of that, of the tenant with the most requests by its weight; of these, the last.
        """
        lowest = max((priority for priority, found in self._classes.items() if found.waiting), default=turn.priority)
        found = self._classes.get(lowest)
        if lowest < turn.priority or found is None or not found.waiting:
            return turn
        loads = found.loads()
        largest = max(loads, key=loads.__getitem__)
        if lowest == turn.priority and loads.get(turn.tenant, 0.0) + 1 / turn.weight >= loads[largest]:
            return turn
        return found.last(largest)

    def moves(self, model: str | None, now: float, *, moves: bool) -> None:
        """Whether anything for a model can have its turn at all: while nothing can, nothing is learnt of its pace."""
        if moves == (model not in self._still):
            return
        (self._still.discard if moves else self._still.add)(model)
        for key, pace in self._paces.items():
            if (key[1] if isinstance(key, tuple) else key) == model:
                pace.look(now, waiting=moves and self._waiting[key] > 0)

    def wait(self, turn: Turn, now: float) -> float | None:
        """Seconds until a request that comes now would have its turn; None while too little is known."""
        lane = turn.tenant, turn.model
        whole, own = (self._paces.get(key) for key in (turn.model, lane))
        rate = None if whole is None else whole.per_second(now)
        if rate is None:
            return None
        seconds = (self.ahead(turn) + 1) / rate
        # Others may come and go before it, whose turns are nearer.
        own_rate = None if own is None else own.per_second(now)
        return seconds if own_rate is None else max(seconds, (self._waiting[lane] + 1) / own_rate)

    def seconds(self, model: str | None, now: float) -> float:
        """Until those who wait for a model will have had their turns; 0 while too little is known."""
        pace = self._paces.get(model)
        rate = None if pace is None else pace.per_second(now)
        return self._waiting[model] / rate if rate else 0.0

    def _look(self, turn: Turn, now: float) -> list[Pace]:
        """Bring the paces of a request up to a moment at which something changes."""
        found = []
        for key in (turn.model, (turn.tenant, turn.model)):
            pace = self._paces.setdefault(key, Pace())
            self._paces.move_to_end(key)
            pace.look(now, waiting=turn.model not in self._still and self._waiting[key] > 0)
            found.append(pace)
        while len(self._paces) > _MOST_PACES:
            self._paces.popitem(last=False)
        return found

    def _remove(self, turn: Turn, now: float) -> None:
        found, lane = self._classes[turn.priority], (turn.tenant, turn.model)
        turns = found.waiting[lane]
        del turns[bisect_left(turns, _order(turn), key=_order)]
        if not turns:
            del found.waiting[lane]
        found.counters.leave(turn.tenant)
        self._length -= 1
        for key in (turn.model, lane):
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        if turn.model not in self._waiting:
            self._still.discard(turn.model)
        self._look(turn, now)

    def _forget(self, priority: int) -> None:
        if self._classes[priority].counters.unused:
            del self._classes[priority]
