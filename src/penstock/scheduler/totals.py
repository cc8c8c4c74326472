"""What the scheduler counts from its beginning on."""

from dataclasses import dataclass

from penstock.cache.manager import KVCache
from penstock.cache.swap import SwapSpace
from penstock.core.events import LoadSnapshot
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.sequence import Sequence


@dataclass(slots=True)
class Totals:
    """Running totals; see `LoadSnapshot`."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0

    def _looked_up(self, sequence: Sequence) -> None:
        """What the prefix cache had of a sequence, once it has it and is computed."""
        if sequence.looked_up is None:
            return
        self.prefix_queried_tokens += sequence.looked_up
        self.prefix_hit_tokens += sequence.cached_tokens or 0
        sequence.looked_up = None

    def computed(self, sequence: Sequence, start: int, end: int) -> None:
        """A sequence has its positions up to `end`; those that it had before are computed again, from `start` on."""
        self._looked_up(sequence)
        fresh = max(0, end - sequence.computed_once)
        self.recomputed_tokens += max(0, end - start - fresh)
        self.prefill_tokens += max(0, min(end, sequence.prompt_length) - (end - fresh))
        sequence.computed_once += fresh

    def encoded(self, sequence: Sequence, tokens: int) -> None:
        """A sequence's source of this number of tokens is encoded, for the first time or again."""
        self.recomputed_tokens += tokens if sequence.encoded else 0
        self.prefill_tokens += 0 if sequence.encoded else tokens
        sequence.encoded = True

    def snapshot(self, cache: KVCache, swap: SwapSpace, running: OrderedQueue, waiting: WaitingQueue) -> LoadSnapshot:
        """The totals beside the state of the pool and the queues."""
        pool = cache.pool
        return LoadSnapshot(
            step=self.steps,
            running=len(running),
            waiting=len(waiting),
            waiting_tokens=sum(sequence.all_tokens for sequence in waiting),
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used + pool.num_retiring,
            blocks_cached=pool.num_cached,
            blocks_free=pool.num_free,
            blocks_kept=pool.num_kept,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=self.decode_tokens,
            prefix_queried_tokens=self.prefix_queried_tokens,
            prefix_hit_tokens=self.prefix_hit_tokens,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            swap_blocks_total=swap.num_blocks,
            swap_blocks_used=swap.num_used,
            shelves=cache.shelves.totals(),
        )
