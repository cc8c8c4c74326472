"""Which headers go on to a replica, and which come back from it."""

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import Scope

from penstock.access.tenants import TENANT_HEADER, WEIGHT_HEADER, tenant_of
from penstock.core.errors import RequestError
from penstock.core.handover import HANDOVER, OFFER
from penstock.core.request import BACKGROUND, SESSION
from penstock.core.resumption import RESUME, TRACK, WAITED
from penstock.core.usage import USED
from penstock.gateway.exchange import Headers
from penstock.gateway.replicas import Replica
from penstock.gateway.trace import PARENT
from penstock.http.error_bodies import ID_HEADER
from penstock.observability.request_ids import REQUEST_ID

# Of one hop only (RFC 9110, section 7.6.1), or written anew by each.
_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
# What browsers say of the page that asks is for the gateway, and so is what they are answered. For whom a request is,
# only the gateway says.
_NOT_SENT = _HOP | {
    b"host", b"content-length", b"expect", b"accept-encoding", b"x-request-id", b"origin", TRACK, RESUME,
    WAITED, TENANT_HEADER, WEIGHT_HEADER, BACKGROUND, HANDOVER, OFFER,
}  # fmt: skip
_NOT_RETURNED = _HOP | {b"date", b"server", b"x-request-id", b"request-id", TRACK, USED}
_OF_PAGES = (b"sec-fetch-", b"access-control-")
# What a client shows its own key with, which is of no use to a replica that wants the gateway's.
_KEYS = frozenset((b"authorization", b"x-api-key"))
# Of a scope's state: the request is a line of a batch that the gateway runs.
LINE = "batch_line"
# What would end a request's first line.
_NO_TARGET = re.compile(rb"[\x00-\x20\x7f]")


def request_head(
    scope: Scope,
    replica: Replica,
    length: int | None,
    begun: int = 0,
    *,
    keyed: bool,
    trace: bytes | None = None,
    waited: float | None = None,
    further: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """The head of a request, as a replica gets it. Raises RequestError where its path or query would end it.

    Args:
        length: bytes of its body; None: it comes in chunks.
        begun: bytes at the end of the body that say how its answer began elsewhere.
        keyed: the gateway has keys of its own, so that clients' keys are not passed on.
        trace: to which span it belongs (`traceparent`); None: to its client's.
        waited: seconds of those that it has; None where it has any number.
        further: headers that are the gateway's own.
    """
    if replica.hosted is not None:
        raise RuntimeError("clients' headers are for own machines only")
    address, query = replica.pool.address, scope["query_string"]
    target = address.root.encode() + scope["raw_path"] + (b"?" + query if query else b"")
    if _NO_TARGET.search(target):
        raise RequestError("The path and query must have no spaces or control characters; encode them.")
    given = passed_on(scope["headers"])
    if keyed or replica.key is not None:
        given = [header for header in given if header[0] not in _KEYS]
    if replica.key is not None:
        given.append((b"authorization", b"Bearer " + replica.key.encode()))
    if keyed and replica.told is not None and replica.told.for_others:
        tenant = tenant_of(Request(scope))
        given += [(TENANT_HEADER, tenant.name.encode()), (WEIGHT_HEADER, b"%r" % tenant.weight)]
    # By which the replica's account of it is found.
    if (request_id := REQUEST_ID.get()) is not None:
        given.append((ID_HEADER, request_id.encode()))
    if trace is not None:
        given = [*(header for header in given if header[0] != PARENT), (PARENT, trace)]
    if in_background(scope):
        given.append((BACKGROUND, b"1"))
    # Servers of other programs leave it unread.
    given += [(TRACK, b"1"), *further]
    if waited is not None:
        given.append((WAITED, b"%.3f" % waited))
    if begun:
        given.append((RESUME, b"%d" % begun))
    lines = [
        b"%s %s HTTP/1.1" % (scope["method"].encode(), target),
        b"host: " + address.authority.encode(),
        b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length,
        *(name + b": " + value for name, value in given),
        b"\r\n",
    ]
    return b"\r\n".join(lines)


def is_line(scope: Scope) -> bool:
    """Whether a request is a line of a batch, behind all that are none."""
    return bool(scope.get("state", {}).get(LINE, False))


def in_background(scope: Scope) -> bool:
    """Whether a request comes after those of all others: a line of a batch, or one of such a key."""
    return is_line(scope) or tenant_of(Request(scope)).permits.background


def get_head(scope: Scope, replica: Replica, path: str, query: str = "", *, keyed: bool) -> bytes:
    """The head of a GET for who has sent the request in `scope`."""
    asked = {**scope, "method": "GET", "raw_path": path.encode(), "query_string": query.encode()}
    return request_head(asked, replica, 0, keyed=keyed)


def passed_on(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Those of a request that are meant for whom it reaches in the end."""
    named = [value for name, value in headers if name == b"connection"]
    of_hop = {each.strip().lower() for value in named for each in value.split(b",")} if named else set()
    return [
        header
        for header in headers
        if header[0] not in _NOT_SENT and header[0] not in of_hop and not header[0].startswith(_OF_PAGES)
    ]


def returned(headers: Sequence[tuple[bytes, bytes]], replica: Replica) -> Headers:
    """Those of an answer that its client gets, and who gave it."""
    return [
        *(header for header in headers if header[0] not in _NOT_RETURNED and not header[0].startswith(_OF_PAGES)),
        (b"x-penstock-replica", replica.name.encode()),
    ]


def streams(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether an answer is a stream of events."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def is_tracked(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a stream says which tokens its events hold."""
    return any(name == TRACK for name, _ in headers)


def is_counted(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether an answer says what it has used."""
    return any(name == USED for name, _ in headers)


def session_named(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The session that a request's header names."""
    return next((value.decode("latin-1") for name, value in headers if name == SESSION), None)
