"""What one replica keeps, and no other: stored responses, files and batches. Who has it is asked for by its id."""

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
        self._found: OrderedDict[str, Replica] = OrderedDict()

    def note(self, kept_id: str, replica: Replica) -> None:
        """Remember which replica keeps the thing with this id."""
        self._found[kept_id] = replica
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

    async def holder(self, kind: Kind, kept_id: str, scope: Scope) -> Replica:
        """The replica that has it, asked as the client of the request in `scope`.

        Raises what is `missing` where no replica has it, NoReplica where one that has or may have it cannot be asked.
        """
        there, known = self.keepers(), self._found.get(kept_id)
        if known is not None and known not in there:
            # It may have come back as another one of the fleet.
            del self._found[kept_id]
        elif known is not None:
            if not self.can_ask(known):
                raise away(known)
            return known
        if not _ID.fullmatch(kept_id):
            raise kind.missing(f"There is no {kind.name} {kept_id[:80]!r}: ids have other characters.")
        found, silent = await self._search(there, f"{kind.path}/{kept_id}", scope)
        if found is not None:
            self.note(kept_id, found)
            return found
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
