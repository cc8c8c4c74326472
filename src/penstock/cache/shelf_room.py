"""Which slots have to go from a shelf that is full, so that no tenant's slots push out another's.

It goes from the tenant that has the most bytes for its weight, what it used least recently. So a tenant that has no
more than its share, which is its weight's part of the shelf, loses nothing to others; and while no other tenant wants
the room, one has all of it. This is max-min fairness by water filling (Bertsekas and Gallager, "Data Networks",
section 6.5.2), where the fullest gives.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

TAG_BYTES = 16

Name = tuple[int, bytes]
"""A slot: its group, and its key, which begins with the tag of the tenant whose it is."""


@dataclass(slots=True)
class _Tenant:
    """Bytes of each of its slots, those that were used least recently first, and of all; and its weight."""

    sizes: OrderedDict[Name, int] = field(default_factory=OrderedDict)
    bytes: int = 0
    weight: float = 1.0


class ShelfRoom:
    """The slots of a shelf by their tenants.

    Attributes:
        bytes: of all.
    """

    def __init__(self) -> None:
        self._tenants: dict[bytes, _Tenant] = {}
        self.bytes = 0

    def __iter__(self) -> Iterator[Name]:
        return (name for tenant in self._tenants.values() for name in tenant.sizes)

    def __len__(self) -> int:
        return sum(len(tenant.sizes) for tenant in self._tenants.values())

    def begin_with(self, found: Iterable[tuple[Name, int]]) -> None:
        """These are there, with their bytes, and no others; those that were used least recently are first.

        Weights of tenants that are known stay; others have 1 until they add something.
        """
        weights = {tag: tenant.weight for tag, tenant in self._tenants.items()}
        self._tenants, self.bytes = {}, 0
        for name, size in found:
            self.add(name, size, weights.get(tag_in(name), 1.0))

    def add(self, name: Name, size: int, weight: float = 1.0) -> None:
        """A slot is there, of a tenant of this weight; it was used just now."""
        self.remove(name)
        tenant = self._tenants.setdefault(tag_in(name), _Tenant())
        tenant.weight = weight
        tenant.sizes[name] = size
        tenant.bytes += size
        self.bytes += size

    def use(self, name: Name) -> bool:
        """A slot is used; whether it is there."""
        tenant = self._tenants.get(tag_in(name))
        if tenant is None or name not in tenant.sizes:
            return False
        tenant.sizes.move_to_end(name)
        return True

    def remove(self, name: Name) -> int:
        """A slot is not there any more; how many bytes it had."""
        tenant = self._tenants.get(tag_in(name))
        size = 0 if tenant is None else tenant.sizes.pop(name, 0)
        if tenant is not None and size:
            tenant.bytes -= size
            self.bytes -= size
            if not tenant.sizes:
                del self._tenants[tag_in(name)]
        return size

    def first_to_go(self, coming: Name, size: int, weight: float = 1.0) -> Name | None:
        """What goes before a slot of `size` bytes comes; None where nothing is there.

        Of two tenants with as much for their weights, the one whose slot comes gives.
        """
        own = tag_in(coming)

        def fullness(tag: bytes) -> tuple[float, bool, bytes]:
            tenant = self._tenants[tag]
            if tag == own:
                return (tenant.bytes + size) / weight, True, tag
            return tenant.bytes / tenant.weight, False, tag

        if not self._tenants:
            return None
        return next(iter(self._tenants[max(self._tenants, key=fullness)].sizes))


def tag_in(name: Name) -> bytes:
    """The tag of the tenant whose slot it is, with which its key begins."""
    return name[1][:TAG_BYTES]
