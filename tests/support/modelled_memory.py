"""The memory that the KV cache keeps the books of, as plain lists: what is written, copied and read back."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.cache.pool import BlockPool
from penstock.core.kv import KVSpec
from penstock.core.plan import Transfer, TransferResult
from support.made_up_model import History, part_of
from support.scripted_rows import RELEASED


class Begun(NamedTuple):
    """What a plan's transfers read and write in the pool, and the ids of those within it."""

    sources: set[int]
    targets: set[int]
    copies: list[int]


class ModelledMemory:
    """The pool's blocks, and those of the host; each has a content for each of its positions.

    Attributes:
        blocks, host: contents by block.
        under_way: transfers that have begun, what those out of the pool have read, and the number of their plan.
    """

    def __init__(self, spec: KVSpec, pool: BlockPool, host_blocks: int) -> None:
        self._spec = spec
        self._pool = pool
        self.blocks: list[list[int | None]] = [[None] * spec.block_size for _ in range(pool.num_blocks)]
        self.host: list[list[int | None]] = [[None] * spec.block_size for _ in range(host_blocks)]
        self.under_way: list[tuple[Transfer, list[list[int | None]] | None, int]] = []

    def begin(self, transfers: Iterable[Transfer], number: int) -> Begun:
        """Begin the transfers of a plan; copies within the pool are made at once."""
        begun = Begun(set(), set(), [])
        for transfer in transfers:
            source, target = transfer.source.blocks, transfer.target.blocks
            if transfer.source.store == transfer.target.store:
                begun.copies.append(transfer.id)
                begun.sources.update(source)
                for one, other in zip(source, target, strict=True):
                    self.blocks[other] = self.blocks[one].copy()
            elif transfer.source.store == "pool":
                self.under_way.append((transfer, [self.blocks[block].copy() for block in source], number))
            else:
                self.under_way.append((transfer, None, number))
                begun.targets.update(target)
        return begun

    def finish(self, count: int, committed: int, *, fails: bool) -> list[TransferResult]:
        """End up to `count` of those of plans up to `committed`, in any order.

        Where the first fails, its target holds nothing of use.
        """
        reports: list[TransferResult] = []
        for transfer, read, number in self.under_way[::-1]:
            if number > committed or len(reports) == count:
                continue
            self.under_way.remove((transfer, read, number))
            done = not fails or bool(reports)
            content = read or [self.host[block].copy() for block in transfer.source.blocks]
            target = self.host if transfer.target.store == "host" else self.blocks
            for block, held in zip(transfer.target.blocks, content, strict=True):
                target[block] = held if done else [None] * len(held)
            reports.append(TransferResult(transfer.id, done=done))
        return reports

    def read(self, table: list[int], group: int, position: int) -> int | None:
        record, size = self._spec.groups[group].record_interval is not None, self._spec.block_size
        slot = table[0 if record else position // size]
        assert slot != RELEASED, "what can be seen is held"
        first, *others = (self.blocks[block][0 if record else position % size] for block in self._pool.blocks_of(slot))
        assert first is None or others == [part_of(first, 1 + place) for place in range(len(others))]
        return first

    def write(
        self,
        tables: Sequence[Sequence[tuple[int, ...]]],
        history: History,
        start: int,
        end: int,
        dropped: Sequence[int],
        *,
        encodes: bool,
    ) -> None:
        """Store positions, and those of the source where the step `encodes` it.

        In each group, of those before them `dropped` slots were given up.
        """
        size = self._spec.block_size
        for group, table in enumerate(tables):
            record, positions = self._spec.groups[group].record_interval is not None, range(start, end)
            if self._spec.groups[group].sees.source:
                positions = range(len(history.source) if encodes else 0)
            for position in positions:
                slot = table[0 if record else position // size - dropped[group]]
                assert self._pool.is_writable(slot[0]), "shared and published slots are never written"
                for part, block in enumerate(slot):
                    content = part_of(history.slots[group][position], part)
                    self.blocks[block][0 if record else position % size] = content
