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
_REFUSED, _BROKEN = 400, 500
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
        there = self._replicas.there
        if not there:
            raise NoReplica("No replica is there now; try again later.")
        if self._keyed:
            # Others see all that is asked through the gateway as one tenant's.
            there = [each for each in there if each.told is None or each.told.for_others]
            there = [each for each in there if each.told is not None or each.state == State.UNREACHABLE]
            if not there:
                raise StorageOff(
                    "Nothing that is stored can be reached here: this gateway has keys of its own, and no replica "
                    "tells its tenants apart; give it a key there that asks for others (penstock key --for-others)."
                )
        return there

    async def holder(self, kind: Kind, kept_id: str, scope: Scope) -> Replica:
        """The replica that has it, asked as the client of the request in `scope`.

        Raises what is `missing` where no replica has it, NoReplica where one that may have it cannot be asked.
        """
        known = self._found.get(kept_id)
        there = self.keepers()
        if known in there:
            return known
        if not _ID.fullmatch(kept_id):
            raise kind.missing(f"There is no {kind.name} {kept_id[:80]!r}: ids have other characters.")
        found = await asyncio.gather(*(self._has(each, f"{kind.path}/{kept_id}", scope) for each in there))
        for each, has in zip(there, found, strict=True):
            if has:
                self.note(kept_id, each)
                return each
        silent = [each for each, has in zip(there, found, strict=True) if has is None]
        if silent:
            raise NoReplica(
                f"The {kind.name} {kept_id} is at none of the replicas that can be asked; {_names(silent)} cannot be "
                "asked now, and may have it; try again later."
            )
        raise kind.missing(f"No replica has a {kind.name} {kept_id} (any more).")

    async def _has(self, replica: Replica, path: str, scope: Scope) -> bool | None:
        """Whether a replica has something; None where it does not say."""
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                replica.pool.apart(get_head(scope, replica, path, keyed=self._keyed)) as (_, exchange),
            ):
                status = (await exchange.head()).status
        except (ReplicaBroken, TimeoutError):
            return None
        return None if status >= _BROKEN else status < _REFUSED


def _names(replicas: Sequence[Replica]) -> str:
    first, *others = replicas
    return first.name if not others else f"{first.name} and {len(others)} more"
