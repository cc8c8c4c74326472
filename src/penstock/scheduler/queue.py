"""The order of the sequences that wait, and of those that run."""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, zip_longest

from penstock.scheduler.fairness import OUTPUT_COST, PROMPT_COST, FairCounters
from penstock.scheduler.sequence import NO_STAMP, Sequence


class OrderedQueue:
    """Sequences in total order (priority, stamp, sample); a preempted one returns to its old place."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence at its place in the order."""
        insort(self._sequences, sequence, key=lambda member: member.order)

    def remove(self, sequence: Sequence) -> None:
        """Take it out, wherever it is."""
        self._sequences.remove(sequence)

    def first(self) -> Sequence:
        """The one that comes before all others."""
        return self._sequences[0]

    def last(self) -> Sequence:
        """The one that comes after all others."""
        return self._sequences[-1]

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)


class _Priority:
    """Those of one priority who wait, and what its tenants were served.

    Attributes:
        returning: they were admitted before, or forked from one that was.
        new: they wait for their first turn, by tenant; a tenant's own in the order in which they came.
    """

    def __init__(self) -> None:
        self.counters = FairCounters()
        self.returning = OrderedQueue()
        self.new: dict[str, dict[int, Sequence]] = {}

    def first(self) -> Sequence | None:
        """The sequence that comes first."""
        candidates = [self.returning.first()] if len(self.returning) else []
        if self.new:
            candidates.append(min(self._heads(), key=self._rank))
        return min(candidates, key=lambda sequence: sequence.order, default=None)

    def firsts(self) -> list[Sequence]:
        """See `WaitingQueue.firsts`."""
        return [*self.returning, *sorted(self._heads(), key=self._rank)]

    def seconds(self) -> Iterator[Sequence]:
        """See `WaitingQueue.seconds`."""
        others = (islice(queue.values(), 1, None) for queue in self.new.values())
        for turn in zip_longest(*others):
            yield from (sequence for sequence in turn if sequence is not None)

    def _heads(self) -> Iterator[Sequence]:
        return (next(iter(queue.values())) for queue in self.new.values())

    def turns(self) -> Iterator[Sequence]:
        """All of them, in turn; counters may change, and a sequence that was given may be taken out in between."""
        returning = deque(self.returning)
        new = {tenant: deque(queue.values()) for tenant, queue in self.new.items()}
        while returning or new:
            turn = min((queue[0] for queue in new.values()), key=self._rank, default=None)
            if turn is None or (returning and returning[0].order < turn.order):
                yield returning.popleft()
                continue
            tenant = turn.request.standing.tenant
            new[tenant].popleft()
            if not new[tenant]:
                del new[tenant]
            yield turn

    def _rank(self, sequence: Sequence) -> tuple[float, int, int]:
        return (*self.counters.rank(sequence.request.standing.tenant), sequence.id)

    def __len__(self) -> int:
        return len(self.returning) + sum(map(len, self.new.values()))

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.returning
        for queue in self.new.values():
            yield from queue.values()


