"""Which slots go from a full shelf: those of the tenant that has the most for its weight, on a made-up clock."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.shelf_room import Name, ShelfRoom

MOST = 1000
WEIGHTS = (1.0, 1.0, 2.0, 0.5)


def slot(tenant: int, number: int) -> Name:
    return number % 2, bytes([tenant]) * 16 + number.to_bytes(16, "big")


@dataclass
class Shelf:
    """A shelf of MOST bytes with its books, and what should be there: size and time of the last use of each slot."""

    room: ShelfRoom = field(default_factory=ShelfRoom)
    there: dict[Name, tuple[int, int]] = field(default_factory=dict)
    now: int = 0

    def write(self, tenant: int, number: int, size: int) -> list[Name]:
        """Returns those that went."""
        name, weight, gone = slot(tenant, number), WEIGHTS[tenant], []
        self.room.remove(name)
        self.there.pop(name, None)
        while self.room.bytes + size > MOST:
            victim = self.room.first_to_go(name, size, weight)
            assert victim == self.expected(tenant, size)
            self.room.remove(victim)
            del self.there[victim]
            gone.append(victim)
        self.now += 1
        self.room.add(name, size, self.now, weight)
        self.there[name] = size, self.now
        return gone

    def use(self, name: Name) -> None:
        self.now += 1
        assert self.room.use(name, self.now) == (name in self.there)
        if name in self.there:
            self.there[name] = self.there[name][0], self.now

    def bytes_of(self, tenant: int) -> int:
        return sum(size for (_, key), (size, _) in self.there.items() if key[0] == tenant)

    def expected(self, coming: int, size: int) -> Name:
        """By the rule, from what is there."""
        full = {
            tenant: ((self.bytes_of(tenant) + size * (tenant == coming)) / WEIGHTS[tenant], tenant == coming, tenant)
            for tenant in range(len(WEIGHTS))
            if self.bytes_of(tenant)
        }
        fullest = max(full, key=lambda tenant: full[tenant])
        return min((name for name in self.there if name[1][0] == fullest), key=lambda name: self.there[name][1])

    def check(self) -> None:
        assert set(self.room) == set(self.there) and len(self.room) == len(self.there)
        assert self.room.bytes == sum(size for size, _ in self.there.values()) <= MOST


TENANTS = st.integers(0, len(WEIGHTS) - 1)
WRITES = st.tuples(st.just("write"), TENANTS, st.integers(0, 30), st.integers(1, 300))
USES = st.tuples(st.just("use"), TENANTS, st.integers(0, 30), st.just(0))


@given(st.lists(st.one_of(WRITES, USES), max_size=120))
def test_what_goes_is_what_the_rule_says(events: list[tuple[str, int, int, int]]) -> None:
    shelf = Shelf()
    for kind, tenant, number, size in events:
        if kind == "write":
            shelf.write(tenant, number, size)
        else:
            shelf.use(slot(tenant, number))
        shelf.check()


@given(st.lists(st.tuples(TENANTS, st.integers(0, 200), st.integers(1, 40)), max_size=200), TENANTS)
def test_who_has_no_more_than_its_share_loses_nothing(writes: list[tuple[int, int, int]], modest: int) -> None:
    shelf, share = Shelf(), MOST * WEIGHTS[modest] / sum(WEIGHTS)
    for tenant, number, size in writes:
        if tenant == modest and shelf.bytes_of(modest) + size > share:
            continue
        gone = shelf.write(tenant, number, size)
        assert not any(key[0] == modest for _, key in gone)


@given(st.lists(st.integers(1, 40), min_size=60, max_size=200), st.integers(0, 25))
def test_a_flood_leaves_what_another_tenant_has_and_who_is_alone_has_all(flood: list[int], kept: int) -> None:
    shelf = Shelf()
    for number in range(kept):
        shelf.write(0, number, 20)
    for number, size in enumerate(flood):
        shelf.write(1, number, size)
    assert shelf.bytes_of(0) == 20 * kept
    assert shelf.bytes_of(1) >= min(sum(flood), MOST - 20 * kept - 40)


def test_a_tenant_that_comes_later_gets_its_share_from_who_has_more() -> None:
    shelf = Shelf()
    for number in range(20):
        shelf.write(1, number, 50)
    for number in range(20):
        shelf.write(2, number, 50)
    # Its weight is twice that of the other.
    assert (shelf.bytes_of(1), shelf.bytes_of(2)) == (350, 650)
    # And what is left is what was used last.
    assert {key[-1] for _, key in shelf.room if key[0] == 1} == set(range(13, 20))


@pytest.mark.parametrize("size", [MOST, 600])
def test_a_slot_larger_than_its_tenants_share_has_what_others_hold(size: int) -> None:
    shelf = Shelf()
    for number in range(10):
        shelf.write(0, number, 100)
    gone = shelf.write(3, 0, size)
    assert len(gone) == size // 100 and shelf.bytes_of(3) == size


def test_nothing_goes_from_an_empty_shelf() -> None:
    room = ShelfRoom()
    assert room.first_to_go(slot(0, 0), 10) is None and not room.use(slot(0, 0), 1.0) and not room.remove(slot(0, 0))


def test_what_is_kept_goes_when_no_tenant_has_anything_else() -> None:
    """It is kept until 10; the clock is at 5. The tenant with the most has nothing else."""
    room = ShelfRoom()
    for number in range(6):
        room.add(slot(0, number), 100, 10.0 + number)
    room.add(slot(1, 0), 100, 1.0)
    room.add(slot(1, 1), 100, 2.0)
    gone = []
    for now in (5.0, 5.0, 5.0, 12.5, 12.5):
        victim = room.first_to_go(slot(2, 0), 100, now=now)
        assert victim is not None
        room.remove(victim)
        gone.append(victim)
    assert gone == [slot(1, 0), slot(1, 1), slot(0, 0), slot(0, 1), slot(0, 2)]
    assert room.kept(14.0) == {slot(0, 5): 15.0} and room.time_of(slot(0, 5)) == 15.0 and room.time_of(slot(1, 0)) == 0


def test_a_look_at_what_is_there_keeps_later_times_and_weights() -> None:
    room = ShelfRoom()
    room.add(slot(0, 0), 100, 9.0, 4.0)
    room.add(slot(1, 0), 100, 1.0)
    room.begin_with({slot(0, 0): (300, 2.0), slot(1, 0): (100, 3.0), slot(2, 0): (100, 3.0)})
    assert [room.time_of(slot(tenant, 0)) for tenant in range(3)] == [9.0, 3.0, 3.0] and room.bytes == 500
    # 300 bytes with a weight of 4 are less than 100 with 1.
    assert room.first_to_go(slot(3, 0), 1) == slot(2, 0)
