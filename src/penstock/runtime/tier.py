"""A tier beside the pool: slots go to a store and come back on threads of its own, while steps are computed.

What is to be written is copied first, so that its blocks may be used again at once. What was read is put into the pool
by the thread that computes steps, between two of them: nothing else writes there. A slot that cannot be read, and one
that is not written since the store fails or is too slow, is told as a transfer that was not done.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.cache.shelf_room import Name
from penstock.core.plan import ShelfName, Shelved, Transfer, TransferResult
from penstock.runtime.copies import Copies, Copy
from penstock.runtime.health import Health
from penstock.runtime.slot_store import SlotKeeper, SlotStore
from penstock.stepping.storage import Copied, Slots

if TYPE_CHECKING:
    # It needs what encrypts, which is an extra.
    from penstock.runtime.sealing import Sealing

# Copies that wait to be written, and what was read and is not in the pool yet: more is not begun.
_MOST_WAITING = 256 << 20
# Put into the pool after one step: the next one waits for it.
_MOST_PUT = 64 << 20
# Slots that a store is told of before they are read.
_MOST_AHEAD = 32
# Between two looks at what others have written, and how much longer than a look that is at least.
_LOOK_SECONDS, _LOOK_SHARE = 5.0, 20

Came = Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class Backing:
    """What a tier keeps slots in.

    Attributes:
        shelf: by which transfers name it.
        option: by which users do.
        known: the names of what it has at the start.
        follows: whether others write there, and what they do is of interest.
        keeper: the store, where it keeps slots on request.
        keeps: bytes that it keeps on request.
        is_read_only: whether nothing is written there from here.
        ahead: has the store bring nearer what is read soon; None: it has no such way.
    """

    shelf: ShelfName
    option: str
    store: SlotStore
    known: tuple[Name, ...] = ()
    follows: bool = False
    keeper: SlotKeeper | None = None
    keeps: int = 0
    is_read_only: bool = False
    ahead: Callable[[Name], None] | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is written of a slot: it is in the `copy` once what was `copied` of the pool is used."""

    copied: Copied
    copy: Copy


@dataclass(frozen=True, slots=True)
class _Read:
    """A transfer to the pool, with the slot; None where that is not there."""

    transfer: Transfer
    slot: Copy | None
    seconds: float


