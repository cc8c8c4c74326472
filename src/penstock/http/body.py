"""Reading a request's body: only JSON, and never more than the limit. Behind it nothing comes but the client's end."""

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from penstock.core.errors import PenstockError, RequestError
from penstock.http.errors import BodiesFull, BodyTooLarge, UnsupportedMediaType

# Bytes of a body that are read beyond the limit: a client that is cut off while it writes cannot read the refusal.
_DISCARDED_BYTES = 4 * 1024 * 1024
# Bytes that all bodies in transfer may hold together, beside the first part of each, for which there is always room.
MAX_HELD_BYTES = 512 * 1024 * 1024
_FIRST_PART_BYTES = 64 * 1024


# Where a request has its body once it was read ahead, or what is wrong with it.
_AHEAD = "penstock.body"
# Where it has the body that was read ahead of an error.
_REFUSED = "penstock.refused_body"

Grow = Callable[[int], None]
"""Is told how many bytes a body has by now. Raises BodiesFull."""


class BodyRoom:
    """What bodies may take that are being received, all together."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._most = most
        self._held = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Grow]:
        """Room for one body, until the block ends; to be told how long the body is by now. Raises BodiesFull."""
        taken = 0

        def grow(size: int) -> None:
            nonlocal taken
            more = max(0, size - _FIRST_PART_BYTES) - taken
            if self._held + more > self._most:
                raise BodiesFull("The server receives as many long requests as it has room for; try again later.")
            self._held += more
            taken += more

        try:
            yield grow
        finally:
            self._held -= taken


class BodyReader:
    """The bodies that one server reads: each within a limit, all together within the room that there is."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._room = BodyRoom()

    async def read(self, request: Request) -> bytes:
        """A request's body. Raises RequestError for what is no JSON, BodyTooLarge and BodiesFull."""
        # No variable has the error: a frame in its own traceback that refers to it would be garbage in a cycle.
        if isinstance(request.scope.get(_AHEAD), PenstockError):
            raise request.scope.pop(_AHEAD)
        if _AHEAD in request.scope:
            return cast(bytes, request.scope.pop(_AHEAD))
        with self.room() as grow:
            return await self.read_into(request, grow)

    async def read_ahead(self, request: Request) -> bytes | None:
        """A request's body, which `read` returns too; None where `read` raises what is wrong with it."""
        try:
            body = await self.read(request)
        except PenstockError as error:
            refuse_ahead(request, error)
            return None
        request.scope[_AHEAD] = body
        return body

    def room(self) -> contextlib.AbstractContextManager[Grow]:
        """Room for one body for as long as it is kept."""
        return self._room.hold()

    async def read_into(self, request: Request, grow: Grow) -> bytes:
        """The same as `read`, in room that is kept."""
        return await read_json_body(request, self._most, grow)


def refuse_ahead(request: Request, error: PenstockError, body: bytes | None = None) -> None:
    """Have `BodyReader.read` raise an error, whose cause was found before, in the `body` where that was read."""
    request.scope[_AHEAD] = error.with_traceback(None)
    request.scope[_REFUSED] = body


def refused_body(request: Request) -> bytes | None:
    """The body of a request that was refused ahead; None where it was not read, or not refused so."""
    return cast(bytes | None, request.scope.get(_REFUSED))


async def read_json_body(request: Request, limit: int, grow: Grow | None = None) -> bytes:
    """The body's bytes; `grow` is told how many there are as they come.

    Raises BodyTooLarge where there are more than `limit`, at once where there are far more, and BodiesFull.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers send other types to any local server without asking; requiring this one keeps foreign pages out.
    if kind != "application/json":
        raise UnsupportedMediaType("The body must be JSON; send the header 'Content-Type: application/json'.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not accepted; send the body as it is.")
    declared = request.headers.get("content-length", "")
    most = limit + _DISCARDED_BYTES
    if declared.isdigit() and len(declared) < 20 and int(declared) > most:
        raise _too_large(limit)
    # One growing buffer: pieces that are put together in the end would take twice the room.
    body, size = bytearray(), 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                break
            if size <= limit:
                if grow is not None:
                    grow(size)
                body += part
    except ClientDisconnect:
        raise RequestError("The connection was closed before the whole body had arrived.") from None
    if size > limit:
        raise _too_large(limit)
    return cast(bytes, body)  # it does not change any more, and a copy would take the memory again


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone, or its request is answered."""
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is longer than the {limit} bytes that this server reads; send a shorter prompt.")
