"""Responses that outlive their request: bounded in number, size and age."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    Float,
    Result,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from penstock.core.errors import InvalidParameter
from penstock.database.connection import alone
from penstock.database.tables import response_items, response_totals, responses
from penstock.storage.condition import StorageCondition
from penstock.storage.errors import PreviousResponseNotFound, StorageRefused, StorageUnavailable
from penstock.storage.transactions import Transactions

logger = logging.getLogger("penstock.server")


class ResponseQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept at most. What was not used for longest goes first.

    Attributes:
        responses: how many.
        total_bytes: of all inputs and responses.
        seconds_kept: since the last use.
        conversation_bytes: of the responses that one request continues.
        waiting_bytes: of responses that the disk has not taken yet.
        tenant_share: of number and bytes, what one tenant may take.
        tenant_bytes: at most, where a tenant's key says so, by name.
    """

    responses: int = 100_000
    total_bytes: int = 1000**3
    seconds_kept: int = 30 * 24 * 3600
    conversation_bytes: int = 32 * 1024**2
    waiting_bytes: int = 64 * 1024**2
    tenant_share: float = 1.0
    tenant_bytes: Mapping[str, int] = {}


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and the items that were its input, both as JSON."""

    input: bytes
    response: bytes

    @property
    def size(self) -> int:
        """Bytes that the input and the response take."""
        return len(self.input) + len(self.response)

    def items(self) -> list[dict[str, Any]]:
        """The items of the input and the output, in their order."""
        items: list[dict[str, Any]] = msgspec.json.decode(self.input)
        return items + msgspec.json.decode(self.response, type=_Output).output

    def named(self, wanted: Container[str]) -> dict[str, dict[str, Any]]:
        """Those of its items whose ids are wanted."""
        return {item["id"]: item for item in self.items() if item["id"] in wanted}


class _Kept(msgspec.Struct, frozen=True):
    """A response on its way to the disk."""

    owner: str
    id: str
    previous: str | None
    response: StoredResponse


class _Output(msgspec.Struct):
    """Of a response, what later ones need."""

    output: list[dict[str, Any]]


def _item_ids(response: StoredResponse) -> set[str]:
    return {item["id"] for item in response.items()}


class ResponseStore:
    """The stored responses. For others than its owner, there is none.

    Attributes:
        condition: whether the disk works.
        waiting: those that are being written, and those that wait for a disk that has failed, by id.
    """

    def __init__(
        self,
        database: Transactions,
        limits: ResponseQuota | None = None,
        clock: Callable[[], float] = time.time,
        condition: StorageCondition | None = None,
    ) -> None:
        self.condition = condition or StorageCondition()
        self._database = database
        self._limits = limits or ResponseQuota()
        self._clock = clock
        self._writes: set[asyncio.Task[None]] = set()
        self.waiting: dict[str, _Kept] = {}

    def close(self) -> None:
        """Log what could not be stored."""
        if self.waiting:
            logger.error("%d responses could not be stored before the end.", len(self.waiting))

    def keep(self, response: dict[str, Any], items: list[dict[str, Any]], owner: str) -> None:
        """Store a response that has ended. Whatever is asked of the store later finds it.

        The client need not wait for the disk. Where that fails, the response is in memory until it works again.
        """
        contents = StoredResponse(msgspec.json.encode(items), msgspec.json.encode(response))
        kept = _Kept(owner, response["id"], response["previous_response_id"], contents)
        self.waiting[kept.id] = kept
        # Asked for at once: what is asked for next finds it on the disk.
        self._beside(self._keep(kept, self._store(kept)))

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """A response; None where it is not stored (any more)."""
        found = await self._database.run(lambda connection: self._get(connection, response_id, owner))
        # What was stored meanwhile had been asked for later, and so leaves this later.
        waiting = self.waiting.get(response_id)
        return waiting.response if found is None and waiting is not None and waiting.owner == owner else found

    async def delete(self, response_id: str, owner: str) -> bool:
        """Forget a response; False where it is not stored."""
        waiting = self.waiting.get(response_id)
        if waiting is not None and waiting.owner == owner:
            del self.waiting[response_id]
            # It may be on the disk already.
            with contextlib.suppress(StorageUnavailable):
                await self._delete_stored(response_id, owner)
            return True
        return await self._delete_stored(response_id, owner)

    async def conversation(self, response_id: str, owner: str) -> list[StoredResponse]:
        """A response and all that it went on from, the oldest first.

        Raises PreviousResponseNotFound where one of them is not stored (any more).
        """
        waiting = {each.id: each for each in self.waiting.values() if each.owner == owner}
        turns, used = await self._database.run(
            lambda connection: self._conversation(connection, response_id, owner, waiting)
        )
        if used:
            self._beside(self._marked(self._database.run(lambda connection: self._mark_used(connection, used))))
        return turns

    async def _marked(self, marked: Awaitable[None]) -> None:
        # What takes nothing now does not keep a conversation from going on.
        with contextlib.suppress(StorageUnavailable):
            await marked

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """No request waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def items(self, wanted: Mapping[str, str], owner: str) -> dict[str, dict[str, Any]]:
        """Items of stored responses, by their ids.

        `wanted` are the ids, each with the place in the request that refers to it. Raises InvalidParameter, naming the
        place, where one is not stored (any more), or where their responses are more than is read.
        """
        found = await self._database.run(lambda connection: self._items(connection, wanted, owner))
        if len(found) < len(wanted):
            # What was stored meanwhile had been asked for later, and so leaves this later.
            for kept in self.waiting.values():
                found |= kept.response.named(wanted) if kept.owner == owner else {}
        for identifier, place in wanted.items():
            if identifier not in found:
                message = f"no item {identifier[:80]!r} is stored here (any more); send the item itself."
                raise InvalidParameter(f"{place}.id", message)
        return found

    async def _delete_stored(self, response_id: str, owner: str) -> bool:
        def work(connection: Connection) -> bool:
            alone(connection, "responses")
            which = (responses.c.id == response_id, responses.c.owner == owner)
            size = connection.execute(delete(responses).where(*which).returning(responses.c.bytes)).scalar_one_or_none()
            if size is not None:
                _count(connection, owner, -1, -size)
            return size is not None

        return await self._database.run(work)

    def _store(self, kept: _Kept) -> Awaitable[None]:
        return self._database.run(lambda connection: self._insert(connection, kept))

    async def _keep(self, kept: _Kept, stored: Awaitable[None]) -> None:
        delays = self.condition.delays()
        while True:
            try:
                await stored
                break
            except StorageUnavailable as error:
                size = sum(each.response.size for each in self.waiting.values())
                # Whether it works by now says nothing of why it did not.
                if isinstance(error, StorageRefused) or size > self._limits.waiting_bytes:
                    logger.error("response %s could not be stored: %s", kept.id, error.message)
                    break
            await self.condition.recovery(delays.next())
            if kept.id not in self.waiting:
                break
            stored = self._store(kept)
        self.waiting.pop(kept.id, None)

    def _insert(self, connection: Connection, kept: _Kept) -> None:
        alone(connection, "responses")
        now, size = int(self._clock()), kept.response.size
        _forget(connection, connection.execute(_OLD, {"before": now - self._limits.seconds_kept}))
        while (owner := self._too_much(connection, kept.owner, size)) is not None:
            _forget(connection, connection.execute(_OLDEST, {"owner": owner}))
        row = {"id": kept.id, "owner": kept.owner, "previous": kept.previous, "used_at": now, "bytes": size}
        contents = {"input": kept.response.input, "response": kept.response.response}
        number = connection.execute(_statements(connection).store, row | contents).scalar_one_or_none()
        if number is None:
            # The connection broke when it was stored, before that was said.
            return
        items = [{"owner": kept.owner, "id": item, "response_sequence": number} for item in _item_ids(kept.response)]
        if items:
            connection.execute(_ADD_ITEMS, items)
        _count(connection, kept.owner, 1, size)

    def _too_much(self, connection: Connection, owner: str, size: int) -> str | None:
        """Whose oldest response goes, so that the owner may have one more of this size; None where there is room."""
        limits = self._limits
        count, used, own_count, own = connection.execute(_TOTALS, {"owner": owner}).one()
        most = limits.tenant_bytes.get(owner, limits.total_bytes * limits.tenant_share)
        if own_count and (own_count >= max(1, limits.responses * limits.tenant_share) or own + size > most):
            return owner
        if count and (count >= limits.responses or used + size > limits.total_bytes):
            # The owner with the most bytes gives way.
            return str(connection.execute(_MOST_USED).scalar_one())
        return None

    def _get(self, connection: Connection, response_id: str, owner: str) -> StoredResponse | None:
        row = connection.execute(_GET, {"id": response_id, "owner": owner, "oldest": self._oldest}).one_or_none()
        return None if row is None else StoredResponse(*row)

    @property
    def _oldest(self) -> float:
        """What was used then or before is not there any more."""
        return self._clock() - self._limits.seconds_kept

    def _items(self, connection: Connection, wanted: Mapping[str, str], owner: str) -> dict[str, dict[str, Any]]:
        """The items that there are. Of those that several responses have, the newest."""
        places: dict[int | None, str] = {}
        for identifier, place in wanted.items():
            which = {"id": identifier, "owner": owner, "oldest": self._oldest}
            places[connection.execute(_NEWEST, which).scalar_one()] = place
        found: dict[str, dict[str, Any]] = {}
        size = 0
        for sequence in sorted(each for each in places if each is not None):
            row = connection.execute(_BY_NUMBER, {"number": sequence}).one_or_none()
            if row is None:
                # It was deleted meanwhile.
                continue
            response = StoredResponse(*row)
            size += response.size
            if size > self._limits.conversation_bytes:
                most = self._limits.conversation_bytes
                message = f"the responses that have these items are more than the {most} bytes that are read."
                raise InvalidParameter(places[sequence], message)
            found |= response.named(wanted)
        return found

    def _conversation(
        self, connection: Connection, response_id: str, owner: str, waiting: dict[str, _Kept]
    ) -> tuple[list[StoredResponse], list[str]]:
        """The responses, the oldest first, and the ids of those that are on the disk."""
        size, most = 0, self._limits.conversation_bytes
        used: list[str] = []
        turns: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            if wanted in waiting:
                turns.append(waiting[wanted].response)
                wanted = waiting[wanted].previous
                size += turns[-1].size
            else:
                which = {"id": wanted, "owner": owner, "oldest": self._oldest, "most": most - size}
                rows = connection.execute(_CHAIN, which).all()
                if not rows:
                    raise PreviousResponseNotFound(_missing(response_id, wanted), param="previous_response_id")
                for identifier, previous, items, response in rows:
                    used.append(identifier)
                    turns.append(StoredResponse(items, response))
                    wanted = previous
                    size += turns[-1].size
            if size > most:
                message = f"the conversation is longer than the {most} bytes that are read."
                raise InvalidParameter("previous_response_id", message)
        return turns[::-1], used

    def _mark_used(self, connection: Connection, ids: list[str]) -> None:
        alone(connection, "responses")
        connection.execute(_MARK_USED, {"ids": ids, "now": int(self._clock())})