class Tier:
    """Carries out the transfers to and from a store.

    Args:
        sealing: opens what was read.
        pool: where that is copied to.
        slot_bytes: bytes of a slot of each group.
        copies: memory for what waits; several tiers have the same.
        changed: is told when something is over; several tiers have the same.
    """

    def __init__(
        self,
        backing: Backing,
        sealing: "Sealing",
        pool: Slots,
        slot_bytes: Sequence[int],
        copies: Copies,
        changed: threading.Condition,
    ) -> None:
        self._shelf, self._store, self._sealing = backing.shelf, backing.store, sealing
        self._keeper, self._ahead = backing.keeper, backing.ahead
        self._pool = pool
        self._slot_bytes = slot_bytes
        self._copies = copies
        self._changed = changed
        # What is written, and what is only kept for longer, in the order in which it was asked for.
        self._to_write: deque[tuple[Transfer, Sealed | None]] = deque()
        self._to_read: deque[Transfer] = deque()
        # Of the first in this queue, how many the store was told of.
        self._told = 0
        self._read: deque[_Read] = deque()
        self._written: list[TransferResult] = []
        self._news: list[Shelved] = []
        # What was there at the newest look, but for what has shown not to be.
        self._seen = set(backing.known)
        # Bytes in these queues, what is accepted and not done, and which transfers are to be reported.
        self._writing = self._holding = self._left = 0
        self._due: set[int] = set()
        expected, computes = backing.store.failures, "tokens are computed until it can"
        self._reading_health = Health(backing.option, "read", computes, expected)
        kept_not = "blocks are not kept there until it can; requests are served as without it"
        self._writing_health = Health(backing.option, "written to", kept_not, expected)
        works = [self._write_on, self._read_on] * backing.store.parallel + [self._look_on] * backing.follows
        self._ended = threading.Event()
        for work in works:
            # They end with the process, if not before.
            threading.Thread(target=work, name=f"penstock-{backing.shelf}", daemon=True).start()

    def accepts(self, transfer: Transfer) -> bool:
        """Whether a slot can be written, or kept for longer; then `write` or `drop` follows.

        Where it cannot, since too much waits already or the store has a rest, that is reported.
        """
        with self._changed:
            self._due.add(transfer.id)
            size = self._size(transfer)
            if size and (self._writing + size > _MOST_WAITING or self._writing_health.rests):
                self._written.append(TransferResult(transfer.id, done=False))
                return False
            self._writing += size
            self._left += 1
        if not size:
            assert self._keeper is not None, "nothing else keeps slots on request"
            self._keeper.expect((transfer.group, transfer.target.key), transfer.keep)
        return True

    def write(self, transfer: Transfer, sealed: Sealed | None) -> None:
        """Begin to write a slot; None: have it stay for a time. Each comes behind those before."""
        with self._changed:
            self._to_write.append((transfer, sealed))
            self._changed.notify_all()

    def drop(self, transfer: Transfer, *, told: bool) -> None:
        """What was accepted is not written after all; whether that is reported."""
        with self._changed:
            self._left -= 1
            self._writing -= self._size(transfer)
            if told:
                self._written.append(TransferResult(transfer.id, done=False))
            self._changed.notify_all()

    def _size(self, transfer: Transfer) -> int:
        """Bytes that are copied for it; of what is only kept for longer, none are."""
        return self._slot_bytes[transfer.group] if transfer.source.store == "pool" else 0

    def read(self, transfer: Transfer) -> None:
        """Begin to read a slot."""
        with self._changed:
            self._due.add(transfer.id)
            self._to_read.append(transfer)
            self._changed.notify_all()

    def leave(self, transfers: Collection[Transfer]) -> None:
        """These are not reported any more, and put nothing into the pool: their plan has failed."""
        with self._changed:
            self._due.difference_update(transfer.id for transfer in transfers)
            self._written = [each for each in self._written if each.id in self._due]

    @property
    def any_over(self) -> bool:
        """Whether `finish` has something to do."""
        return bool(self._read or self._written)

    def finish(self, came: Came) -> list[TransferResult]:
        """Put what was read into the pool; what is over since this was called before.

        `came` is told of the blocks that have other contents now.
        """
        # Where this fails, all is still there to be put.
        with self._changed:
            some = self._some_read()
        slots = [(each.transfer.target.blocks, each.slot.content) for each in some if each.slot is not None]
        began = time.perf_counter()
        if slots:
            self._pool.put_slots(slots)
            for blocks, _ in slots:
                came(blocks)
        share = (time.perf_counter() - began) / max(1, len(slots))
        with self._changed:
            for each in some:
                slot = self._read.popleft().slot
                if slot is not None:
                    self._copies.leave(slot)
                self._holding -= self._slot_bytes[each.transfer.group]
            reports = [
                TransferResult(each.transfer.id, each.slot is not None, each.seconds + share)
                for each in some
                if each.transfer.id in self._due
            ]
            reports += self._written
            self._written = []
            self._due.difference_update(report.id for report in reports)
            self._changed.notify_all()
        return reports

    def _some_read(self) -> list[_Read]:
        """The first that were read, up to what is put at a time; without the slots of plans that have failed."""
        some: list[_Read] = []
        room = _MOST_PUT
        for each in self._read:
            if room <= 0:
                break
            found = each if each.transfer.id in self._due else replace(each, slot=None)
            room -= 0 if found.slot is None else len(found.slot.content)
            some.append(found)
        return some

    def news(self) -> list[Shelved]:
        """What the store has, or has no more, since this was asked before; what is reported as written is not told."""
        if not self._news:
            return []
        with self._changed:
            news, self._news = self._news, []
        return news

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is left to write, for so long at most; whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)

    def end(self) -> None:
        """Let go of the store and of the pool: what waits is neither written nor read any more."""
        self._ended.set()
        with self._changed:
            self._changed.notify_all()

    def _write_on(self) -> None:
        while True:
            with self._changed:
                while not self._to_write and not self._ended.is_set():
                    self._changed.wait()
                if self._ended.is_set():
                    return
                transfer, sealed = self._to_write.popleft()
            name = transfer.group, transfer.target.key
            if sealed is not None:
                done, gone = self._put(name, sealed, transfer.target.weight)
                self._copies.leave(sealed.copy)
            else:
                done, gone = self._keep(name, transfer.keep), ()
            with self._changed:
                self._left -= 1
                self._writing -= self._size(transfer)
                self._seen.difference_update(gone)
                self._tell(gone, there=False)
                if transfer.id in self._due:
                    self._written.append(TransferResult(transfer.id, done))
                elif done:
                    self._tell([name], there=True)
                self._changed.notify_all()

    def _keep(self, name: Name, seconds: float) -> bool:
        assert self._keeper is not None, "it was asked for"
        try:
            return self._keeper.keep(name, seconds)
        except Exception as error:  # As below.
            self._writing_health.failed(error)
            return False

    def _put(self, name: Name, sealed: Sealed, weight: float) -> tuple[bool, Sequence[Name]]:
        try:
            # Where the store rests too: what was copied holds memory until it is used.
            sealed.copied.use()
            if self._writing_health.rests:
                return False, ()
            gone = self._store.put(name, sealed.copy.content, weight)
        except Exception as error:  # Whatever it is, it must not end the thread.
            self._writing_health.failed(error)
            return False, ()
        self._writing_health.worked()
        return True, gone

    def _read_on(self) -> None:
        while True:
            with self._changed:
                while (not self._to_read or self._holding > _MOST_WAITING) and not self._ended.is_set():
                    self._changed.wait()
                if self._ended.is_set():
                    return
                transfer = self._to_read.popleft()
                size = self._slot_bytes[transfer.group]
                self._holding += size
                is_void = transfer.id not in self._due
                soon = [] if self._ahead is None else list(islice(self._to_read, max(0, self._told - 1), _MOST_AHEAD))
                self._told = max(0, self._told - 1) + len(soon)
            for each in soon:
                self._bring_nearer((each.group, each.source.key))
            began = time.perf_counter()
            slot = None if is_void else self._get((transfer.group, transfer.source.key), size)
            # Where several are read at a time, each takes its share of the time.
            seconds = (time.perf_counter() - began) / self._store.parallel
            with self._changed:
                self._read.append(_Read(transfer, slot, seconds))
                self._changed.notify_all()

    def _bring_nearer(self, name: Name) -> None:
        assert self._ahead is not None, "the store has such a way"
        # What fails here fails when it is read, and is told then.
        if not self._reading_health.rests:
            with contextlib.suppress(*self._store.failures):
                self._ahead(name)

    def _get(self, name: Name, size: int) -> Copy | None:
        if self._reading_health.rests:
            self._missed(name)
            return None
        try:
            sealed = self._store.get(name, self._sealing.beside + size)
        except Exception as error:  # As above.
            self._reading_health.failed(error)
            self._missed(name)
            return None
        self._reading_health.worked()
        if sealed is None:
            self._missed(name)
            return None
        slot = self._copies.take(size)
        if self._sealing.open(name, sealed, slot.content):
            return slot
        # What is spoiled stays seen: it is not told again before it was written anew.
        self._copies.leave(slot)
        return None

    def _missed(self, name: Name) -> None:
        """Where it is there at the next look, that is news."""
        with self._changed:
            self._seen.discard(name)

    def _look_on(self) -> None:
        seconds = _LOOK_SECONDS
        while not self._ended.wait(seconds):
            began = time.monotonic()
            try:
                names = set(self._store.names())
            except Exception as error:  # As above.
                self._reading_health.failed(error)
                seconds = max(_LOOK_SECONDS, self._reading_health.seconds_left)
                continue
            with self._changed:
                come, gone = names - self._seen, self._seen - names
                self._seen = names
                self._tell(come, there=True)
                self._tell(gone, there=False)
            seconds = max(_LOOK_SECONDS, _LOOK_SHARE * (time.monotonic() - began))

    def _tell(self, names: Collection[Name], *, there: bool) -> None:
        self._news += (Shelved(self._shelf, *name, there=there) for name in names)
