"""Copies between the pool and other memories, and within it, from the plan that begins them to the report of each.

A plan has them as data (`core/plan.py: Transfer`). They are reported in the result of that plan or of a later one.
Until then, what they write is held: a target in the pool has a reference here, so that a sequence that ends, or is
preempted, does not give it to another one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.cache.pool import BlockPool
from penstock.core.plan import Place, Transfer, TransferResult


@dataclass(slots=True, eq=False)
class Batch:
    """Transfers that are of use together only.

    Attributes:
        left: how many are not reported.
        failed: whether one of those that are was not done.
        targets: slots of the pool that they write.
    """

    left: int = 0
    failed: bool = False
    targets: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether each of its transfers is reported, done or failed."""
        return not self.left


class Transfers:
    """Those of the plan in the making, and those that are not reported."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._next = 0
        self._queued: list[tuple[Transfer, Batch]] = []
        # By id: the plan with which it began, and the batch.
        self._open: dict[int, tuple[int, Batch]] = {}
        self._arriving: dict[Batch, None] = {}

    @property
    def any_queued(self) -> bool:
        """Whether the plan in the making has one."""
        return bool(self._queued)

    @property
    def any_open(self) -> bool:
        """Whether one is not reported."""
        return bool(self._open)

    def add(self, batch: Batch, group: int, source: Place, target: Place) -> None:
        """The plan in the making begins one more transfer of a batch."""
        self._queued.append((Transfer(self._next, group, source, target), batch))
        self._next += 1
        batch.left += 1

    def copy(self, group: int, source: int, target: int) -> None:
        """The plan in the making copies a slot within the pool, before its rows are computed."""
        blocks_of = self._pool.blocks_of
        self.add(Batch(), group, Place("pool", blocks_of(source)), Place("pool", blocks_of(target)))

    def hold(self, batch: Batch, slots: Sequence[int]) -> None:
        """A batch writes these slots of the pool, which are held until it is over."""
        batch.targets = tuple(slots)
        for slot in slots:
            self._pool.share(slot)
        self._arriving[batch] = None

    def withdraw(self, batch: Batch) -> bool:
        """Begin none of a batch; False, and no change, where they have begun."""
        left = [(transfer, owner) for transfer, owner in self._queued if owner is not batch]
        if len(left) == len(self._queued):
            return False
        self._queued = left
        batch.left = 0
        return True

    def take(self, plan: int) -> tuple[Transfer, ...]:
        """Those that the plan in the making begins, in order; it gets this number."""
        taken = tuple(transfer for transfer, _ in self._queued)
        self._open |= {transfer.id: (plan, batch) for transfer, batch in self._queued}
        self._queued = []
        return taken

    def settle(self, plan: int, reports: Iterable[TransferResult], *, failed: bool) -> list[Batch]:
        """A plan has committed, with these reports; returns the batches that are over now.

        Where it has failed, so have those of its transfers that are not reported. Raises RuntimeError where one is
        reported that is not open.
        """
        told = {report.id: report.done for report in reports}
        if failed:
            told = {each: False for each, (begun, _) in self._open.items() if begun == plan} | told
        over = []
        for each, done in told.items():
            if each not in self._open:
                raise RuntimeError(f"transfer {each} is reported, and is not under way")
            _, batch = self._open.pop(each)
            batch.left -= 1
            batch.failed = batch.failed or not done
            if batch.is_over:
                over.append(batch)
                if batch in self._arriving:
                    del self._arriving[batch]
                    for slot in batch.targets:
                        self._pool.release(slot)
        return over

    @property
    def returning(self) -> int:
        """Blocks that come back by themselves, since nothing but a transfer holds them."""
        slots = {slot for batch in self._arriving for slot in batch.targets}
        return sum(len(self._pool.blocks_of(slot)) for slot in slots if self._pool.references(slot) == 1)

    def held(self) -> list[int]:
        """The slots that are held here, one for each reference."""
        return [slot for batch in self._arriving for slot in batch.targets]
