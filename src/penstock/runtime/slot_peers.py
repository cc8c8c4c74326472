"""Slots that other replicas have computed for requests that go on here, pulled from where each request says.

What is known of them is known by request: which slots its prompt has at which partner, from when that was asked until
the request has a token here or has ended. Meanwhile their leases are renewed; then they are given back.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.cache.shelf_room import Name
from penstock.core.handover import LEASE_SECONDS
from penstock.runtime.health import Health
from penstock.runtime.partner import Partner, PartnerFailed
from penstock.runtime.partner_near import NearPartner

# Partners that are remembered beside those that something is pulled from.
_MOST_PARTNERS = 64
_COMPUTED = "what it has computed is computed here until it can"


@dataclass(slots=True, eq=False)
class _Known:
    """A partner.

    Attributes:
        health: whether it answers.
    """

    partner: Partner
    health: Health


class SlotPeers:
    """A `SlotStore` that is only read.

    Args:
        connect: makes a partner of an address.
        heartbeat: seconds between two renewals of leases.
    """

    parallel = 4
    failures: tuple[type[Exception], ...] = (OSError,)
    refusals: tuple[type[Exception], ...] = ()

    def __init__(self, connect: Callable[[str], Partner] = NearPartner, heartbeat: float = LEASE_SECONDS / 3) -> None:
        self._connect, self._heartbeat = connect, heartbeat
        self._lock = threading.Lock()
        self._partners: OrderedDict[str, _Known] = OrderedDict()
        # By request, its partner and the slots that are there for it; by slot, the requests, with the partners.
        self._requests: dict[int, tuple[_Known, tuple[Name, ...]]] = {}
        self._places: dict[Name, dict[int, _Known]] = {}
        self._left: list[tuple[_Known, Sequence[Name]]] = []
        self._woken = threading.Event()
        self._keeper: threading.Thread | None = None

    def names(self) -> Sequence[Name]:
        """None: what is there, a request says."""
        return ()

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> Sequence[Name]:
        """Nothing is written to partners."""
        raise PartnerFailed("nothing is written to partners")

    def find(self, request: int, address: str, names: Sequence[Name], awaited: int, seconds: float) -> Sequence[Name]:
        """Which slots a partner has for a request, from now on until `leave`; none where it does not answer.

        It answers once the last `awaited` of them are there, or the seconds are over.
        """
        known = self._known(address)
        if known.health.rests:
            return ()
        try:
            there = known.partner.find(names, awaited, seconds)
        except PartnerFailed as error:
            known.health.failed(error)
            return ()
        known.health.worked()
        found = tuple(name for name, is_there in zip(names, there, strict=True) if is_there)
        with self._lock:
            self._requests[request] = known, found
            for name in found:
                self._places.setdefault(name, {})[request] = known
            if self._keeper is None:
                # It ends with the process.
                self._keeper = threading.Thread(target=self._keep, name="penstock-leases", daemon=True)
                self._keeper.start()
        return found

    def get(self, name: Name, most: int) -> bytes | bytearray | None:
        """A slot, from a partner that has it and answers; None where there is none."""
        with self._lock:
            having = dict.fromkeys(self._places.get(name, {}).values())
        for known in having:
            if known.health.rests:
                continue
            try:
                value = known.partner.pull(name, most)
            except PartnerFailed as error:
                known.health.failed(error)
                continue
            known.health.worked()
            if value is not None:
                return value
        return None

    def leave(self, request: int) -> Sequence[Name]:
        """A request needs nothing more; the slots that no other one needs, which are there no more."""
        gone: list[Name] = []
        with self._lock:
            if request not in self._requests:
                return gone
            known, names = self._requests.pop(request)
            for name in names:
                places = self._places[name]
                del places[request]
                if not places:
                    del self._places[name]
                    gone.append(name)
            self._left.append((known, [name for name in names if known not in self._places.get(name, {}).values()]))
        self._woken.set()
        return gone

    def _known(self, address: str) -> _Known:
        with self._lock:
            known = self._partners.get(address)
            if known is None:
                health = Health(f"The replica at {address}", "asked for blocks", _COMPUTED, self.failures)
                known = self._partners[address] = _Known(self._connect(address), health)
            self._partners.move_to_end(address)
            used = {id(known), *(id(each) for each, _ in self._requests.values())}
            idle = [each for each, other in self._partners.items() if id(other) not in used]
            old = [self._partners.pop(each) for each in idle[: max(0, len(self._partners) - _MOST_PARTNERS)]]
        for each in old:
            each.partner.close()
        return known

    def _keep(self) -> None:
        """Give leases back as soon as that may be; now and then renew those of others, and let go of idle partners."""
        due = time.monotonic() + self._heartbeat
        while True:
            self._woken.wait(max(0.0, due - time.monotonic()))
            self._woken.clear()
            renews = time.monotonic() >= due
            due = time.monotonic() + self._heartbeat if renews else due
            with self._lock:
                left, self._left = self._left, []
                waiting: dict[_Known, dict[Name, None]] = {}
                for known, names in self._requests.values() if renews else ():
                    waiting.setdefault(known, {}).update(dict.fromkeys(names))
                using = {id(known) for known, _ in self._requests.values()}
                idle = [each for each in self._partners.values() if renews and id(each) not in using]
            for known in idle:
                # Its memory, where it is mapped, would stay even if it has ended.
                known.partner.close()
            for known, released in left:
                self._tell(known, released, known.partner.release)
            for known, renewed in waiting.items():
                self._tell(known, list(renewed), partial(known.partner.renew, seconds=LEASE_SECONDS))

    def _tell(self, known: _Known, names: Sequence[Name], tell: Callable[[Sequence[Name]], None]) -> None:
        if not names or known.health.rests:
            return
        try:
            tell(names)
        except PartnerFailed as error:
            known.health.failed(error)
