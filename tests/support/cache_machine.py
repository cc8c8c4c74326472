"""The KV cache against a naive model, under random operations in random order.

The model keeps the content of every slot. A sequence must read its own KV through its block tables at any time, nobody
may write what another can read, and blocks that an outstanding plan touches are not given to anybody else.
"""

from collections import Counter, deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from penstock.cache.manager import KVCache
from penstock.cache.swap import SwapSpace
from penstock.cache.transfers import Batch
from penstock.core.plan import Transfer, TransferResult
from support.made_up_model import history_of, kv_spec, made_up_spec, part_of, sourced_spec
from support.modelled_cache import (
    Modelled,
    Outstanding,
    held_by,
    history_at,
    hosts_of,
    needed,
    references_of,
    short_hash,
    slots_of,
)
from support.modelled_memory import Begun, ModelledMemory
from support.scripted_rows import RELEASED
from support.scripted_rows import slots_of as slots_in

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


# Windows of groups, layers of four kinds, or of three of which one is of sources.
Kind = tuple[int | None, ...] | str
SPECS: list[Kind] = [(None,), (3,), (None, 5), (2, None, 7), "made up"]


class CacheMachine(RuleBasedStateMachine):
    """Allocate, append, fork, free, evict, abort, preempt, swap and publish."""

    sequences = Bundle("sequences")

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        kind=st.sampled_from([*SPECS, "sourced"]),
        num_blocks=st.integers(2, 40),
        collide=st.booleans(),
        caching=st.sampled_from([True, True, True, False]),
        kept_share=st.sampled_from([0.0, 0.3, 1.0]),
        swap_blocks=st.integers(1, 20),
    )
    def start(
        self,
        block_size: int,
        kind: Kind,
        num_blocks: int,
        collide: bool,
        caching: bool,
        kept_share: float,
        swap_blocks: int,
    ) -> None:
        if isinstance(kind, str):
            self.spec = sourced_spec(block_size) if kind == "sourced" else made_up_spec(block_size, 4)
        else:
            self.spec = kv_spec(block_size, kind)
        # As large beside what a sequence takes.
        num_blocks, swap_blocks = (size * self.spec.num_tables for size in (num_blocks, swap_blocks))
        self.cache = KVCache(
            self.spec,
            num_blocks,
            key_of=short_hash if collide else None,
            prefix_caching=caching,
            kept_share=kept_share,
        )
        self.swap = SwapSpace(self.cache, swap_blocks)
        self.now = 0.0
        self.memory = ModelledMemory(self.spec, self.cache.pool, swap_blocks)
        self.alive: list[Modelled] = []
        self.outstanding: deque[Outstanding] = deque()
        self.done: Counter[str] = Counter()
        self.next_sequence = 0
        self.next_plan = 0
        self.next_committed = -1

    # What happens to sequences.

    @rule(target=sequences, prompt=TOKENS, salt=st.sampled_from(["", "", "salt"]), source=TOKENS)
    def open(self, prompt: list[int], salt: str, source: list[int]) -> Modelled:
        source = source if self.spec.source_group is not None else []
        history = history_of(self.spec, source)
        history.extend(prompt)
        sequence = Modelled(self.cache.open(self.next_sequence, salt, source=source), salt, history)
        self.next_sequence += 1
        self.forget_table(sequence)
        self.alive.append(sequence)
        return sequence

    @rule(sequence=sequences, shorter=st.booleans())
    def attach(self, sequence: Modelled, shorter: bool) -> None:
        if not sequence.alive or sequence.computed or sequence.last_plan is not None or any(slots_of(sequence)):
            return
        known = sequence.history.tokens
        hit = self.cache.longest_hit(sequence.blocks, known)
        if shorter:
            hit = self.cache.shorten_hit(sequence.blocks, max(0, hit - 1))
        free = self.cache.pool.num_free
        self.forget_copy(sequence)
        cached = self.cache.attach_prefix(sequence.blocks, hit, len(known))
        sequence.dropped.clear()
        assert cached == min(hit * self.spec.block_size, len(known) - 1)
        assert self.cache.pool.num_free == free, "a hit takes no new blocks"
        sequence.computed = cached
        self.done["hit"] += cached > 0
        self.done["source found"] += sequence.blocks.encoded

    @rule(
        sequence=sequences,
        tokens=st.lists(st.integers(0, 1), max_size=3),
        count=st.integers(1, 9),
        wrong=st.sampled_from([None, None, 0, 1, 5]),
    )
    def append(self, sequence: Modelled, tokens: list[int], count: int, wrong: int | None) -> None:
        """Compute up to `count` more positions of a sequence that learns `tokens`; the plan stays outstanding.

        All but the first may be drafts, of which the last `wrong` are.
        """
        if not sequence.alive or sequence.drafting or sequence.loading:
            return
        sequence.history.extend(tokens)
        start = sequence.computed
        end = min(start + self.cache.chunk(start, count), len(sequence.history.tokens))
        if start == end:
            return
        # There is something to go back to.
        wrong = wrong if start else None
        before = [slots.copy() for slots in slots_of(sequence)]
        references, held = references_of(self.alive), held_by(self.cache.pool, sequence)
        available = self.cache.pool.num_available
        number = self.next_plan
        queued = self.cache.transfers._queued.copy()
        spare, kept = self.cache.pool.num_spare, self.cache.pool.num_kept
        missing = self.cache.reserve(
            sequence.blocks, start, end, plan=number, until=sequence.last_plan, drafts=wrong is not None
        )
        if missing:
            assert missing > 0
            self.assert_rolled_back(sequence, before, references, available, queued)
            self.done["refused"] += 1
            return
        if self.cache.pool.num_kept < kept:
            # Not only slots that it did not hold: one that its window has passed may come back to it.
            taken = sum(
                group.width * (slot != RELEASED and (index >= len(old) or old[index] != slot))
                for group, slots, old in zip(self.spec.groups, slots_of(sequence), before, strict=True)
                for index, slot in enumerate(slots)
            )
            assert taken > spare, "what is kept goes last"
        self.next_plan += 1
        self.assert_untouched(held_by(self.cache.pool, sequence) - held)
        begun = self.begin_transfers(number)
        self.update_table(sequence)
        self.cache.announce(sequence.blocks, start, end)
        dropped = [len(sequence.dropped_of(group)) for group in range(len(self.spec.groups))]
        encodes = self.cache.sources.encode(sequence.blocks)
        self.memory.write(sequence.tables, sequence.history, start, end, dropped, encodes=encodes)
        sequence.computed = end
        sequence.last_plan = number
        touched = held_by(self.cache.pool, sequence)
        touched |= begun.sources
        if wrong is not None:
            sequence.drafting, wrong = True, min(wrong, end - start - 1)
        plan = Outstanding(number, sequence, sequence.epoch, end, touched, begun.copies, wrong=wrong)
        self.outstanding.append(plan)

    @rule(finished=st.sampled_from([0, 1, 9]), fails=st.sampled_from([False, False, False, True]))
    def commit(self, finished: int, fails: bool) -> None:
        """The oldest plan; up to `finished` transfers between memories are over, the first of which may have failed."""
        if not self.outstanding:
            return
        plan = self.outstanding.popleft()
        sequence, self.next_committed = plan.sequence, plan.number
        if sequence.alive and sequence.epoch == plan.epoch and not plan.fails and not sequence.loading:
            end = plan.end
            if plan.wrong is not None:
                end = sequence.computed = self.cache.roll_back(sequence.blocks, end - plan.wrong, until=None)
                assert end <= plan.end - plan.wrong
                sequence.drafting = False
                self.done["rolled back"] += plan.wrong > 0
            self.cache.settle(sequence.blocks)
            self.cache.publish(sequence.blocks, sequence.history.tokens, end, until=sequence.last_plan)
        for other in self.alive:
            # Forks wait for the plans of their origin.
            if other.last_plan == plan.number:
                other.last_plan = None
        self.cache.pool.retire(plan.number)
        reports = [] if plan.fails else [TransferResult(each, done=True) for each in plan.copies]
        if plan.fails:
            self.memory.under_way = [each for each in self.memory.under_way if each[2] != plan.number]
        else:
            reports += self.memory.finish(finished, self.next_committed, fails=fails)
        self.settle(self.cache.transfers.settle(plan.number, reports, failed=plan.fails))

    def settle(self, over: list[Batch]) -> None:
        """What has come in can be used; where it has not come whole, it is computed again."""
        self.swap.settle(over)
        for batch in over:
            for other in self.alive:
                if other.loading is batch:
                    other.loading = None
                    self.done["came in broken" if batch.failed else "came in"] += 1
                    if batch.failed:
                        self.preempt(other)

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: Modelled) -> object:
        tokens = parent.computed
        if not parent.alive or parent.drafting or parent.loading or not tokens:
            return multiple()
        blocks = self.cache.fork(parent.blocks, self.next_sequence, tokens)
        if blocks is None:
            return multiple()
        child = Modelled(
            blocks,
            parent.salt,
            parent.history.copy(),
            computed=tokens,
            last_plan=parent.last_plan,
            dropped=parent.dropped.copy(),
        )
        self.next_sequence += 1
        self.forget_table(child)
        self.alive.append(child)
        self.done["forked"] += 1
        return child

    @rule(sequence=sequences, group=st.integers(0, 3), first=st.integers(0, 6), count=st.integers(1, 2))
    def drop(self, sequence: Modelled, group: int, first: int, count: int) -> None:
        """Later positions do without some slots among those that are computed, and those behind move up."""
        group %= len(self.spec.groups)
        spec, size = self.spec.groups[group], self.spec.block_size
        gone = sequence.dropped_of(group)
        left = [index for index in range(sequence.computed // size) if index not in gone]
        places = list(range(first, min(first + count, len(left))))
        if not sequence.alive or not spec.is_whole or not places:
            return
        if sequence.drafting or sequence.loading or sequence.blocks.shares:
            return
        self.cache.drop(sequence.blocks, group, places, until=sequence.last_plan)
        sequence.dropped |= {(group, left[place]) for place in places}
        self.done["dropped"] += 1

    @rule(sequence=sequences, tokens=st.integers(0, 12), seconds=st.sampled_from([1.0, 10.0]))
    def keep(self, sequence: Modelled, tokens: int, seconds: float) -> None:
        if not sequence.alive or sequence.loading:
            return
        before = self.cache.pool.num_kept
        depths = min(tokens // self.spec.block_size, sequence.blocks.published)
        kept = self.cache.keeping.keep(sequence.blocks.chain, depths, seconds)
        assert kept <= tokens
        assert kept % self.spec.block_size == 0
        assert before <= self.cache.pool.num_kept <= self.cache.pool.num_blocks
        assert self.cache.keeping.kept_tokens(sequence.blocks.chain, kept // self.spec.block_size) == kept

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
        sequence.drafting = False
        sequence.loading = None
        sequence.dropped.clear()
        self.forget_table(sequence)

    @rule(sequence=sequences)
    def swap_out(self, sequence: Modelled) -> None:
        """Preempt it; if there is room, the next plan copies what it has computed."""
        if not sequence.alive or not sequence.computed or sequence.dropped or not any(slots_of(sequence)):
            return
        if sequence.loading:
            return
        self.forget_copy(sequence)
        free, computed = self.swap.num_free, sequence.computed
        sequence.swapped = self.swap.swap_out(sequence.blocks, computed)
        taken = len(hosts_of(sequence.swapped)) if sequence.swapped else 0
        assert self.swap.num_free == free - taken
        self.done["not swapped"] += sequence.swapped is None
        self.preempt(sequence)

    @rule(sequence=sequences, fits=st.sampled_from([True, True, True, False]), fails=st.sampled_from([False, True]))
    def swap_in(self, sequence: Modelled, fits: bool, fails: bool) -> None:
        """A plan of its own brings a sequence's blocks back, and with it what else was to be copied."""
        swapped = sequence.swapped
        if swapped is None or not sequence.alive or sequence.last_plan is not None or any(slots_of(sequence)):
            return
        if not swapped.tokens or not swapped.storing.is_over:
            return
        self.cache.longest_hit(sequence.blocks, sequence.history.tokens)
        tokens, free, references = swapped.tokens, self.swap.num_free, references_of(self.alive)
        wanted = len(hosts_of(swapped))
        room = self.cache.pool.num_available
        loading = self.swap.swap_in(sequence.blocks, swapped, lambda shared: fits and wanted - shared <= room)
        if loading is None:
            assert (swapped.tokens, self.swap.num_free, references_of(self.alive)) == (tokens, free, references)
            return
        sequence.swapped, sequence.computed, number = None, tokens, self.next_plan
        sequence.loading = None if loading.is_over else loading
        self.next_plan += 1
        begun = self.begin_transfers(number)
        self.assert_untouched(begun.targets)
        self.update_table(sequence)
        # Where it fails, nothing has come.
        plan = Outstanding(number, sequence, sequence.epoch, tokens, begun.sources, begun.copies, fails)
        self.outstanding.append(plan)
        self.done["swapped in"] += 1

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
        references = references_of(self.alive)
        for slot in self.cache.transfers.held():
            references[slot] = references.get(slot, 0) + 1
        used = sum(len(pool.blocks_of(slot)) for slot in references)
        assert pool.num_used == used
        assert pool.num_free + used + pool.num_cached + pool.num_retiring == pool.num_blocks
        assert all(pool.references(block) == count for block, count in references.items())
        if not self.outstanding and not self.cache.transfers.any_awaited:
            assert pool.num_retiring == 0
            assert not self.cache.index._pending
            if not references:
                published = list(self.cache.index._published)
                assert pool.num_cached == sum(len(pool.blocks_of(slot)) for slot in published)

    @invariant()
    def sequences_read_their_own_kv(self) -> None:
        for sequence in self.alive:
            if sequence.loading:
                continue
            for group, spec in enumerate(self.spec.groups):
                for position in needed(spec, sequence, sequence.computed):
                    if sequence.drafting and spec.record_interval is not None:
                        continue
                    index, gone = position // self.spec.block_size, sequence.dropped_of(group)
                    if index in gone:
                        continue
                    table = sequence.blocks.tables[group].slots
                    place = position - self.spec.block_size * sum(each < index for each in gone)
                    assert self.memory.read(table, group, place) == sequence.history.slots[group][position]

    @invariant()
    def published_slots_hold_what_they_say(self) -> None:
        size = self.spec.block_size
        for group, entries in enumerate(self.cache.index._entries):
            record = self.spec.groups[group].record_interval is not None
            for entry in entries.values():
                history = history_at(self.spec, entry.node, group)
                for part, block in enumerate(self.cache.pool.blocks_of(entry.block)):
                    # A source's last slot may have less.
                    last = 1 if record else len(history) - (len(history) - 1) // size * size
                    held = self.memory.blocks[block][:last]
                    wanted = history[-last:]
                    assert held == [part_of(content, part) for content in wanted]

    @invariant()
    def copies_hold_what_their_sequences_need(self) -> None:
        size = self.spec.block_size
        # What is not copied yet is still where it was, whichever sequence it was given to, or on its way.
        making = {
            host: self.memory.blocks[block]
            for transfer, _ in self.cache.transfers._queued
            if transfer.target.store == "host"
            for block, host in zip(transfer.source.blocks, transfer.target.blocks, strict=True)
        }
        for transfer, read, _ in self.memory.under_way:
            if read is not None:
                making |= dict(zip(transfer.target.blocks, read, strict=True))
        for sequence in self.alive:
            swapped = sequence.swapped
            if swapped is None or not swapped.tokens or swapped.storing.failed:
                continue
            for group, spec in enumerate(self.spec.groups):
                record, hosts = spec.record_interval is not None, dict(swapped.hosts[group])
                for position in needed(spec, sequence, swapped.tokens):
                    for part, host in enumerate(hosts[0 if record else position // size]):
                        content = making.get(host, self.memory.host[host])
                        wanted = part_of(sequence.history.slots[group][position], part)
                        assert content[0 if record else position % size] == wanted

    # The model.

    def begin_transfers(self, number: int) -> Begun:
        """Begin those of the plan of this number."""
        begun = self.memory.begin(self.cache.transfers.take(number), number)
        self.done["copied"] += len(begun.copies)
        return begun

    def forget_copy(self, sequence: Modelled) -> None:
        if sequence.swapped is not None:
            self.swap.discard(sequence.swapped)
            sequence.swapped = None

    def update_table(self, sequence: Modelled) -> None:
        """Apply the updates as an executor does; what it sees must then be what the cache meant."""
        for update in self.cache.take_updates(sequence.blocks):
            table = sequence.tables[update.group]
            assert update.first <= len(table)
            table[update.first :] = slots_in(update.blocks, self.spec.groups[update.group].width)
        for seen_slots, meant in zip(sequence.tables, slots_of(sequence), strict=True):
            # Slots that were rolled back, and the last ones where some were dropped, stay in the executor's table until
            # others take their place.
            assert len(seen_slots) >= len(meant)
            assert all(ours in (theirs[0], RELEASED) for theirs, ours in zip(seen_slots, meant, strict=False))

    def forget_table(self, sequence: Modelled) -> None:
        sequence.tables = [[] for _ in self.spec.groups]

    def assert_untouched(self, blocks: set[int]) -> None:
        for plan in self.outstanding:
            assert not blocks & plan.touched, "a block is given away while an outstanding plan may use it"

    def assert_rolled_back(
        self,
        sequence: Modelled,
        before: list[list[int]],
        references: dict[int, int],
        available: int,
        queued: list[tuple[Transfer, Batch]],
    ) -> None:
        """A reservation that failed took nothing; all it may have done is to release what lies before the window."""
        assert self.cache.transfers._queued == queued
        released = blocks = 0
        for old, new, group in zip(before, slots_of(sequence), self.spec.groups, strict=True):
            assert len(old) == len(new)
            assert all(now in (was, RELEASED) for was, now in zip(old, new, strict=True))
            gone = sum(1 for was, now in zip(old, new, strict=True) if was != now)
            released, blocks = released + gone, blocks + gone * group.width
        assert sum(references_of(self.alive).values()) == sum(references.values()) - released
        assert available <= self.cache.pool.num_available <= available + blocks
