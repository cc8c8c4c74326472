"""What a simulated replica that decodes pulls from those that compute prompts, beside its steps.

It does what `runtime/tier.py` and `engine/pulling.py` do: the blocks of a prompt are known before it is queued, the
scheduler says which of them are read, and one comes behind the other.
"""

from collections import deque
from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from penstock.cache.keeps import Slot
from penstock.cache.prompt_slots import slots_of
from penstock.cache.shelf import Shelf
from penstock.core.plan import Shelved, StepResult, Transfer, TransferResult
from penstock.core.request import Request
from penstock.scheduler.scheduler import Scheduler

# As long as an engine waits for blocks before it looks whether requests have come, in seconds.
_WAIT_SECONDS = 0.05


class SimulatedPeer:
    """The way of blocks to one replica, which is put beside the scheduler's cache.

    Args:
        bandwidth: bytes a second.
        devices: of the replica, which keep a part of each block each.
    """

    def __init__(self, bandwidth: float, scheduler: Scheduler, devices: int = 1) -> None:
        self._cache = scheduler.cache
        spec = scheduler.cache.spec
        self._seconds = [spec.slot_bytes(group) * devices / bandwidth for group in range(len(spec.groups))]
        # What is under way, with when it is over.
        self._reads: deque[tuple[float, Transfer]] = deque()
        self._offered: dict[int, list[Slot]] = {}
        scheduler.cache.put_on([Shelf("peer", scheduler.cache.transfers, (), 0)])

    def offer(self, request: Request) -> None:
        """Another replica has computed the prompt of a request that comes now."""
        standing = request.standing
        slots, _ = slots_of(self._cache, request.prompt_token_ids, standing.cache_salt, standing.tenant)
        self._offered[request.request_id] = slots
        self._cache.shelves.told(Shelved("peer", *slot, there=True) for slot in slots)

    def over(self, request_id: int) -> None:
        """A request has ended: what was offered for it is there no more."""
        slots = self._offered.pop(request_id, ())
        self._cache.shelves.told(Shelved("peer", *slot, there=False) for slot in slots)

    def tell(self, now: float) -> None:
        """Nothing makes room by itself."""

    def begin(self, transfers: Iterable[Transfer], now: float) -> None:
        """Those of a plan begin as soon as the ones before them are over."""
        for transfer in transfers:
            if transfer.shelf is not None:
                begins = max(now, self._reads[-1][0]) if self._reads else now
                self._reads.append((begins + self._seconds[transfer.group], transfer))

    def waiting_ends(self, now: float) -> float:
        """When a plan ends that has nothing to compute before something has come."""
        return min(now + _WAIT_SECONDS, self._reads[0][0] if self._reads else inf)

    def reported(self, result: StepResult, now: float) -> StepResult:
        """The result of a step that ends now, with what has come by then."""
        came = []
        while self._reads and self._reads[0][0] <= now:
            _, transfer = self._reads.popleft()
            came.append(TransferResult(transfer.id, True, self._seconds[transfer.group]))
        return replace(result, transfers=(*result.transfers, *came))