def _forget(connection: Connection, chosen: Result[Any]) -> None:
    rows: Sequence[Any] = chosen.all()
    for sequence, owner, size in rows:
        connection.execute(delete(responses).where(responses.c.sequence == sequence))
        _count(connection, owner, -1, -size)


def _count(connection: Connection, owner: str, number: int, size: int) -> None:
    """Add to the number of an owner's responses, and to their bytes."""
    connection.execute(_statements(connection).count, {"owner": owner, "number": number, "size": size})


class _Statements(msgspec.Struct, frozen=True):
    """Those that PostgreSQL and SQLite have in common, and standard SQL does not."""

    store: Any
    count: Any


def _statements_of(kind: Any) -> _Statements:
    store = kind.insert(responses).on_conflict_do_nothing(index_elements=["id"]).returning(responses.c.sequence)
    number, size = bindparam("number", type_=BigInteger), bindparam("size", type_=BigInteger)
    more = {"responses": response_totals.c.responses + number, "bytes": response_totals.c.bytes + size}
    count = kind.insert(response_totals).values(owner=bindparam("owner"), responses=number, bytes=size)
    return _Statements(store, count.on_conflict_do_update(index_elements=["owner"], set_=more))


def _statements(connection: Connection) -> _Statements:
    return _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE


def _chain() -> Any:
    """A stored response and those before it, up to the one with which they have more than `most` bytes."""
    columns = (responses.c.sequence, responses.c.previous)
    first = select(*columns, responses.c.bytes.label("size"), literal(0).label("nth"))
    chain = first.where(responses.c.id == bindparam("id"), *_THERE).cte("chain", recursive=True)
    following = select(*columns, chain.c.size + responses.c.bytes, chain.c.nth + 1)
    following = following.join(chain, responses.c.id == chain.c.previous)
    chain = chain.union_all(following.where(chain.c.size <= bindparam("most", type_=BigInteger), *_THERE))
    found = select(responses.c.id, responses.c.previous, responses.c.input, responses.c.response)
    return found.join(chain, responses.c.sequence == chain.c.sequence).order_by(chain.c.nth)


