"""The tiers beyond the pool as the executor sees them: each has its transfers, and all are waited for together."""

import threading
from collections.abc import Collection, Mapping, Sequence

from penstock.core.plan import ShelfName, Shelved, Transfer, TransferResult
from penstock.runtime.disk_tier import Came, DiskTier

_WAIT_SECONDS = 0.05


class Tiers:
    """Those of an engine, by the names of their shelves, the fastest first.

    Args:
        tiers: they tell `changed` of whatever is over.
    """

    def __init__(self, tiers: Mapping[ShelfName, DiskTier], changed: threading.Condition) -> None:
        self._tiers = tiers
        self._changed = changed

    def names(self) -> dict[ShelfName, list[tuple[int, bytes]]]:
        """Of the slots that are there, by shelf: their groups, and the keys of the prefixes that they end."""
        return {name: tier.names for name, tier in self._tiers.items()}

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """Begin those that write to a tier or read from one."""
        for transfer in transfers:
            if transfer.shelf is None:
                continue
            tier = self._tiers[transfer.shelf]
            if transfer.target.store == transfer.shelf:
                tier.write(transfer)
            else:
                tier.read(transfer)

    def leave(self, transfers: Collection[Transfer]) -> None:
        """These are not reported, and put nothing into the pool any more: their plan has failed."""
        for name, tier in self._tiers.items():
            tier.leave([transfer for transfer in transfers if transfer.shelf == name])

    def finish(self, came: Came, *, wait: bool) -> tuple[list[TransferResult], list[Shelved]]:
        """Put what was read into the pool; what is over since this was called before, and what is to be told.

        `came` is told of the blocks that have other contents now.
        Where it is to `wait` and none is over, it waits for one, though not for long: a tier may not answer at all.
        """
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: any(tier.any_over for tier in self._tiers.values()), _WAIT_SECONDS)
        found = [tier.finish(came) for tier in self._tiers.values()]
        return [report for reports, _ in found for report in reports], [each for _, news in found for each in news]

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is left to write, so long at most for each; whether it is so."""
        return all(tier.flush(seconds) for tier in self._tiers.values())