class WaitingQueue:
    """The sequences that wait, by priority; in one priority, tenants take turns as their counters say.

    A sequence gets its stamp, and with it its place in the total order, at its first turn: when it is admitted, or when
    others are let past it. From then on it comes before all who have none, so that those who were preempted return
    before a new one is let in.
    """

    def __init__(self) -> None:
        self._priorities: dict[int, _Priority] = {}
        self._next_stamp = 0
        # Two tenants that were ever here. Where there have been several, others are reckoned with.
        self._tenants: set[str] = set()

    # They come and go.

    def add(self, sequence: Sequence, owed: Callable[[int], Mapping[str, float]] = lambda priority: {}) -> None:
        """A new request, or a sequence that was admitted before and returns to its old place.

        `owed` says what tenants of a priority were charged for and have not got yet.
        """
        priority = self._priorities.setdefault(sequence.order[0], _Priority())
        if sequence.admitted:
            priority.returning.add(sequence)
            return
        tenant = sequence.request.standing.tenant
        if len(self._tenants) < 2:
            self._tenants.add(tenant)
        priority.new.setdefault(tenant, {})[sequence.id] = sequence
        priority.counters.enter(tenant, lambda: owed(sequence.order[0]))

    def admit(self, sequence: Sequence) -> None:
        """Take out one whose turn it is."""
        priority = self._priorities[sequence.order[0]]
        if sequence.admitted:
            priority.returning.remove(sequence)
            return
        self.pass_over(sequence)
        self.join(sequence)
        self._remove_new(sequence)

    def pass_over(self, sequence: Sequence) -> None:
        """Its turn has come, whatever comes of it: it gets its place in the total order, unless it has one."""
        if sequence.order[1] == NO_STAMP:
            sequence.order = (sequence.order[0], self._next_stamp, sequence.order[2])
            self._next_stamp += 1

    def join(self, sequence: Sequence) -> None:
        """Count it as admitted; a fork is by its parent's turn."""
        sequence.admitted = True
        self._priorities[sequence.order[0]].counters.admit(sequence.request.standing.tenant)

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended, wherever it is: it waits no more, and its tenant has one less."""
        priority = self._priorities[sequence.order[0]]
        if not sequence.admitted:
            self._remove_new(sequence)
        else:
            if sequence in priority.returning:
                priority.returning.remove(sequence)
            priority.counters.end(sequence.request.standing.tenant)
        if priority.counters.unused:
            del self._priorities[sequence.order[0]]

    def _remove_new(self, sequence: Sequence) -> None:
        priority, tenant = self._priorities[sequence.order[0]], sequence.request.standing.tenant
        del priority.new[tenant][sequence.id]
        if not priority.new[tenant]:
            del priority.new[tenant]
        priority.counters.leave(tenant)

    # What they are charged.

    def charge(self, sequence: Sequence, *, prompt: int = 0, output: int = 0) -> None:
        """Charge its tenant for `prompt` and `output` tokens that the sequence has not been charged for yet."""
        if prompt or output:
            standing = sequence.request.standing
            cost = (prompt * PROMPT_COST + output * OUTPUT_COST) / standing.weight
            self._priorities[sequence.order[0]].counters.charge(standing.tenant, cost)

    # Whose turn it is.

    def first(self) -> Sequence:
        """The one whose turn it is."""
        firsts = (self._priorities[priority].first() for priority in sorted(self._priorities))
        return next(sequence for sequence in firsts if sequence is not None)

    def firsts(self, priority: int) -> list[Sequence]:
        """Those of one priority who return, and of each tenant the first who is new, in turn."""
        found = self._priorities.get(priority)
        return found.firsts() if found else []

    def seconds(self, priority: int) -> Iterator[Sequence]:
        """The others of that priority: the second of each tenant, the third, and so on."""
        found = self._priorities.get(priority)
        return found.seconds() if found else iter(())

    @property
    def shared(self) -> bool:
        """Whether there were ever several tenants."""
        return len(self._tenants) > 1

    def tenants(self, priority: int) -> int:
        """How many tenants to reckon with in that priority: those it knows, and at least 2 once there were several."""
        found = self._priorities.get(priority)
        return max(len(self._tenants), len(found.counters) if found is not None else 0)

    def served(self, sequence: Sequence) -> float:
        """What a sequence's tenant was served, by its weight."""
        return self._priorities[sequence.order[0]].counters.counter(sequence.request.standing.tenant)

    def turns(self) -> Iterator[Sequence]:
        """All of them, in turn. Each one is admitted or passed over before the next is asked for."""
        for priority in sorted(self._priorities):
            yield from self._priorities[priority].turns()

    def __bool__(self) -> bool:
        return any(priority.new or len(priority.returning) for priority in self._priorities.values())

    def __len__(self) -> int:
        return sum(map(len, self._priorities.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for priority in self._priorities.values():
            yield from priority
