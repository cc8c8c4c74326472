"""The KV cache against a naive model, under random operations in random order.

The model keeps the content of every slot. A sequence must read its own KV through its block tables at any time, nobody
may write what another can read, and blocks that an outstanding plan touches are not given to anybody else.
"""

import hashlib
import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from penstock.cache.chain import PrefixNode
from penstock.cache.manager import KVCache, SequenceBlocks
from penstock.cache.swap import SwappedBlocks, SwapSpace
from support.scripted import RELEASED, History, first_visible, kv_spec

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def short_hash(parent: bytes, tokens: bytes) -> bytes:
    """Two bits: everything collides with something."""
    return bytes([hashlib.blake2b(parent + tokens, digest_size=1).digest()[0] & 3])


@dataclass(eq=False)
class Modelled:
    """A sequence as the model knows it."""

    blocks: SequenceBlocks
    salt: str
    history: History
    computed: int = 0
    last_plan: int | None = None
    epoch: int = 0
    alive: bool = True
    swapped: SwappedBlocks | None = None
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class Outstanding:
    """A plan that has not committed: what to publish then, and the blocks it touches."""

    number: int
    sequence: Modelled
    epoch: int
    end: int
    touched: set[int]
    fails: bool = False


class CacheMachine(RuleBasedStateMachine):
    """Allocate, append, fork, free, evict, abort, preempt, swap and publish."""

    sequences = Bundle("sequences")

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        windows=st.sampled_from([(None,), (3,), (None, 5), (2, None, 7)]),
        num_blocks=st.integers(2, 40),
        collide=st.booleans(),
        caching=st.sampled_from([True, True, True, False]),
        kept_share=st.sampled_from([0.0, 0.3, 1.0]),
        swap_blocks=st.integers(1, 20),
    )
    def start(
        self,
        block_size: int,
        windows: tuple[int | None, ...],
        num_blocks: int,
        collide: bool,
        caching: bool,
        kept_share: float,
        swap_blocks: int,
    ) -> None:
        self.spec = kv_spec(block_size, windows)
        self.cache = KVCache(
            self.spec,
            num_blocks,
            key_of=short_hash if collide else None,
            prefix_caching=caching,
            kept_share=kept_share,
        )
        self.swap = SwapSpace(self.cache, swap_blocks)
        self.host: list[list[int | None]] = [[None] * block_size for _ in range(swap_blocks)]
        self.now = 0.0
        self.memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.alive: list[Modelled] = []
        self.outstanding: deque[Outstanding] = deque()
        self.done: Counter[str] = Counter()
        self.next_sequence = 0
        self.next_plan = 0

    # What happens to sequences.

    @rule(target=sequences, prompt=TOKENS, salt=st.sampled_from(["", "", "salt"]))
    def open(self, prompt: list[int], salt: str) -> Modelled:
        history = History(len(self.spec.groups))
        history.extend(prompt)
        sequence = Modelled(self.cache.open(self.next_sequence, salt), salt, history)
        self.next_sequence += 1
        self.forget_table(sequence)
        self.alive.append(sequence)
        return sequence

    @rule(sequence=sequences, shorter=st.booleans())
    def attach(self, sequence: Modelled, shorter: bool) -> None:
        if not sequence.alive or sequence.computed or sequence.last_plan is not None or any(sequence.blocks.tables):
            return
        known = sequence.history.tokens
        hit = self.cache.longest_hit(sequence.blocks, known)
        if shorter:
            hit = self.cache.shorten_hit(sequence.blocks, max(0, hit - 1))
        free = self.cache.pool.num_free
        self.forget_copy(sequence)
        cached = self.cache.attach_prefix(sequence.blocks, hit, len(known))
        assert cached == min(hit * self.spec.block_size, len(known) - 1)
        assert self.cache.pool.num_free == free, "a hit takes no new blocks"
        sequence.computed = cached
        self.done["hit"] += cached > 0

    @rule(sequence=sequences, tokens=st.lists(st.integers(0, 1), max_size=3), count=st.integers(1, 9))
    def append(self, sequence: Modelled, tokens: list[int], count: int) -> None:
        """Compute up to `count` more positions of a sequence that learns `tokens`; the plan stays outstanding."""
        if not sequence.alive:
            return
        sequence.history.extend(tokens)
        start = sequence.computed
        end = min(start + count, len(sequence.history.tokens))
        if start == end:
            return
        before = [table.copy() for table in sequence.blocks.tables]
        references = self.references()
        available = self.cache.pool.num_available
        number = self.next_plan
        spare, kept = self.cache.pool.num_spare, self.cache.pool.num_kept
        missing = self.cache.reserve(sequence.blocks, start, end, plan=number, until=sequence.last_plan)
        if missing:
            assert missing > 0
            self.assert_rolled_back(sequence, before, references, available)
            self.done["refused"] += 1
            return
        if self.cache.pool.num_kept < kept:
            # Not only blocks that it did not hold: one that its window has passed may come back to it.
            taken = sum(
                block != RELEASED and (index >= len(old) or old[index] != block)
                for table, old in zip(sequence.blocks.tables, before, strict=True)
                for index, block in enumerate(table)
            )
            assert taken > spare, "what is kept goes last"
        self.next_plan += 1
        self.assert_untouched(self.new_blocks(sequence, before))
        self.deliver_swaps(number)
        copies = self.cache.take_copies()
        for copy in copies:
            self.memory[copy.target] = self.memory[copy.source].copy()
            self.done["copied"] += 1
        self.update_table(sequence)
        self.cache.announce(sequence.blocks, start, end)
        self.write(sequence, start, end)
        sequence.computed = end
        sequence.last_plan = number
        touched = {block for table in sequence.blocks.tables for block in table if block != RELEASED}
        touched |= {copy.source for copy in copies}
        self.outstanding.append(Outstanding(number, sequence, sequence.epoch, end, touched))

    @rule()
    def commit(self) -> None:
        if not self.outstanding:
            return
        plan = self.outstanding.popleft()
        sequence = plan.sequence
        if sequence.alive and sequence.epoch == plan.epoch and not plan.fails:
            self.cache.settle(sequence.blocks)
            self.cache.publish(sequence.blocks, sequence.history.tokens, plan.end)
        for other in self.alive:
            # Forks wait for the plans of their origin.
            if other.last_plan == plan.number:
                other.last_plan = None
        self.cache.pool.retire(plan.number)
        self.swap.settle(plan.number, failed=plan.fails)

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: Modelled) -> object:
        tokens = parent.computed
        if not parent.alive or not tokens or not self.cache.can_fork(parent.blocks, tokens):
            return multiple()
        child = Modelled(
            self.cache.fork(parent.blocks, self.next_sequence, tokens),
            parent.salt,
            parent.history.copy(),
            computed=tokens,
            last_plan=parent.last_plan,
        )
        self.next_sequence += 1
        self.forget_table(child)
        self.alive.append(child)
        self.done["forked"] += 1
        return child

    @rule(sequence=sequences, back=st.integers(1, 5))
    def roll_back(self, sequence: Modelled, back: int) -> None:
        """Drafts in the last positions were not accepted; what was published is never rolled back."""
        floor = max(sequence.blocks.published * self.spec.block_size, self.first_kept(sequence), 1)
        tokens = max(floor, sequence.computed - back)
        if not sequence.alive or sequence.last_plan is not None or tokens >= sequence.computed:
            return
        self.cache.roll_back(sequence.blocks, tokens, until=None)
        sequence.computed = tokens
        self.done["rolled back"] += 1

    @rule(sequence=sequences, tokens=st.integers(0, 12), seconds=st.sampled_from([1.0, 10.0]))
    def keep(self, sequence: Modelled, tokens: int, seconds: float) -> None:
        if not sequence.alive:
            return
        before = self.cache.pool.num_kept
        kept = self.cache.keep(sequence.blocks, tokens, seconds)
        assert kept <= tokens
        assert kept % self.spec.block_size == 0
        assert before <= self.cache.pool.num_kept <= self.cache.pool.num_blocks
        assert self.cache.kept_tokens(sequence.blocks, kept // self.spec.block_size) == kept

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        available = self.cache.pool.num_available
        self.cache.pool.tick(self.now)
        assert self.cache.pool.num_available == available
        if seconds > 10.0:
            assert self.cache.pool.num_kept == 0

    @rule(sequence=sequences)
    def preempt(self, sequence: Modelled) -> None:
        if not sequence.alive:
            return
        self.cache.free(sequence.blocks, until=sequence.last_plan)
        sequence.computed = 0
        sequence.epoch += 1
        self.forget_table(sequence)

    @rule(sequence=sequences)
    def swap_out(self, sequence: Modelled) -> None:
        """Preempt it; if there is room, the next plan copies what it has computed."""
        if not sequence.alive or not sequence.computed or not any(sequence.blocks.tables):
            return
        self.forget_copy(sequence)
        free, computed = self.swap.num_free, sequence.computed
        sequence.swapped = self.swap.swap_out(sequence.blocks, computed)
        taken = sum(map(len, sequence.swapped.hosts)) if sequence.swapped else 0
        assert self.swap.num_free == free - taken
        self.done["not swapped"] += sequence.swapped is None
        self.preempt(sequence)

    @rule(sequence=sequences, fits=st.sampled_from([True, True, True, False]), fails=st.sampled_from([False, True]))
    def swap_in(self, sequence: Modelled, fits: bool, fails: bool) -> None:
        """A plan of its own brings a sequence's blocks back, and with it what else was to be copied."""
        swapped = sequence.swapped
        if swapped is None or not sequence.alive or sequence.last_plan is not None or any(sequence.blocks.tables):
            return
        if not swapped.tokens or swapped.unconfirmed:
            return
        self.cache.longest_hit(sequence.blocks, sequence.history.tokens)
        tokens, free, references = swapped.tokens, self.swap.num_free, self.references()
        wanted = sum(map(len, swapped.hosts))
        room = self.cache.pool.num_available
        if not self.swap.swap_in(sequence.blocks, swapped, lambda shared: fits and wanted - shared <= room):
            assert (swapped.tokens, self.swap.num_free, self.references()) == (tokens, free, references)
            return
        sequence.swapped, sequence.computed, number = None, tokens, self.next_plan
        self.next_plan += 1
        self.assert_untouched(self.deliver_swaps(number))
        self.update_table(sequence)
        sequence.last_plan = number
        touched = {block for table in sequence.blocks.tables for block in table if block != RELEASED}
        # Where it fails, its sequence does not go on.
        self.outstanding.append(Outstanding(number, sequence, sequence.epoch, tokens, touched, fails))
        self.done["swapped in"] += 1
        if fails:
            self.abort(sequence)

    @rule(sequence=consumes(sequences))
    def abort(self, sequence: Modelled) -> None:
        self.preempt(sequence)
        self.forget_copy(sequence)
        sequence.alive = False
        if sequence in self.alive:
            self.alive.remove(sequence)

    @rule(block=st.integers(0, 39))
    def release_what_nobody_holds(self, block: int) -> None:
        pool = self.cache.pool
        if block < pool.num_blocks and pool.references(block) == 0:
            with pytest.raises(RuntimeError, match="no sequence holds it"):
                pool.release(block)

    # What must hold after every rule.

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        pool = self.cache.pool
        self.swap.check(sequence.swapped for sequence in self.alive if sequence.swapped)
        self.cache.check([sequence.blocks for sequence in self.alive])
        references = self.references()
        assert pool.num_used == len(references)
        assert pool.num_free + len(references) + pool.num_cached + pool.num_retiring == pool.num_blocks
        assert all(pool.references(block) == count for block, count in references.items())
        if not self.outstanding:
            assert pool.num_retiring == 0
            assert not self.cache.index._pending
            if not references:
                assert pool.num_cached == len(self.cache.index)

    @invariant()
    def sequences_read_their_own_kv(self) -> None:
        for sequence in self.alive:
            for group, spec in enumerate(self.spec.groups):
                first = first_visible(sequence.computed, spec.window)
                for position in range(first, sequence.computed):
                    assert self.read(sequence.blocks.tables[group], position) == sequence.history.slots[group][position]

    @invariant()
    def published_blocks_hold_what_they_say(self) -> None:
        size = self.spec.block_size
        for group, entries in enumerate(self.cache.index._entries):
            for entry in entries.values():
                history = self.history_of(entry.node)
                assert self.memory[entry.block] == history.slots[group][-size:]

    @invariant()
    def copies_hold_what_their_sequences_need(self) -> None:
        size, making = self.spec.block_size, {swap.host: swap.block for swap in self.swap._out}
        for sequence in self.alive:
            swapped = sequence.swapped
            if swapped is None:
                continue
            for group, (first, hosts) in enumerate(zip(swapped.firsts, swapped.hosts, strict=True)):
                for position in range(first * size, swapped.tokens):
                    host = hosts[position // size - first]
                    # What is not copied yet is still where it was, whoever it was given to.
                    content = self.memory[making[host]] if host in making else self.host[host]
                    assert content[position % size] == sequence.history.slots[group][position]

    # The model.

    def deliver_swaps(self, number: int) -> set[int]:
        """Do what the plan of this number is to swap; the blocks that it writes."""
        out, back = self.swap.take(number)
        for swap in out:
            self.host[swap.host] = self.memory[swap.block].copy()
        for swap in back:
            self.memory[swap.block] = self.host[swap.host].copy()
        return {swap.block for swap in back}

    def forget_copy(self, sequence: Modelled) -> None:
        if sequence.swapped is not None:
            self.swap.discard(sequence.swapped)
            sequence.swapped = None

    def history_of(self, node: PrefixNode) -> History:
        contents: list[bytes] = []
        walk: PrefixNode | None = node
        while walk is not None and walk.parent is not None:
            contents.append(walk.tokens)
            walk = walk.parent
        history = History(len(self.spec.groups))
        for content in reversed(contents):
            history.extend(memoryview(content).cast("I").tolist())
        return history

    def read(self, table: list[int], position: int) -> int | None:
        block = table[position // self.spec.block_size]
        assert block != RELEASED, "what can be seen is held"
        return self.memory[block][position % self.spec.block_size]

    def write(self, sequence: Modelled, start: int, end: int) -> None:
        size = self.spec.block_size
        for group, table in enumerate(sequence.tables):
            for position in range(start, end):
                block = table[position // size]
                assert self.cache.pool.is_writable(block), "shared and published blocks are never written"
                self.memory[block][position % size] = sequence.history.slots[group][position]

    def update_table(self, sequence: Modelled) -> None:
        """Apply the updates as an executor does; what it sees must then be what the cache meant."""
        for update in self.cache.take_updates(sequence.blocks):
            table = sequence.tables[update.group]
            assert update.first <= len(table)
            table[update.first :] = update.blocks
        for seen, meant in zip(sequence.tables, sequence.blocks.tables, strict=True):
            # Blocks that were rolled back stay in the executor's table until others take their place.
            assert len(seen) >= len(meant)
            assert all(ours in (theirs, RELEASED) for theirs, ours in zip(seen, meant, strict=False))

    def forget_table(self, sequence: Modelled) -> None:
        sequence.tables = [[] for _ in self.spec.groups]

    def first_kept(self, sequence: Modelled) -> int:
        """Fewest tokens that may be left without needing blocks that were released."""
        return max(kept * self.spec.block_size + (group.window or 1) for kept, group in self.kept(sequence))

    def kept(self, sequence: Modelled) -> list[tuple[int, object]]:
        return list(zip(sequence.blocks.kept_from, self.spec.groups, strict=True))

    def references(self) -> dict[int, int]:
        held: dict[int, int] = {}
        for sequence in self.alive:
            for table in sequence.blocks.tables:
                for block in table:
                    if block != RELEASED:
                        held[block] = held.get(block, 0) + 1
        return held

    def new_blocks(self, sequence: Modelled, before: list[list[int]]) -> set[int]:
        now = {block for table in sequence.blocks.tables for block in table if block != RELEASED}
        return now - {block for table in before for block in table}

    def assert_untouched(self, blocks: set[int]) -> None:
        for plan in self.outstanding:
            assert not blocks & plan.touched, "a block is given away while an outstanding plan may use it"

    def assert_rolled_back(
        self, sequence: Modelled, before: list[list[int]], references: dict[int, int], available: int
    ) -> None:
        """A reservation that failed took nothing; all it may have done is to release what lies before the window."""
        assert not self.cache.take_copies()
        released = 0
        for old, new in zip(before, sequence.blocks.tables, strict=True):
            assert len(old) == len(new)
            assert all(now in (was, RELEASED) for was, now in zip(old, new, strict=True))
            released += sum(1 for was, now in zip(old, new, strict=True) if was != now)
        assert sum(self.references().values()) == sum(references.values()) - released
        assert available <= self.cache.pool.num_available <= available + released


TestCacheMachine = CacheMachine.TestCase


def test_long_random_runs() -> None:
    """The same at random, in long runs full of hits and copies, which short ones rarely come to."""
    done: Counter[str] = Counter()
    for seed in range(30):
        try:
            done += long_run(random.Random(seed))
        except AssertionError as error:
            error.add_note(f"run of seed {seed}")
            raise
    often = ("hit", "refused", "copied", "forked", "rolled back", "swapped in", "not swapped")
    assert min(done[name] for name in often) >= 50, done


def long_run(rng: random.Random) -> Counter[str]:
    """400 rules, all that must hold after each; returns how often it came to what."""
    machine = CacheMachine()
    windows = rng.choice([(None,), (3,), (None, 5), (2, None, 7)])
    size, blocks, kept_share = rng.choice([1, 2, 4]), rng.choice([12, 30, 80]), rng.choice([0.0, 0.3, 1.0])
    collide, caching = rng.random() < 0.3, rng.random() < 0.8
    machine.start(size, windows, blocks, collide, caching, kept_share, rng.choice([3, 12, 40]))
    for _ in range(400):
        if len(machine.alive) < 5:
            sequence = machine.open([rng.randrange(2) for _ in range(rng.randint(1, 12))], rng.choice(["", "salt"]))
        else:
            sequence = rng.choice(machine.alive)
        kinds = ["append", "commit", "fork", "roll back", "preempt", "swap", "abort", "keep", "pass"]
        match rng.choices(kinds, [8, 8, 1, 2, 1, 2, 1, 1, 1])[0]:
            case "append":
                if rng.random() < 0.7:
                    machine.swap_in(sequence, rng.random() < 0.8, rng.random() < 0.1)
                machine.attach(sequence, rng.random() < 0.2)
                machine.append(sequence, [rng.randrange(2) for _ in range(rng.randint(0, 3))], rng.randint(1, 9))
            case "commit":
                machine.commit()
            case "fork":
                machine.fork(sequence)
            case "roll back":
                machine.roll_back(sequence, rng.randint(1, 5))
            case "preempt":
                machine.preempt(sequence)
            case "swap":
                machine.swap_out(sequence)
            case "abort":
                machine.abort(sequence)
            case "keep":
                machine.keep(sequence, rng.randint(0, 40), rng.choice([1.0, 10.0]))
            case "pass":
                machine.time_passes(rng.choice([0.5, 2.0, 20.0]))
        machine.blocks_are_accounted_for()
        machine.sequences_read_their_own_kv()
        machine.copies_hold_what_their_sequences_need()
        machine.published_blocks_hold_what_they_say()
    return machine.done
