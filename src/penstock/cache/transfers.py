"""Copies between the pool and other memories, and within it, from the plan that begins them to the report of each.

A plan has them as data (`core/plan.py: Transfer`). They are reported in the result of that plan or of a later one.
Until then, what they write is held: a target in the pool has a reference here, so that a sequence that ends, or is
preempted, does not give it to another one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.cache.pool import BlockPool
from penstock.core.plan import Place, Transfer, TransferResult


@dataclass(slots=True, eq=False)
class Batch:
    """Transfers that are of use together only.

    Attributes:
        left: how many are not reported.
        failures: those of the others that were not done, by their ids.
        seconds: how long each that was reported took, by its id.
        targets: slots of the pool that they write.
        awaited: whether something can go on only when it is over.
    """

    left: int = 0
    failures: set[int] = field(default_factory=set)
    seconds: dict[int, float] = field(default_factory=dict)
    targets: tuple[int, ...] = ()
    awaited: bool = True

    @property
    def failed(self) -> bool:
        """Whether one that is reported was not done."""
        return bool(self.failures)

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
        # Of these, those that something waits for: there may be hundreds that nothing does.
        self._awaited = 0
        self._arriving: dict[Batch, None] = {}

    @property
    def now(self) -> float:
        """Seconds, of the newest plan."""
        return self._pool.now

    @property
    def any_queued(self) -> bool:
        """Whether the plan in the making has one."""
        return bool(self._queued)

    @property
    def any_work(self) -> bool:
        """Whether one is to begin, or waited for."""
        return self.any_queued or self.any_awaited

    @property
    def any_awaited(self) -> bool:
        """Whether one is not reported that something waits for."""
        return self._awaited > 0

    def add(self, batch: Batch, group: int, source: Place, target: Place, keep: float = 0.0) -> int:
        """The plan in the making begins one more transfer of a batch; its id."""
        self._queued.append((Transfer(self._next, group, source, target, keep), batch))
        self._next += 1
        batch.left += 1
        return self._next - 1

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
        self._awaited += sum(batch.awaited for _, batch in self._queued)
        self._queued = []
        return taken

    def settle(self, plan: int, reports: Iterable[TransferResult], *, failed: bool) -> list[Batch]:
        """A plan has committed, with these reports; returns the batches that are over now.

        Where it has failed, so have those of its transfers that are not reported. Raises RuntimeError where one is
        reported that is not open.
        """
        told = {report.id: report for report in reports}
        if failed:
            begun = (each for each, (number, _) in self._open.items() if number == plan)
            told = {each: TransferResult(each, done=False) for each in begun} | told
        over = []
        for each, report in told.items():
            if each not in self._open:
                raise RuntimeError(f"transfer {each} is reported, and is not under way")
            _, batch = self._open.pop(each)
            batch.left -= 1
            self._awaited -= batch.awaited
            batch.seconds[each] = report.seconds
            if not report.done:
                batch.failures.add(each)
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
