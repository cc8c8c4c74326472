"""The books of the disk: which slots it has, which are being written, and whether to read them pays.

A slot is written when it is published, and read when a prompt goes on with it that the pool has lost. What the books
say may be out of date, since others write to the disk and make room on it: a slot that cannot be read is a miss, and
its tokens are computed.
"""

from collections.abc import Iterable

from penstock.cache.transfers import Batch, Transfers
from penstock.core.plan import Place, Shelved

# What was measured last weighs this much.
_NEWEST = 0.2
# Tokens of prompts in a step that tells how long they take: of fewer, the step's own cost is the larger part.
_LEAST_TOKENS = 64
# Reading must be expected to take no more than this share of computing: a wrong guess makes a request wait.
_MOST_SHARE = 0.8
# For what is read, a request waits so long at least, in seconds, and as long as it would take to compute it.
_LEAST_PATIENCE = 1.0
_PATIENCE = 5.0


class Average:
    """Of a figure that changes slowly; None before it was measured.

    Attributes:
        value: the average.
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """It was measured once more."""
        self.value = value if self.value is None else self.value + _NEWEST * (value - self.value)


class Shelf:
    """Slots of all groups, by the keys of the prefixes that they end.

    Args:
        known: those that the disk has at the start, with their groups.
        most_writing: how many slots may be on their way to it; others are not written.

    Attributes:
        written, dropped: how many slots were written, and how many were not since the disk was too slow, or failed.
        read_slots, lost: how many were read, and how many of those that should have been there could not be.
        hit_tokens: tokens that were not computed, since what was read had them.
    """

    def __init__(self, transfers: Transfers, known: Iterable[tuple[int, bytes]], most_writing: int) -> None:
        self._transfers = transfers
        self._there = set(known)
        self._writing: dict[Batch, tuple[int, bytes]] = {}
        self._under_way: set[tuple[int, bytes]] = set()
        self._most_writing = most_writing
        self._reading = 0
        self._slot_seconds, self._token_seconds = Average(), Average()
        self.written = self.dropped = self.read_slots = self.lost = self.hit_tokens = 0

    def totals(self) -> dict[str, int]:
        """As fields of `LoadSnapshot`."""
        return {
            "disk_slots": len(self._there),
            "disk_written": self.written,
            "disk_dropped": self.dropped,
            "disk_read": self.read_slots,
            "disk_lost": self.lost,
            "disk_hit_tokens": self.hit_tokens,
        }

    def has(self, group: int, key: bytes) -> bool:
        """Whether the slot is there, as far as is known."""
        return (group, key) in self._there

    def pays(self, tokens: int, slots: int) -> bool:
        """Whether to read this number of slots takes less time than to compute their tokens.

        Where either was never measured it is tried.
        """
        slot, token = self._slot_seconds.value, self._token_seconds.value
        return slot is None or token is None or (self._reading + slots) * slot <= _MOST_SHARE * tokens * token

    def patience(self, tokens: int) -> float:
        """How many seconds to wait for this number of tokens before they are computed after all."""
        token = self._token_seconds.value
        return _PATIENCE if token is None else max(_LEAST_PATIENCE, tokens * token)

    def read_takes(self, seconds: float) -> None:
        """A slot was read in this number of seconds."""
        self._slot_seconds.add(seconds)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed this number of tokens of prompts, and little else."""
        if tokens >= _LEAST_TOKENS and seconds > 0:
            self._token_seconds.add(seconds / tokens)

    def write(self, group: int, key: bytes, blocks: tuple[int, ...]) -> None:
        """The plan in the making copies a published slot here, unless it is here, or too many are on their way."""
        slot = (group, key)
        if slot in self._there or slot in self._under_way:
            return
        if len(self._writing) >= self._most_writing:
            self.dropped += 1
            return
        batch = Batch(awaited=False)
        self._transfers.add(batch, group, Place("pool", blocks), Place("disk", (), key))
        self._writing[batch] = slot
        self._under_way.add(slot)

    def read(self, batch: Batch, group: int, key: bytes, blocks: tuple[int, ...]) -> int:
        """The plan in the making copies a slot into the pool; the id of the transfer."""
        self._reading += 1
        return self._transfers.add(batch, group, Place("disk", (), key), Place("pool", blocks))

    def was_read(self, count: int, failed: Iterable[tuple[int, bytes]], seconds: float) -> None:
        """The reading of `count` slots is over, which took `seconds` together; those that failed are not there."""
        failed = tuple(failed)
        self._reading -= count
        self.lost += len(failed)
        self.read_slots += count - len(failed)
        self._there.difference_update(failed)
        if count:
            self.read_takes(seconds / count)

    def settle(self, over: Iterable[Batch]) -> None:
        """Of the batches that are over, those that were written are here now."""
        for batch in over:
            slot = self._writing.pop(batch, None)
            if slot is not None:
                self._under_way.discard(slot)
                self.written += not batch.failed
                self.dropped += batch.failed
                if not batch.failed:
                    self._there.add(slot)

    def told(self, news: Iterable[Shelved]) -> None:
        """The disk has, or has no more, what these say."""
        for each in news:
            if each.there:
                self._there.add((each.group, each.key))
            else:
                self._there.discard((each.group, each.key))
