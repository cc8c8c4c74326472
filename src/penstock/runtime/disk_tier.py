"""The disk beside the pool: slots go to files and come back on threads of their own, while steps are computed.

What is to be written is copied first, so that its blocks may be used again at once. What was read is put into the pool
by the thread that computes steps, between two of them: nothing else writes there. A slot that cannot be read, and one
that is not written since the disk fails or is too slow, is told as a transfer that was not done.
"""

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.plan import ShelfName, Shelved, Transfer, TransferResult
from penstock.stepping.storage import Slots

if TYPE_CHECKING:
    from penstock.runtime.slot_files import Sealed, SlotFiles

logger = logging.getLogger("penstock.disk")

# Copies that wait to be written, and what was read and is not in the pool yet: more is not begun.
_MOST_WAITING = 256 << 20
# Put into the pool after one step: the next one waits for it.
_MOST_PUT = 64 << 20
# Before a disk that failed is written to again.
_REST_SECONDS = 10.0
# At the end of the process, for what is still to be written.
_LAST_SECONDS = 5.0

Came = Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class _Read:
    """A transfer to the pool, with the slot; None where that is not there."""

    transfer: Transfer
    slot: bytes | None
    seconds: float


class DiskTier:
    """Carries out the transfers to and from a folder.

    Args:
        name: of its shelf.
        pool: where slots are copied from, and to.
        slot_bytes: bytes of a slot of each group.
        changed: is told when something is over; several tiers have the same.
    """

    def __init__(
        self,
        name: ShelfName,
        files: "SlotFiles",
        pool: Slots,
        slot_bytes: Sequence[int],
        changed: threading.Condition,
    ) -> None:
        self._name = name
        self._files = files
        self._pool = pool
        self._slot_bytes = slot_bytes
        self._changed = changed
        self._to_write: deque[tuple[Transfer, Sealed]] = deque()
        self._to_read: deque[Transfer] = deque()
        self._read: deque[_Read] = deque()
        self._written: list[TransferResult] = []
        self._news: list[Shelved] = []
        # Bytes in these queues, and which transfers are not to be reported.
        self._writing = self._holding = 0
        self._void: set[int] = set()
        self._rests_until = 0.0
        self._said_failing = self._said_unreadable = False
        for work in (self._write_on, self._read_on):
            threading.Thread(target=work, name="penstock-disk", daemon=True).start()
        # Its threads end with the process.
        atexit.register(self.flush, _LAST_SECONDS)

    @property
    def names(self) -> list[tuple[int, bytes]]:
        """Of the slots that are there: their groups, and the keys of the prefixes that they end."""
        return self._files.names()

    def write(self, transfer: Transfer) -> None:
        """Copy a slot, encrypted, and begin to write it, unless too much waits already."""
        size = self._slot_bytes[transfer.group]
        with self._changed:
            if self._writing + size > _MOST_WAITING or time.monotonic() < self._rests_until:
                self._written.append(TransferResult(transfer.id, done=False))
                return
        # What is encrypted is a copy, so that the blocks may be used again.
        sealed = self._files.seal((transfer.group, transfer.target.key), self._pool.slot(transfer.source.blocks))
        with self._changed:
            self._writing += size
            self._to_write.append((transfer, sealed))
            self._changed.notify_all()

    def read(self, transfer: Transfer) -> None:
        """Begin to read a slot."""
        with self._changed:
            self._to_read.append(transfer)
            self._changed.notify_all()

    def leave(self, transfers: Collection[Transfer]) -> None:
        """These are not reported, and put nothing into the pool any more: their plan has failed."""
        with self._changed:
            self._void.update(transfer.id for transfer in transfers)
            self._written = [each for each in self._written if each.id not in self._void]

    @property
    def any_over(self) -> bool:
        """Whether `finish` has something to do."""
        return bool(self._read or self._written)

    def finish(self, came: Came) -> tuple[list[TransferResult], list[Shelved]]:
        """Put what was read into the pool; what is over since this was called before, and what is to be told.

        `came` is told of the blocks that have other contents now.
        """
        reports: list[TransferResult] = []
        room = _MOST_PUT
        while room > 0:
            with self._changed:
                if not self._read:
                    break
                found = self._read.popleft()
                self._holding -= self._slot_bytes[found.transfer.group]
                self._changed.notify_all()
                if found.transfer.id in self._void:
                    self._void.discard(found.transfer.id)
                    continue
            began = time.perf_counter()
            if found.slot is not None:
                self._pool.put_slot(found.transfer.target.blocks, found.slot)
                came(found.transfer.target.blocks)
                room -= len(found.slot)
            seconds = found.seconds + time.perf_counter() - began
            reports.append(TransferResult(found.transfer.id, found.slot is not None, seconds))
        with self._changed:
            reports += self._written
            news, self._written, self._news = self._news, [], []
        return reports, news

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is left to write, for so long at most; whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writing, seconds)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                while not self._to_write:
                    self._changed.wait()
                transfer, sealed = self._to_write.popleft()
            done, gone = self._write(sealed, transfer.target.weight)
            with self._changed:
                self._writing -= self._slot_bytes[transfer.group]
                self._news += (Shelved(self._name, *name, there=False) for name in gone)
                if transfer.id in self._void:
                    self._void.discard(transfer.id)
                    if done:
                        self._news.append(Shelved(self._name, transfer.group, transfer.target.key, there=True))
                else:
                    self._written.append(TransferResult(transfer.id, done))
                self._changed.notify_all()

    def _write(self, sealed: "Sealed", weight: float) -> tuple[bool, list[tuple[int, bytes]]]:
        try:
            gone = self._files.write(sealed, weight)
        except Exception as error:  # Whatever it is, it must not end the thread.
            self._rests_until = time.monotonic() + _REST_SECONDS
            if not self._said_failing:
                self._said_failing = True
                logger.warning(
                    "--kv-disk cannot be written to (%s): blocks are not kept there until it can; "
                    "requests are served as without it.",
                    error,
                    exc_info=None if isinstance(error, OSError) else error,
                )
            return False, []
        if self._said_failing:
            self._said_failing = False
            logger.warning("--kv-disk can be written to again.")
        return True, gone

    def _read_on(self) -> None:
        while True:
            with self._changed:
                while not self._to_read or self._holding > _MOST_WAITING:
                    self._changed.wait()
                transfer = self._to_read.popleft()
                size = self._slot_bytes[transfer.group]
                self._holding += size
                is_void = transfer.id in self._void
            began = time.perf_counter()
            slot = None if is_void else self._slot((transfer.group, transfer.source.key), size)
            with self._changed:
                self._read.append(_Read(transfer, slot, time.perf_counter() - began))
                self._changed.notify_all()

    def _slot(self, name: tuple[int, bytes], size: int) -> bytes | None:
        try:
            return self._files.read(name, size)
        except Exception as error:  # What is wrong with the disk or a file is a miss already: this is unexpected.
            if not self._said_unreadable:
                self._said_unreadable = True
                logger.warning("--kv-disk cannot be read (%s): tokens are computed.", error, exc_info=error)
            return None
