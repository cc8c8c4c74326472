"""Which slots have to go from a shelf that is full, so that no tenant's slots push out another's.

It goes from the tenant that has the most bytes for its weight, what it used least recently. So a tenant that has no
more than its share, which is its weight's part of the shelf, loses nothing to others; and while no other tenant wants
the room, one has all of it. This is max-min fairness by water filling (Bertsekas and Gallager, "Data Networks",
section 6.5.2), where the fullest gives. What is kept until a time goes only where no tenant has anything else.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

TAG_BYTES = 16

Name = tuple[int, bytes]
"""A slot: its group, and its key, which begins with the tag of the tenant whose it is."""


@dataclass(slots=True)
class _Tenant:
    """A tenant's slots, and its weight.

    Attributes:
        slots: bytes of each, and when it was used last, or until when it is kept, where that is later.
        bytes: of all.
        oldest: a heap of these times. Of a slot's entries one has its time; the others are stale.
    """

    slots: dict[Name, tuple[int, float]] = field(default_factory=dict)
    bytes: int = 0
    weight: float = 1.0
    oldest: list[tuple[float, Name]] = field(default_factory=list)

    def note(self, name: Name, size: int, at: float) -> None:
        """A slot of that size has this time."""
        self.slots[name] = size, at
        heapq.heappush(self.oldest, (at, name))
        if len(self.oldest) > 2 * len(self.slots) + 64:
            self.oldest = [(at, name) for name, (_, at) in self.slots.items()]
            heapq.heapify(self.oldest)

    def first(self) -> tuple[float, Name]:
        """The slot with the least time, and that time; there is one."""
        while True:
            at, name = self.oldest[0]
            if name in self.slots and self.slots[name][1] == at:
                return at, name
            heapq.heappop(self.oldest)


class ShelfRoom:
    """The slots of a shelf by their tenants. Times are those of one clock, or numbers that grow.

    Attributes:
        bytes: of all.
    """

    def __init__(self) -> None:
        self._tenants: dict[bytes, _Tenant] = {}
        self.bytes = 0

    def __iter__(self) -> Iterator[Name]:
        return (name for tenant in self._tenants.values() for name in tenant.slots)

    def __len__(self) -> int:
        return sum(len(tenant.slots) for tenant in self._tenants.values())

    def __contains__(self, name: object) -> bool:
        return any(name in tenant.slots for tenant in self._tenants.values())

    def time_of(self, name: Name) -> float:
        """When a slot was used last, or until when it is kept; 0 where it is not there."""
        tenant = self._tenants.get(tag_in(name))
        return 0.0 if tenant is None else tenant.slots.get(name, (0, 0.0))[1]

    def kept(self, now: float) -> dict[Name, float]:
        """Those that are kept beyond `now`, and until when."""
        slots = (item for tenant in self._tenants.values() for item in tenant.slots.items())
        return {name: at for name, (_, at) in slots if at > now}

    def begin_with(self, found: Mapping[Name, tuple[int, float]]) -> None:
        """These are there, with their bytes and times, and no others; later times that are known stay.

        Weights of tenants that are known stay, too; others have 1 until they add something.
        """
        known = {name: self.time_of(name) for name in found}
        weights = {tag: tenant.weight for tag, tenant in self._tenants.items()}
        self._tenants, self.bytes = {}, 0
        for name, (size, at) in found.items():
            self.add(name, size, max(at, known[name]), weights.get(tag_in(name), 0.0))

    def add(self, name: Name, size: int, at: float, weight: float = 0.0) -> None:
        """A slot is there, of a tenant of this weight, with this time; 0: the weight is as it was."""
        tenant = self._tenants.setdefault(tag_in(name), _Tenant())
        before = tenant.slots.get(name, (0, 0.0))[0]
        tenant.weight = weight or tenant.weight
        tenant.bytes += size - before
        self.bytes += size - before
        tenant.note(name, size, at)

    def use(self, name: Name, at: float) -> bool:
        """A slot has this time from now on; whether it is there."""
        tenant = self._tenants.get(tag_in(name))
        if tenant is None or name not in tenant.slots:
            return False
        tenant.note(name, tenant.slots[name][0], at)
        return True

    def remove(self, name: Name) -> int:
        """A slot is not there any more; how many bytes it had."""
        tenant = self._tenants.get(tag_in(name))
        if tenant is None or name not in tenant.slots:
            return 0
        size, _ = tenant.slots.pop(name)
        tenant.bytes -= size
        self.bytes -= size
        if not tenant.slots:
            del self._tenants[tag_in(name)]
        return size

    def first_to_go(self, coming: Name, size: int, weight: float = 0.0, now: float = inf) -> Name | None:
        """What goes before a slot of `size` bytes comes; None where nothing is there.

        Of two tenants with as much for their weights, the one whose slot comes gives.
        """
        own = tag_in(coming)

        def fullness(tag: bytes) -> tuple[bool, float, bool, bytes]:
            tenant = self._tenants[tag]
            gives = tenant.first()[0] <= now
            if tag == own:
                return gives, (tenant.bytes + size) / (weight or tenant.weight), True, tag
            return gives, tenant.bytes / tenant.weight, False, tag

        if not self._tenants:
            return None
        return self._tenants[max(self._tenants, key=fullness)].first()[1]


def tag_in(name: Name) -> bytes:
    """The tag of the tenant whose slot it is, with which its key begins."""
    return name[1][:TAG_BYTES]


def prefix_in(name: Name) -> bytes:
    """The key of the prefix that a slot ends, which is behind the tag."""
    return name[1][TAG_BYTES:]
