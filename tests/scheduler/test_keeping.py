"""Prefixes that are kept on request where there is a disk: the promise is the disk's, also after a restart."""

import random
from dataclasses import dataclass, field

import pytest

from penstock.cache.keeps import Keeps
from penstock.cache.shelf_room import prefix_in
from penstock.core.kv import KVSpec
from penstock.core.plan import Shelved
from penstock.core.request import KeptPrefix
from support.made_up_model import kv_spec, made_up_spec
from support.simulation import Disk, Simulation, config, make_request, prompt

SPEC = kv_spec(4, (None,))
LARGE = 1 << 40


def keeping(most_slots: int = LARGE, left: dict[tuple[int, bytes], float] | None = None, spec: KVSpec = SPEC) -> Keeps:
    return Keeps(most_slots * spec.slot_bytes(0), spec.slot_bytes, left)


def kept_for(seconds: float, tokens: int = 28) -> tuple[KeptPrefix, ...]:
    return (KeptPrefix(tokens, seconds),)


def disk_of(simulation: Simulation) -> Keeps:
    keeps = simulation.cache.shelves.ordered[0].keeps
    assert keeps is not None
    return keeps


def test_what_the_disk_keeps_the_pool_does_not() -> None:
    simulation = Simulation(40, config=config(2, 64), disk={}, keeps=keeping(), kept_share=0.25)
    simulation.submit(make_request(0, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    assert simulation.kept[0].now == [28]
    assert (simulation.cache.pool.num_kept, len(disk_of(simulation))) == (0, 7)
    assert set(simulation.executor.kept) == set(simulation.executor.shelves["disk"]) - {
        (0, key) for key in [list(simulation.executor.shelves["disk"])[-1][1]]
    }
    # A quarter of the pool is 10 blocks; others need all of it, and the promise holds.
    simulation.submit(make_request(1, prompt(120, 500), 30))
    simulation.run()
    simulation.submit(make_request(2, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    assert simulation.cached_tokens[2] == 28 and simulation.kept[2].before == 28


def test_until_it_is_written_the_pool_keeps_it_too() -> None:
    class Late(random.Random):
        def random(self) -> float:
            return 0.0

    simulation = Simulation(40, config=config(2, 64), disk={}, keeps=keeping(), kept_share=0.5, late=Late())
    simulation.executor.answers = False
    simulation.submit(make_request(0, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    assert (simulation.cache.pool.num_kept, len(disk_of(simulation))) == (7, 7)
    simulation.executor.answers, simulation.executor.late = True, None
    simulation.submit(make_request(1, prompt(4, 300), 2))
    simulation.run()
    assert (simulation.cache.pool.num_kept, len(disk_of(simulation))) == (0, 7)


def test_what_cannot_be_written_is_kept_in_the_pool() -> None:
    class Failing(random.Random):
        def random(self) -> float:
            return 0.95

    simulation = Simulation(40, config=config(2, 64), disk={}, keeps=keeping(), kept_share=0.5, late=Failing())
    simulation.submit(make_request(0, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    assert (simulation.cache.pool.num_kept, len(disk_of(simulation))) == (7, 0)


def written(simulation: Simulation) -> int:
    return sum(each.target.store == "disk" and not each.keep for plan in simulation.plans for each in plan.transfers)


@pytest.mark.parametrize("sure", [True, False])
def test_what_had_to_go_is_written_again_only_where_it_was_not_kept_yet(sure: bool) -> None:
    """Else the disk would give up for it what else it keeps."""
    disk: Disk = {}
    simulation = Simulation(40, config=config(2, 64), disk=disk, keeps=keeping())
    simulation.submit(make_request(0, prompt(30), 6, keep=kept_for(100.0) if sure else ()))
    simulation.run()
    slots = list(disk)
    before = written(simulation)
    for slot in slots:
        del disk[slot]
    if sure:
        simulation.executor.news += (Shelved("disk", *slot, there=False) for slot in slots)
        simulation.submit(make_request(1, prompt(4, 300), 2))
    else:
        # Its books say that it is there.
        simulation.submit(make_request(1, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    assert written(simulation) - before == (1 if sure else 7)
    assert len(disk_of(simulation)) == (0 if sure else 7)


def test_beyond_the_bound_of_the_disk_the_pool_keeps_it_and_then_nothing() -> None:
    simulation = Simulation(40, config=config(2, 64), disk={}, keeps=keeping(4), kept_share=0.15)
    simulation.submit(make_request(0, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    assert simulation.kept[0].now == [24]
    assert (simulation.cache.pool.num_kept, len(disk_of(simulation))) == (2, 4)


def test_a_conversation_is_kept_with_its_answer_and_only_beyond_the_pool() -> None:
    for disk in (None, {}):
        simulation = Simulation(40, config=config(2, 64), disk=disk, keeps=keeping(), kept_share=0.5)
        simulation.submit(make_request(0, prompt(30), 6, keep_whole=100.0))
        simulation.run()
        assert simulation.cache.pool.num_kept == 0
        if disk is not None:
            assert len(disk_of(simulation)) == 8 and set(simulation.executor.kept) == set(disk)


def test_each_use_counts_anew_and_then_time_is_over() -> None:
    simulation = Simulation(40, config=config(2, 64), disk={}, keeps=keeping())
    simulation.submit(make_request(0, prompt(30), 6, keep=kept_for(100.0)))
    simulation.run()
    first = min(simulation.executor.kept.values())
    simulation.now += 80
    simulation.submit(make_request(1, prompt(22), 2))
    simulation.run()
    used, others = simulation.executor.kept, first
    # 20 tokens were hit.
    assert sorted(until > others + 70 for until in used.values()) == [False] * 2 + [True] * 5
    simulation.now += 50
    simulation.submit(make_request(2, prompt(4, 300), 1))
    simulation.run()
    assert len(disk_of(simulation)) == 5
    simulation.now += 100
    simulation.submit(make_request(3, prompt(4, 300), 1))
    simulation.run()
    assert len(disk_of(simulation)) == disk_of(simulation).bytes == 0


@dataclass
class World:
    """A server with a small pool, its disk, and what it has promised to whom."""

    luck: random.Random
    spec: KVSpec
    most_kept: int
    disk: Disk = field(default_factory=dict)
    now: float = 0.0
    requests: int = 0
    made: int = 0
    conversations: list[list[int]] = field(default_factory=list)
    # By slot: until when it is promised, and for how long again from each use on.
    promises: dict[tuple[int, bytes], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start({})

    def start(self, left: dict[tuple[int, bytes], float]) -> None:
        slow = random.Random(self.luck.random())
        # Late, and never failing.
        slow.random = lambda base=slow.random: 0.9 * base()  # type: ignore[method-assign, misc]
        self.simulation = Simulation(
            # What only the pool keeps, requests that run may take from it where it is small.
            60 if self.most_kept == LARGE else 120,
            spec=self.spec,
            config=config(2, 64),
            disk=self.disk,
            keeps=Keeps(self.most_kept * self.spec.slot_bytes(0), self.spec.slot_bytes, left),
            kept_share=0.25 if self.most_kept == LARGE else 0.125,
            late=slow,
        )
        self.simulation.now = self.now

    def talk(self) -> None:
        """A turn of a conversation that is kept, or is not."""
        number = self.luck.randrange(8)
        if number >= len(self.conversations):
            self.conversations.append(prompt(self.luck.randint(5, 30), 1000 * len(self.conversations)))
            number = len(self.conversations) - 1
        tokens = self.conversations[number] + prompt(self.luck.randint(1, 6), 7 + self.requests)
        if len(tokens) > 90:
            del self.conversations[number]
            return
        seconds = self.luck.choice([20.0, 60.0, 200.0])
        how = self.luck.choice(["marked", "conversation", "not"])
        keep = kept_for(seconds, self.luck.randint(1, len(tokens))) if how == "marked" else ()
        whole = seconds if how == "conversation" else 0.0
        request, self.requests = self.requests, self.requests + 1
        simulation = self.simulation
        asked = simulation.now
        simulation.submit(make_request(request, tokens, 6, keep=keep, keep_whole=whole))
        simulation.run()
        said = [*tokens, *simulation.outputs[request, 0]]
        self.conversations[number] = said
        self.now = simulation.now
        # Of groups with windows and records, the pool sees only that used which is needed.
        for slot in self.slots(said, simulation.cached_tokens[request]):
            if slot[0] == 0 and slot in self.promises and self.promises[slot][0] > asked:
                self.promises[slot][0] = max(self.promises[slot][0], asked + self.promises[slot][1])
        kept = simulation.kept[request].now[0] if keep else 0
        slots = list(filter(self.is_there, self.slots(said, kept)))
        # Of records there is one now and then, and what a window passes soon may never be published.
        assert len(slots) == len(self.slots(said, kept)) or len(self.spec.groups) > 1
        if whole and self.most_kept == LARGE:
            # The last token is known and not computed. Where there is no room for all, nobody is told for how much.
            slots = [slot for slot in self.slots(said, len(said) - 1) if slot in disk_of(simulation)]
        slots = [slot for slot in slots if slot[0] == 0 or self.is_kept(slot)]
        for slot in filter(self.is_there, slots):
            until, before = self.promises.get(slot, (0.0, 0.0))
            longest = max(seconds, before if until > asked else 0.0)
            self.promises[slot] = [max(until, asked + longest), longest]
            self.made += 1

    def slots(self, tokens: list[int], most: int) -> list[tuple[int, bytes]]:
        """The slots of the first tokens, of all groups."""
        chain = self.simulation.cache.open(1 << 40, "").chain
        chain.extend(tokens, most)
        groups = range(len(self.spec.groups))
        return [(group, chain.kept_key(depth)) for depth in range(len(chain)) for group in groups]

    def is_kept(self, slot: tuple[int, bytes]) -> bool:
        block = self.simulation.cache.index.block_of(slot[0], prefix_in(slot))
        in_pool = block is not None and self.simulation.cache.pool.is_kept(block)
        return in_pool or slot in disk_of(self.simulation)

    def is_there(self, slot: tuple[int, bytes]) -> bool:
        """Whether a tier has a slot, or will have it."""
        index, under_way = self.simulation.cache.index, self.simulation.executor._under_way
        if index.block_of(slot[0], prefix_in(slot)) is not None or slot in self.disk:
            return True
        return any((each.group, each.target.key) == slot and not each.keep for each, _ in under_way)

    def evict(self) -> None:
        """The disk makes room: of what is not kept, it may give up anything."""
        executor = self.simulation.executor
        asked = {(each.group, each.target.key) for each, _ in executor._under_way if each.keep}
        free = [slot for slot in self.disk if executor.kept.get(slot, 0.0) <= self.simulation.now and slot not in asked]
        for slot in self.luck.sample(free, len(free) // 2):
            del self.disk[slot]
            executor.news.append(Shelved("disk", *slot, there=False))

    def idle(self) -> None:
        self.now = self.simulation.now = self.now + self.luck.choice([1.0, 15.0, 100.0])

    def restart(self) -> None:
        """What was to be written is, and the next server finds it."""
        executor = self.simulation.executor
        # It ends orderly: nothing of its disk is left undone.
        executor.late = None
        only_here = {slot for slot in self.promises if self.is_kept(slot) and slot not in disk_of(self.simulation)}
        self.simulation.submit(make_request(self.requests, prompt(2, 77), 2))
        self.requests += 1
        self.simulation.run()
        self.now = self.simulation.now
        until = executor.kept
        self.start({slot: at - self.now for slot, at in until.items() if at > self.now and slot in self.disk})
        self.simulation.executor.kept = {slot: at for slot, at in until.items() if slot in self.disk}
        # What only the pool had is lost, and further uses count for what was left.
        self.promises = {slot: each for slot, each in self.promises.items() if until.get(slot, 0.0) > self.now}
        for slot, promise in self.promises.items():
            if slot in only_here:
                promise[0] = min(promise[0], until[slot])
            promise[1] = min(promise[1], max(0.0, until[slot] - self.now))

    def check(self) -> None:
        """Before its time, a slot is in some tier, or on its way there."""
        for slot, (until, _) in self.promises.items():
            if until > self.simulation.now:
                assert self.is_there(slot), f"{slot} is promised until {until}, and gone at {self.simulation.now}"
        assert self.simulation.cache.pool.num_kept <= 15


@pytest.mark.parametrize("most_kept", [LARGE, 12])
@pytest.mark.parametrize("seed", range(25))
def test_what_is_promised_is_found_before_its_time(seed: int, most_kept: int) -> None:
    luck = random.Random(seed)
    spec = luck.choice([SPEC, kv_spec(4, (None, 5)), made_up_spec(4, 8)])
    world = World(luck, spec, most_kept)
    for _ in range(40):
        luck.choices([world.talk, world.evict, world.idle, world.restart], [6, 3, 2, 1])[0]()
        world.check()
    assert world.made, "nothing was promised"
    # Then its time is over, and nothing is held back any more.
    for _ in range(2):
        world.talk()
        world.simulation.now += 1000.0
    world.simulation.submit(make_request(world.requests, prompt(3, 55), 1))
    world.simulation.run()
    assert len(disk_of(world.simulation)) == world.simulation.cache.pool.num_kept == 0
