"""What the scheduler counts from its beginning on."""

from dataclasses import dataclass

from penstock.cache.pool import BlockPool
from penstock.core.events import LoadSnapshot


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

    def snapshot(self, pool: BlockPool, running: int, waiting: int, waiting_tokens: int) -> LoadSnapshot:
        """The totals beside the state of the pool and the queues."""
        return LoadSnapshot(
            step=self.steps,
            running=running,
            waiting=waiting,
            waiting_tokens=waiting_tokens,
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
        )