# Made once, since it takes longer to make a statement than to run it.
_POSTGRESQL, _SQLITE = _statements_of(postgresql), _statements_of(sqlite)
_THERE = (responses.c.owner == bindparam("owner"), responses.c.used_at > bindparam("oldest", type_=Float(53)))
_GET = select(responses.c.input, responses.c.response).where(responses.c.id == bindparam("id"), *_THERE)
_BY_NUMBER = select(responses.c.input, responses.c.response).where(responses.c.sequence == bindparam("number"))
_CHAIN = _chain()
_NEWEST = (
    select(func.max(responses.c.sequence))
    .join(response_items, responses.c.sequence == response_items.c.response_sequence)
    .where(response_items.c.id == bindparam("id"), response_items.c.owner == bindparam("owner"), *_THERE)
)
_BY_AGE = select(responses.c.sequence, responses.c.owner, responses.c.bytes).order_by(
    responses.c.used_at, responses.c.sequence
)
_OLD = _BY_AGE.where(responses.c.used_at <= bindparam("before"))
_OLDEST = _BY_AGE.where(responses.c.owner == bindparam("owner")).limit(1)
_MARK_USED = (
    update(responses).where(responses.c.id.in_(bindparam("ids", expanding=True))).values(used_at=bindparam("now"))
)
_ADD_ITEMS = insert(response_items)
_OWN = response_totals.c.owner == bindparam("owner")
# Of all owners and of one: how many, and bytes.
_TOTALS = select(
    *(func.coalesce(func.sum(each), 0) for each in (response_totals.c.responses, response_totals.c.bytes)),
    *(
        func.coalesce(func.sum(case((_OWN, each), else_=0)), 0)
        for each in (response_totals.c.responses, response_totals.c.bytes)
    ),
)
_MOST_USED = (
    select(response_totals.c.owner)
    .where(response_totals.c.responses > 0)
    .order_by(response_totals.c.bytes.desc(), response_totals.c.owner.desc())
    .limit(1)
)


def _missing(asked: str, missing: str) -> str:
    if asked == missing:
        return (
            f"previous_response_id: no response {asked[:80]!r} is stored here (any more); send the whole conversation."
        )
    return (
        f"previous_response_id: {asked[:80]!r} goes on from {missing[:80]!r}, which is not stored any more; send the "
        "whole conversation."
    )
