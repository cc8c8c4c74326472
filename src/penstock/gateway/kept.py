"""What replicas keep: stored responses, files and batches. Which replica has one is asked for by its id.

Replicas that tell the same store have the same: each answers for all of them.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import Scope

from penstock.api.errors import ResponseNotFound
from penstock.core.errors import RequestError
from penstock.gateway.errors import NoReplica, ReplicaBroken
from penstock.gateway.headers import get_head
from penstock.gateway.replicas import Replica, Replicas, State
from penstock.storage.errors import BatchNotFound, PreviousResponseNotFound, StorageOff, StoredFileNotFound

# Ids whose replicas are remembered.
MOST_REMEMBERED = 10_000
_ANSWER_SECONDS = 5.0
_REFUSED = 400
# One that has no such thing, or no such path.
_HAS_NOT = frozenset((404, 405, 501))
# Those that take on nothing new may still say what they keep, but for those that are ending.
_ASKED = frozenset((State.READY, State.STALE, State.UNREADY))
# Ids go into paths as they are.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Kind(NamedTuple):
    """Things that replicas keep.

    Attributes:
        path: below which they are.
        missing: what a client is told where there is none with its id.
    """

    name: str
    path: str
    missing: type[RequestError]


RESPONSES = Kind("response", "/v1/responses", ResponseNotFound)
FILES = Kind("file", "/v1/files", StoredFileNotFound)
# As one that a response goes on from.
PREVIOUS = RESPONSES._replace(missing=PreviousResponseNotFound)
BATCHES = Kind("batch", "/v1/batches", BatchNotFound)


class Kept:
    """Knows, or finds out, which replica keeps what.

    Args:
        keyed: whether the gateway has keys of its own.
    """

    def __init__(self, replicas: Replicas, *, keyed: bool) -> None:
        self._replicas, self._keyed = replicas, keyed
        # Of each, the store that it is in, too, if it is one of several replicas.
        self._found: OrderedDict[str, tuple[Replica, str]] = OrderedDict()

    def note(self, kept_id: str, replica: Replica) -> None:
        """Remember which replica keeps the thing with this id."""
        self._found[kept_id] = replica, store_of(replica)
        self._found.move_to_end(kept_id)
        if len(self._found) > MOST_REMEMBERED:
            self._found.popitem(last=False)

    def keepers(self) -> list[Replica]:
        """The replicas that may keep something. Raises StorageOff, NoReplica where there are none."""
        there = self._replicas.machines
        if not there:
            raise NoReplica("No replica is there now; try again later.")
        # Others see all that is asked through a gateway with keys as one tenant's.
        there = [each for each in there if not self._keyed or not _is_of_one_tenant(each)]
        if not there:
            raise StorageOff(
                "Nothing that is stored can be reached here: this gateway has keys of its own, and no replica tells "
                "its tenants apart; give it a key there that asks for others (penstock key --for-others)."
            )
        return there

    def stores(self) -> list[list[Replica]]:
        """The replicas that may keep something, those with one store together; the first to ask comes first.

        Raises StorageOff, NoReplica where there are none.
        """
        found: dict[str, list[Replica]] = {}
        for each in self.keepers():
            found.setdefault(store_of(each) or f"of {each.place}", []).append(each)
        return [sorted(each, key=self._order) for each in found.values()]

    def _order(self, replica: Replica) -> int:
        return 0 if replica.state == State.READY else 1 if self.can_ask(replica) else 2

    async def holders(self, kind: Kind, kept_id: str, scope: Scope) -> list[Replica]:
        """The replicas that have it and can be asked, at least one, as the client of the request in `scope`.

        Raises what is `missing` where no replica has it, NoReplica where all that have or may have it cannot be asked.
        """
        there = self.keepers()
        if kept_id in self._found:
            known, store = self._found[kept_id]
            having = [each for each in there if each is known or store_of(each) == store != ""]
            if having:
                can = [each for each in having if self.can_ask(each)]
                if not can:
                    raise away(having[0])
                # Of those that are ready, the one where it was seen has more of it in its cache, or computes it still.
                return sorted(can, key=lambda each: (self._order(each), each is not known))
            # It may have come back as another one of the fleet.
            del self._found[kept_id]
        if not _ID.fullmatch(kept_id):
            raise kind.missing(f"There is no {kind.name} {kept_id[:80]!r}: ids have other characters.")
        # A response that is being computed is at one replica only, whatever they keep together.
        stores, silent = self.stores(), list[Replica]()
        for some in ([each[0] for each in stores], [replica for each in stores for replica in each[1:]]):
            found, unasked = await self._search(some, f"{kind.path}/{kept_id}", scope)
            if found is not None:
                self.note(kept_id, found)
                return await self.holders(kind, kept_id, scope)
            silent += unasked
        asked = {store_of(each) for each in there if each not in silent}
        silent = [each for each in silent if not store_of(each) or store_of(each) not in asked]
        if silent:
            raise NoReplica(
                f"The {kind.name} {kept_id} is at none of the replicas that can be asked; {names(silent)} cannot be "
                "asked now, and may have it; try again later."
            )
        raise kind.missing(f"No replica has a {kind.name} {kept_id} (any more).")

    def can_ask(self, replica: Replica) -> bool:
        """Whether a replica can be asked for the client of a request. One that is not known would mix tenants up."""
        return replica.state in _ASKED and not (self._keyed and replica.told is None)

    async def _search(self, there: Sequence[Replica], path: str, scope: Scope) -> tuple[Replica | None, list[Replica]]:
        """The first that says that it has something, and else those that say nothing."""
        tasks = {asyncio.create_task(self._has(each, path, scope)): each for each in there}
        silent: list[Replica] = []
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    replica, has = tasks.pop(task), task.result()
                    if has:
                        return replica, []
                    if has is None:
                        silent.append(replica)
            return None, silent
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _has(self, replica: Replica, path: str, scope: Scope) -> bool | None:
        """Whether a replica has something; None where it does not say."""
        if not self.can_ask(replica):
            return None
        head = get_head(scope, replica, path, keyed=self._keyed)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), replica.ask(head) as (_, exchange):
                status = (await exchange.head()).status
        except (ReplicaBroken, TimeoutError):
            return None
        if status < _REFUSED:
            return True
        return False if status in _HAS_NOT else None


def store_of(replica: Replica) -> str:
    """The store that a replica has with others; empty where it has one of its own, as far as is known."""
    return "" if replica.told is None else replica.told.store


def away(replica: Replica) -> NoReplica:
    """What is told where only one replica can answer, and it cannot be asked."""
    why = f" ({replica.why})" if replica.why else ""
    return NoReplica(
        f"What the request is for is kept by {replica.name}, which cannot be asked now{why}; try again later."
    )


def names(replicas: Sequence[Replica]) -> str:
    """Of some replicas, in few words."""
    first, *others = replicas
    return first.name if not others else f"{first.name} and {len(others)} more"


def _is_of_one_tenant(replica: Replica) -> bool:
    """Whether a replica takes all that a gateway asks as one tenant's, as far as it is known."""
    if replica.told is not None:
        return not replica.told.for_others
    return replica.state not in (State.UNKNOWN, State.UNREACHABLE)
