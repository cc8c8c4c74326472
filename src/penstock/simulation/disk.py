"""A disk beside a simulated pool: which slots it has, and when what is read and written is there.

It does what `runtime/tier.py` does: one slot is written behind the other, and beside that, one is read behind the
other. `ShelfRoom` says which make room.
"""

from collections import deque
from collections.abc import Iterable
from itertools import count
from math import inf

from msgspec.structs import replace

from penstock.cache.shelf import MOST_WRITING, Shelf
from penstock.cache.shelf_room import Name, ShelfRoom
from penstock.core.plan import Shelved, StepResult, Transfer, TransferResult
from penstock.planning.disk import Disk
from penstock.scheduler.scheduler import Scheduler

# As long as an engine waits for a disk before it looks whether requests have come, in seconds.
_WAIT_SECONDS = 0.05


class SimulatedDisk:
    """A disk of one replica, which is put beside the scheduler's cache.

    Args:
        devices: of the replica, which keep a part of each slot each.
    """

    def __init__(self, disk: Disk, scheduler: Scheduler, devices: int = 1) -> None:
        self._disk = disk
        spec = scheduler.cache.spec
        self._slot_bytes = [spec.slot_bytes(group) * devices for group in range(len(spec.groups))]
        # With the numbers of their uses as times.
        self._room, self._uses = ShelfRoom(), count()
        # What is under way, with when it is over.
        self._writes: deque[tuple[float, Transfer]] = deque()
        self._reads: deque[tuple[float, Transfer]] = deque()
        # What is over and not reported, and what had to go and is not told.
        self._over: list[TransferResult] = []
        self._gone: list[Name] = []
        self._cache = scheduler.cache
        most = max(1, MOST_WRITING // max(self._slot_bytes))
        scheduler.cache.put_on([Shelf("disk", scheduler.cache.transfers, (), most)])

    def tell(self, now: float) -> None:
        """Have the books of the cache learn what had to go, before a plan is made."""
        self._go_on(now)
        self._cache.shelves.told([Shelved("disk", *name, there=False) for name in self._gone])
        self._gone = []

    def begin(self, transfers: Iterable[Transfer], now: float) -> None:
        """Those of a plan to the disk, and from there, begin as soon as the ones before them are over."""
        for transfer in transfers:
            size = self._slot_bytes[transfer.group]
            if transfer.shelf is None:
                continue
            if transfer.target.store == "disk":
                _line_up(self._writes, transfer, now, size / self._disk.write)
            else:
                _line_up(self._reads, transfer, now, size / self._disk.read)

    def waiting_ends(self, now: float) -> float:
        """When a plan ends that has nothing to compute before something is over."""
        return min(now + _WAIT_SECONDS, *(under_way[0][0] if under_way else inf for under_way in self._both))

    def reported(self, result: StepResult, now: float) -> StepResult:
        """The result of a step that ends now, with what is over by then."""
        self._go_on(now)
        reports, self._over = self._over, []
        return replace(result, transfers=(*result.transfers, *reports))

    def _go_on(self, now: float) -> None:
        """What ends by now has ended."""
        while over := min((each for each in self._both if each and each[0][0] <= now), key=_first_ends, default=None):
            _, transfer = over.popleft()
            size = self._slot_bytes[transfer.group]
            if over is self._writes:
                done, seconds = self._keep(transfer, size), size / self._disk.write
            else:
                done, seconds = (
                    self._room.use((transfer.group, transfer.source.key), next(self._uses)),
                    size / self._disk.read,
                )
            self._over.append(TransferResult(transfer.id, done, seconds))

    @property
    def _both(self) -> tuple[deque[tuple[float, Transfer]], ...]:
        return self._writes, self._reads

    def _keep(self, transfer: Transfer, size: int) -> bool:
        """A slot is written, for which others may have to go; whether it can be."""
        name, weight = (transfer.group, transfer.target.key), transfer.target.weight
        while self._room.bytes + size > self._disk.size:
            other = self._room.first_to_go(name, size, weight)
            if other is None:
                return False
            self._room.remove(other)
            self._gone.append(other)
        self._room.add(name, size, next(self._uses), weight)
        return True


def _line_up(under_way: deque[tuple[float, Transfer]], transfer: Transfer, now: float, seconds: float) -> None:
    begins = max(now, under_way[-1][0]) if under_way else now
    under_way.append((begins + seconds, transfer))


def _first_ends(under_way: deque[tuple[float, Transfer]]) -> float:
    return under_way[0][0]
