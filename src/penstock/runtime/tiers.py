"""The tiers beyond the pool as the executor sees them: each has its transfers, and all are waited for together."""

import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.cache.shelf_room import Name
from penstock.core.plan import Shelved, Transfer, TransferResult
from penstock.runtime.copies import Copies, Copy
from penstock.runtime.tier import Backing, Came, Tier
from penstock.stepping.storage import Slots

if TYPE_CHECKING:
    # It needs what encrypts, which is an extra.
    from penstock.runtime.sealing import Sealing

_WAIT_SECONDS = 0.05


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
        self._copies = Copies()
        self._changed = threading.Condition()
        self._tiers = {
            each.shelf: Tier(each, sealing, pool, slot_bytes, self._copies, self._changed) for each in backings
        }

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """Begin those that write to a tier or read from one."""
        sealed: dict[Name, Copy] = {}

        def seal(transfer: Transfer) -> Copy:
            """What is encrypted is a copy, so that the blocks may be used again."""
            name = transfer.group, transfer.target.key
            if name not in sealed:
                slot = self._pool.slot(transfer.source.blocks)
                sealed[name] = self._copies.take(self._sealing.beside + len(slot))
                self._sealing.seal(name, slot, sealed[name].content)
            return self._copies.hold(sealed[name])

        for transfer in transfers:
            if transfer.shelf is None:
                continue
            tier = self._tiers[transfer.shelf]
            if transfer.source.store == transfer.target.store:
                tier.keep(transfer)
            elif transfer.target.store == transfer.shelf:
                tier.write(transfer, partial(seal, transfer))
            else:
                tier.read(transfer)
        for copy in sealed.values():
            self._copies.leave(copy)

    def leave(self, transfers: Collection[Transfer]) -> None:
        """These are not reported, and put nothing into the pool any more: their plan has failed."""
        for name, tier in self._tiers.items():
            tier.leave([transfer for transfer in transfers if transfer.shelf == name])

    def finish(self, came: Came, *, wait: bool) -> list[TransferResult]:
        """Put what was read into the pool; what is over since this was called before.

        `came` is told of the blocks that have other contents now.
        Where it is to `wait` and none is over, it waits for one, though not for long: a tier may not answer at all.
        """
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: any(tier.any_over for tier in self._tiers.values()), _WAIT_SECONDS)
        return [report for tier in self._tiers.values() for report in tier.finish(came)]

    def news(self) -> list[Shelved]:
        """What the stores have, or have no more, since this was asked before."""
        return [each for tier in self._tiers.values() for each in tier.news()]

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is left to write, so long at most for each; whether it is so."""
        return all(tier.flush(seconds) for tier in self._tiers.values())
