"""Sequences that could come in now, the room in batch and pool, and what those in it still have to get."""

from collections.abc import Iterable, Iterator
from itertools import chain

from penstock.cache.manager import KVCache
from penstock.core.config import SchedulerConfig
from penstock.scheduler.budget import Allowances
from penstock.scheduler.fairness import PROMPT_COST
from penstock.scheduler.pace import Rows
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder

# One part in this many of the rows and of the blocks is left to tenants that have few.
RESERVED_PART = 8


class Room:
    """Asks the pool and the queues; changes nothing."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCache, running: OrderedQueue, waiting: WaitingQueue, pace: Rows
    ) -> None:
        self._config = config
        self._pace = pace
        self._cache = cache
        self._running = running
        self._waiting = waiting
        # Blocks with which a sequence goes on.
        self._growth = cache.spec.growth

    @property
    def rows(self) -> int:
        """Sequences that may run at a time."""
        return self._pace.most(self._config.max_num_seqs)

    @property
    def is_closed(self) -> bool:
        """Whether a static batch has begun, so that no other sequence comes in."""
        return self._config.static_batching and any(sequence.output_length for sequence in self._running)

    def blocks(self, running: int) -> int:
        """Blocks that admission may count on beside `running` sequences.

        What is kept gives way only where nothing else is left: to the sequence without which nothing would run, and to
        those that run already.
        """
        return self._cache.pool.num_spare if running else self._cache.pool.num_available

    def blocks_to_admit(self, sequence: Sequence, running: int) -> int:
        """Blocks for all known tokens, and a slot of each group for each running sequence, so that they can go on."""
        needed = self._cache.blocks_needed(sequence.blocks, len(sequence.tokens), self._config.max_num_batched_tokens)
        return needed + running * self._growth

    def beside(self, sequence: Sequence) -> int:
        """Running sequences that go on without it; the other beams of its request do not."""
        if not sequence.beam:
            return len(self._running)
        return sum(other.request is not sequence.request for other in self._running)

    def has_place_for(self, sequence: Sequence) -> bool:
        """Whether it may have a row and blocks, should they be free.

        They are held until a sequence ends. Where there are several tenants, one that has none should not have to wait
        for that. So a tenant with running sequences leaves some blocks free, and a row, or several once it has more
        than its part of them. Sequences that run behind its priority don't count, because they make way. A sequence
        that was let in before has had its place, and returns to it.
        """
        known = self._waiting.tenants(sequence.order[0])
        if sequence.admitted or known < 2:
            return True
        tenant, rows = sequence.request.standing.tenant, self.rows
        beside = [other for other in self._running if other.order[0] <= sequence.order[0]]
        own = sum(other.request.standing.tenant == tenant for other in beside)
        if not own:
            return True
        reserved = rows // RESERVED_PART
        if rows - len(beside) <= (min(1, reserved) if own * known < rows else reserved):
            return False
        making_way = list(self._running)[len(beside) :]
        blocks = self.blocks(len(beside)) + self._cache.pool.num_retiring
        blocks += sum(self._cache.exclusive_blocks(other.blocks) for other in making_way)
        return blocks - self.blocks_to_admit(sequence, 0) >= self._cache.pool.num_blocks // RESERVED_PART

    def owed(self, priority: int) -> dict[str, float]:
        """What each tenant of a priority was charged for prompts that are not computed yet, by its weight."""
        owed: dict[str, float] = {}
        if self._waiting.tenants(priority) > 1:
            for sequence in self._running:
                if sequence.order[0] == priority and sequence.pending > 1:
                    standing = sequence.request.standing
                    cost = PROMPT_COST * sequence.prompt_left / standing.weight
                    owed[standing.tenant] = owed.get(standing.tenant, 0.0) + cost
        return owed

    def for_drafts(self, pending: Iterable[int]) -> bool:
        """Whether a step has time and blocks for drafts; `pending` are the positions of each sequence that is in it.

        It has none where prompts are computed, or a sequence could come in, or blocks are so few that a sequence might
        have to be preempted: beside the one with which each goes on, one more is for its drafts.
        """
        running = len(self._running)
        if (self._waiting and running < self.rows) or any(positions > 1 for positions in pending):
            return False
        return self.blocks(running) >= 2 * running * self._growth

    def would_stand_back(self, sequence: Sequence, hit: int) -> bool:
        """Whether to wait for the block behind a hit of `hit` blocks, since another sequence is computing it."""
        if sequence.waits < self._config.max_prefix_waits and self._cache.sources.is_pending(sequence.blocks):
            return True
        # It must be one that the sequence may then take, and has not in the processor's memory.
        size = self._cache.spec.block_size
        if (hit + 1) * size > sequence.cacheable or hit * size < sequence.swapped_tokens:
            return False
        return sequence.waits < self._config.max_prefix_waits and self._cache.next_is_pending(sequence.blocks, hit)

    def turns(self) -> Iterator[Sequence]:
        """Those that wait, in turn, up to one that has no place; behind that only the first of each tenant.

        So other tenants can have what the tenant whose turn it is must leave to them.
        """
        for sequence in self._waiting.turns():
            if sequence.last_plan is None and not self.has_place_for(sequence):
                break
            yield sequence
        else:
            return
        for other in self._waiting.firsts(sequence.order[0]):
            if not other.admitted and self.has_place_for(other):
                yield other

    def allowances(
        self, step: StepBuilder, running: list[tuple[Sequence, int]], least: int, *, background: bool
    ) -> Allowances:
        """How tenants share a step: those who run, and those whose turn comes in it; `least` is as in `Allowances`."""
        if not self._waiting.shared:
            return Allowances(0, (), self._waiting, least=0)
        prompts = [(sequence, pending) for sequence, pending in running if pending > 1]
        decodes = sum(pending == 1 for _, pending in running)
        prompts += self.coming(background, step.budget - decodes)
        chunks = (
            (sequence, sequence.within_scores(min(pending, self._config.longest_chunk), step.scores))
            for sequence, pending in prompts
        )
        demands = [(sequence, count) for sequence, count in chunks if count > 0]
        if not demands:
            return Allowances(0, (), self._waiting, least=0)
        demands += [(sequence, 0) for sequence, _ in running]
        return Allowances(step.budget - decodes, demands, self._waiting, least=least)

    def coming(self, background: bool, tokens: int) -> Iterator[tuple[Sequence, int]]:
        """The sequences that could be admitted now, and about how many positions each has to compute.

        It ends once these positions come to `tokens`, but the first sequence of each tenant is always among them. There
        are none where there is only one tenant: then it makes no difference.
        """
        if not self._waiting or self.is_closed:
            return
        head = self._waiting.first()
        priority = head.order[0]
        if head.background != background or self._waiting.tenants(priority) < 2:
            return
        running = len(self._running)
        rows = self.rows - sum(sequence.background <= background for sequence in self._running)
        blocks = self.blocks(running) - running * self._growth
        firsts = self._waiting.firsts(priority)
        for turn, sequence in enumerate(chain(firsts, self._waiting.seconds(priority))):
            first = turn < len(firsts)
            if rows <= 0 or not (first or tokens > 0):
                return
            if not self.has_place_for(sequence):
                if first:
                    continue
                return
            blocks -= self.blocks_to_admit(sequence, 0)
            if blocks < 0:
                return
            hit = self._cache.longest_hit(sequence.blocks, sequence.tokens, sequence.cacheable)
            if not sequence.must_wait and not self.would_stand_back(sequence, hit):
                rows -= 1
                blocks -= self._growth
                found = max(hit * self._cache.spec.block_size, sequence.swapped_tokens)
                count = max(1, len(sequence.tokens) - found)
                count += 0 if self._cache.sources.has(sequence.blocks) else len(sequence.request.source)
                tokens -= count
                yield sequence, count
