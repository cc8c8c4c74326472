"""Requests whose prompts another replica has computed: what it has of them is known before they are queued."""

import threading
from collections.abc import Sequence
from typing import Protocol

from penstock.cache.keeps import Slot
from penstock.cache.manager import KVCache
from penstock.cache.prompt_slots import slots_of
from penstock.core.plan import Shelved
from penstock.core.request import Request

Found = Sequence[Slot]


class Partners(Protocol):
    """What finds slots at other replicas."""

    def find(self, request: Request, place: str, slots: Found, awaited: int) -> Found:
        """Which slots are there for a request, once the last `awaited` are; waits no longer than some seconds."""

    def leave(self, request_id: int) -> Found:
        """A request needs nothing more; the slots that are there no more by that."""


class Pulling:
    """Tells the books of the shelf when slots come into reach, and when they go.

    Args:
        partners: None where this replica pulls from none, and computes all prompts.
    """

    def __init__(self, cache: KVCache, partners: Partners | None) -> None:
        self._cache, self._partners = cache, partners
        self._lock = threading.Lock()
        self._found: dict[int, Found] = {}

    def expects(self, request: Request) -> bool:
        """Whether another replica is to be asked; what it has is expected then, until `end`."""
        if self._partners is None or not request.offered_at:
            return False
        with self._lock:
            self._found[request.request_id] = ()
        return True

    def find(self, request: Request) -> None:
        """Ask the replica that has computed its prompt, if one has. May be called on any thread."""
        if self._partners is None or request.request_id not in self._found:
            return
        standing = request.standing
        slots, awaited = slots_of(self._cache, request.prompt_token_ids, standing.cache_salt, standing.tenant)
        found = self._partners.find(request, request.offered_at, slots, awaited) if slots else ()
        with self._lock:
            is_expected = request.request_id in self._found
            if is_expected:
                self._found[request.request_id] = found
        if not is_expected:
            self._partners.leave(request.request_id)

    def begin(self, request: Request) -> None:
        """It is queued now: what was found for it can be read."""
        with self._lock:
            found = self._found.get(request.request_id, ())
        self._cache.shelves.told(Shelved("peer", *slot, there=True) for slot in found)

    def end(self, request_id: int) -> None:
        """It has what it gets, or no client waits for it any more. Another time it changes nothing."""
        # Asked with every token.
        if self._partners is None or request_id not in self._found:
            return
        with self._lock:
            del self._found[request_id]
        gone = self._partners.leave(request_id)
        self._cache.shelves.told(Shelved("peer", *slot, there=False) for slot in gone)
