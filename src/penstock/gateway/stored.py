"""The endpoints of what replicas keep: stored responses, files and batches, each at the replica that has it."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.access.tenants import tenant_of
from penstock.api.listing import list_page, read_page
from penstock.batches.files import read_purpose
from penstock.core.errors import RequestError
from penstock.gateway.connection import Connection
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.errors import NoReplica, ReplicaBroken, broken
from penstock.gateway.exchange import Exchange, Head
from penstock.gateway.headers import get_head, request_head, returned
from penstock.gateway.kept import BATCHES, FILES, RESPONSES, Kind, names
from penstock.gateway.replicas import Replica, State
from penstock.http.answers import json_response
from penstock.http.body import disconnected, read_json_body

_MOST_BODY_BYTES = 64 * 1024
# Of an answer that is read here: of a file that was stored, and of a part of a list.
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
# As replicas have them.
_USUALLY_LISTED, _MOST_LISTED = {FILES: 10_000, BATCHES: 20}, {FILES: 10_000, BATCHES: 100}
_OTHER_FIELDS = {FILES: ("order", "purpose"), BATCHES: ()}
# Of a part of a list.
_PART = 100
_SECONDS = 30.0
_GOOD, _NONE = 200, 404
_Result = TypeVar("_Result")


class _Id(msgspec.Struct):
    id: str


class _Batch(msgspec.Struct):
    input_file_id: str = ""


class _List(msgspec.Struct):
    data: list[dict[str, Any]]
    has_more: bool = False


class StoredApi:
    """Finds the replica of each request, and passes it on there."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._kept, self._keyed, self._guardrails = dispatch.kept, dispatch.keyed, dispatch.guardrails
        self._loads, self._idle = dispatch.router.loads, dispatch.timeouts.idle

    def routes(self) -> list[Route]:
        """The routes of stored responses."""
        return [
            Route("/v1/responses/{id}", self._one(RESPONSES), methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/cancel", self._one(RESPONSES), methods=["POST"]),
            Route("/v1/responses/{id}/input_items", self._one(RESPONSES), methods=["GET"]),
        ]

    def file_routes(self) -> list[Route]:
        """The routes of files and batches."""
        return [
            Route("/v1/files", self.upload, methods=["POST"]),
            Route("/v1/files", self._all(FILES), methods=["GET"]),
            Route("/v1/files/{id}", self._one(FILES), methods=["GET", "DELETE"]),
            Route("/v1/files/{id}/content", self._one(FILES), methods=["GET"]),
            Route("/v1/batches", self.create_batch, methods=["POST"]),
            Route("/v1/batches", self._all(BATCHES), methods=["GET"]),
            Route("/v1/batches/{id}", self._one(BATCHES), methods=["GET"]),
            Route("/v1/batches/{id}/cancel", self._one(BATCHES), methods=["POST"]),
        ]

    def _one(self, kind: Kind) -> Any:
        """What is asked of one thing of a kind."""

        async def one(request: Request) -> "PassedOn":
            # None of these says anything in its body.
            replicas = await self._kept.holders(kind, request.path_params["id"], request.scope)
            # What is only read can be asked of another one that has it.
            replicas = replicas if request.method == "GET" else replicas[:1]
            heads = [request_head(request.scope, each, 0, keyed=self._keyed) for each in replicas]
            return PassedOn(list(zip(replicas, heads, strict=True)))

        return one

    def _all(self, kind: Kind) -> Any:
        """A list of what all replicas have of a kind."""

        async def everything(request: Request) -> Response:
            """The newest first. `unasked` are the replicas that cannot be asked, and may have more."""
            usual, most, others = _USUALLY_LISTED[kind], _MOST_LISTED[kind], _OTHER_FIELDS[kind]
            page = read_page(request, usual=usual, most=most, others=others)
            query = {} if "purpose" not in others else read_purpose(request)
            query |= {"order": "asc"} if page.ascending else {}
            stores = self._kept.stores()
            # More than these are not in the first part of all.
            enough = page.limit + 1 if page.after is None else None
            told = await asyncio.gather(*(self._listed_once(each, kind, request, query, enough) for each in stores))
            silent = [each[0] for each, found in zip(stores, told, strict=True) if found is None]
            if len(silent) == len(stores):
                raise NoReplica(f"No replica says what it has: {names(silent)} cannot be asked now; try again later.")
            items = [item for found in told for item in found or ()]
            items.sort(key=lambda item: item.get("created_at", 0), reverse=not page.ascending)
            if page.after is not None:
                ids = [item.get("id") for item in items]
                if page.after not in ids:
                    if silent:
                        raise NoReplica(
                            f"{names(silent)} cannot be asked now, and may have {page.after[:80]!r}; try again later."
                        )
                    raise kind.missing(f"No replica has a {kind.name} {page.after[:80]} (any more).")
                items = items[ids.index(page.after) + 1 :]
            listed = list_page(items[: page.limit], len(items) > page.limit)
            return json_response({**listed, "unasked": [each.name for each in silent]} if silent else listed)

        return everything

    async def _listed_once(self, replicas: Sequence[Replica], *asked: Any) -> list[dict[str, Any]] | None:
        """What replicas with one store have, as the first says that says it; None where none does."""
        for replica in replicas:
            found = await self._listed(replica, *asked)
            if found is not None:
                return found
        return None

    async def _listed(
        self, replica: Replica, kind: Kind, request: Request, query: Mapping[str, str], enough: int | None
    ) -> list[dict[str, Any]] | None:
        """What a replica has of a kind: all of it, or the first `enough`; None where it does not say."""
        items: list[dict[str, Any]] = []
        if not self._kept.can_ask(replica):
            return None
        try:
            async with asyncio.timeout(_SECONDS):
                while enough is None or len(items) < enough:
                    part = {**query, "limit": str(_PART), **({"after": str(items[-1]["id"])} if items else {})}
                    head = get_head(request.scope, replica, kind.path, urlencode(part), keyed=self._keyed)
                    async with replica.ask(head) as (_, exchange):
                        status, body = (await exchange.head()).status, await exchange.body(_MOST_ANSWER_BYTES)
                    if status == _NONE and not items:
                        # It keeps nothing.
                        return items
                    if status != _GOOD:
                        return None
                    found = msgspec.json.decode(body, type=_List)
                    items += found.data
                    if not found.has_more or not found.data:
                        return items
                return items
        except (ReplicaBroken, TimeoutError, msgspec.DecodeError, KeyError):
            return None

    async def create_batch(self, request: Request) -> "PassedOn":
        """`POST /v1/batches`: where its file is."""
        self._guardrails.check_batches(tenant_of(request))
        body = await read_json_body(request, _MOST_BODY_BYTES)
        try:
            file = msgspec.json.decode(body, type=_Batch).input_file_id
        except msgspec.DecodeError as error:
            raise RequestError(f"The body cannot be read: {error}.") from None
        having = await self._kept.holders(FILES, file, request.scope) if file else [self._next()]
        replica = self._idlest([each for each in having if each.state == State.READY] or having)
        head = request_head(request.scope, replica, len(body), keyed=self._keyed)
        return PassedOn([(replica, head + body)])

    async def upload(self, request: Request) -> Response:
        """`POST /v1/files`: to the replica with the fewest requests, as it comes."""
        replica = self._next()
        length = request.headers.get("content-length", "")
        known = int(length) if length.isdigit() else None
        head = request_head(request.scope, replica, known, keyed=self._keyed)
        try:
            async with replica.ask(head) as (connection, exchange):
                await self._send_on(request, connection, exchange, in_chunks=known is None)
                answer, body = await while_there(request.receive, _read(exchange))
                # An answer may come before the upload is whole, so that nothing else can be sent on it.
                connection.close()
        except ReplicaBroken as error:
            raise broken(replica.name, error.message) from None
        except ClientDisconnect:
            raise RequestError("The connection was closed before the whole body had arrived.") from None
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            self._kept.note(msgspec.json.decode(body, type=_Id).id, replica)
        response = Response(body, answer.status)
        response.raw_headers = returned(answer.headers, replica)
        return response

    async def _send_on(self, request: Request, connection: Connection, exchange: Exchange, *, in_chunks: bool) -> None:
        """Send a body on as it comes, until it has ended or is answered. Raises ReplicaBroken where it is not taken."""

        async def send(piece: bytes) -> None:
            try:
                async with asyncio.timeout(self._idle):
                    await connection.write(piece)
            except TimeoutError:
                raise ReplicaBroken(f"it takes no more of a body for {self._idle:g} s") from None

        async for part in request.stream():
            if exchange.begun or exchange.ended:
                return
            if part:
                await send(b"%x\r\n%b\r\n" % (len(part), part) if in_chunks else part)
        if in_chunks:
            await send(b"0\r\n\r\n")

    def _next(self) -> Replica:
        """The one with the fewest requests of those that can keep something. Raises NoReplica, StorageOff."""
        ready = [each for each in self._kept.keepers() if each.state == State.READY and self._kept.can_ask(each)]
        if not ready:
            raise NoReplica("No replica can keep anything now; try again later.")
        return self._idlest(ready)

    def _idlest(self, replicas: Sequence[Replica]) -> Replica:
        return min(replicas, key=lambda each: self._loads.requests[each.place])


async def _read(exchange: Exchange) -> tuple[Head, bytes]:
    return await exchange.head(), await exchange.body(_MOST_ANSWER_BYTES)


async def while_there(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What work comes to. Raises ClientDisconnect where the client leaves before."""
    doing = asyncio.create_task(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        gone.cancel()
        doing.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


class PassedOn:
    """What a replica answers, as an ASGI response: it is passed on as it comes.

    Args:
        ways: the replica, and what it is asked; further ones are asked where those before do not answer.
    """

    def __init__(self, ways: Sequence[tuple[Replica, bytes]]) -> None:
        self._ways = ways

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Until it is complete, or the client has gone."""
        with contextlib.suppress(ClientDisconnect):
            await while_there(receive, self._pass(send))

    async def _pass(self, send: Send) -> None:
        for further, (replica, asked) in enumerate(self._ways, 1):
            begun: list[Head] = []
            try:
                await self._pass_on(replica, asked, begun, send)
                return
            except ReplicaBroken as error:
                if begun or further == len(self._ways):
                    raise broken(replica.name, error.message) from None

    async def _pass_on(self, replica: Replica, asked: bytes, begun: list[Head], send: Send) -> None:
        """`begun` gets the answer's head once its client does."""
        async with replica.ask(asked) as (_, exchange):
            head, piece = await exchange.head(), await exchange.piece()
            begun.append(head)
            headers = returned(head.headers, replica)
            await send({"type": "http.response.start", "status": head.status, "headers": headers})
            while piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await exchange.piece()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
