"""The tiers beyond the pool as the executor sees them: each has its transfers, and all are waited for together."""

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cache.shelf_room import Name
from penstock.core.plan import Shelved, Transfer, TransferResult
from penstock.runtime.copies import Copies
from penstock.runtime.tier import Backing, Came, Sealed, Tier
from penstock.stepping.storage import Slots

if TYPE_CHECKING:
    # It needs what encrypts, which is an extra.
    from penstock.runtime.sealing import Sealing

_WAIT_SECONDS = 0.05
# At the end of an engine or of the process, for what is still to be written.
_LAST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Leaving:
    """What a tier has accepted and has not been given yet; None: it is only kept for longer."""

    tier: Tier
    transfer: Transfer
    sealed: Sealed | None


class Tiers:
    """Those of an engine, the fastest first.

    Args:
        backings: what each keeps slots in.
        sealing: what they are given of a slot, which is made once for all of them.
        pool: where slots are copied from, and to.
        slot_bytes: bytes of a slot of each group.
    """

    def __init__(self, backings: Sequence[Backing], sealing: "Sealing", pool: Slots, slot_bytes: Sequence[int]) -> None:
        self.backings = tuple(backings)
        self._sealing, self._pool = sealing, pool
        self._slot_bytes = slot_bytes
        self._copies = Copies()
        self._changed = threading.Condition()
        self._tiers = {
            each.shelf: Tier(each, sealing, pool, slot_bytes, self._copies, self._changed) for each in backings
        }
        # What is on its way out of the pool, and requests to keep what is.
        self._leaving: deque[_Leaving] = deque()
        _alive.add(self)
        # The threads of tiers hold what these do not: a tier, and the pool.
        weakref.finalize(self, _left_alone, self._leaving, tuple(self._tiers.values())).atexit = False

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """Begin those that write to a tier or read from one; the blocks of the former may be used again."""
        sealed: dict[Name, Sealed | None] = {}
        for transfer in transfers:
            if transfer.shelf is None:
                continue
            tier = self._tiers[transfer.shelf]
            if transfer.target.store == "pool":
                tier.read(transfer)
            elif tier.accepts(transfer):
                self._write(tier, transfer, sealed)
        for each in sealed.values():
            if each is not None:
                self._copies.leave(each.copy)
        self._pool.begin_copies()

    def _write(self, tier: Tier, transfer: Transfer, sealed: dict[Name, Sealed | None]) -> None:
        """Begin one that a tier has accepted, with what is sealed in its plan: a slot is so once for all tiers."""
        one = None
        if transfer.source.store == "pool":
            name = transfer.group, transfer.target.key
            if name not in sealed:
                sealed[name] = self._seal(name, transfer.source.blocks)
            one = sealed[name]
            if one is None:
                tier.drop(transfer, told=True)
                return
            self._copies.hold(one.copy)
        self._leaving.append(_Leaving(tier, transfer, one))
        self.hand_over()

    def _seal(self, name: Name, blocks: Sequence[int]) -> Sealed | None:
        """What will be written of a slot; None where there is no room for it on its way."""
        copy = self._copies.take(self._sealing.beside + self._slot_bytes[name[0]])
        copied = self._pool.copied(blocks, lambda slot: self._sealing.seal(name, slot, copy.content))
        if copied is None:
            self._copies.leave(copy)
            return None
        return Sealed(copied, copy)

    def hand_over(self, *, wait: bool = False) -> None:
        """Give tiers what has come out of the pool; all that is on its way, where it is to `wait`."""
        _hand_over(self._leaving, wait=wait)

    def leave(self, transfers: Collection[Transfer]) -> None:
        """These are not reported any more, and put nothing into the pool: their plan has failed."""
        left = {transfer.id for transfer in transfers}
        for each in self._leaving:
            if each.transfer.id in left:
                each.tier.drop(each.transfer, told=False)
                if each.sealed is not None:
                    each.sealed.copied.drop()
                    self._copies.leave(each.sealed.copy)
        staying = [each for each in self._leaving if each.transfer.id not in left]
        self._leaving.clear()
        self._leaving.extend(staying)
        for name, tier in self._tiers.items():
            tier.leave([transfer for transfer in transfers if transfer.shelf == name])

    def finish(self, came: Came, *, wait: bool) -> list[TransferResult]:
        """Put what was read into the pool; what is over since this was called before.

        `came` is told of the blocks that have other contents now.
        Where it is to `wait` and none is over, it waits for one, though not for long: a tier may not answer at all.
        """
        self.hand_over()
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: any(tier.any_over for tier in self._tiers.values()), _WAIT_SECONDS)
        return [report for tier in self._tiers.values() for report in tier.finish(came)]

    def news(self) -> list[Shelved]:
        """What the stores have, or have no more, since this was asked before."""
        return [each for tier in self._tiers.values() for each in tier.news()]

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is left to write, so long at most; whether it is so."""
        return _flush(self._leaving, self._tiers.values(), seconds)


def _hand_over(leaving: deque[_Leaving], *, wait: bool) -> None:
    while leaving:
        first = leaving[0]
        if first.sealed is not None:
            if wait:
                first.sealed.copied.wait()
            if not first.sealed.copied.is_there():
                break
        leaving.popleft()
        first.tier.write(first.transfer, first.sealed)


def _flush(leaving: deque[_Leaving], tiers: Iterable[Tier], seconds: float) -> bool:
    end = time.monotonic() + seconds
    _hand_over(leaving, wait=True)
    # All of them write at the same time.
    done = [tier.flush(max(0.0, end - time.monotonic())) for tier in tiers]
    return all(done)


def _left_alone(leaving: deque[_Leaving], tiers: tuple[Tier, ...]) -> None:
    """Nothing uses these tiers any more: what they were given is written, and the pool's memory is free."""

    def end() -> None:
        _flush(leaving, tiers, _LAST_SECONDS)
        for tier in tiers:
            tier.end()

    # The collector may have come here on a thread that a tier waits for. The end of the process waits for this one.
    threading.Thread(target=end, name="penstock-kv-end").start()


# Tiers that engines use.
_alive: "weakref.WeakSet[Tiers]" = weakref.WeakSet()


@atexit.register
def _flush_all() -> None:
    """The process ends, and with it the threads of tiers."""
    end = time.monotonic() + _LAST_SECONDS
    for tiers in list(_alive):
        tiers.flush(end - time.monotonic())
