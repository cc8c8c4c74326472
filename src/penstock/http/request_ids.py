"""Gives each request its id: in the head of its response, in its log lines, and for its account."""

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.http.error_bodies import ID_HEADER, Dialects
from penstock.observability.request_ids import REQUEST_ID, client_id, new_request_id

# Headers of W3C's Trace Context, which has its own rules for their values. Longer ones than this are none.
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_MAX_TRACE_HEADER = 512


class Identified:
    """ASGI middleware around everything else, so that no response is without an id."""

    def __init__(self, app: ASGIApp, dialects: Dialects) -> None:
        self._app = app
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under a new id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        value = request_id.encode("ascii")
        headers = [(ID_HEADER, value)]
        other = self._dialects.at(scope["path"]).id_header
        if other is not None:
            headers.append((other, value))

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        token = REQUEST_ID.set(request_id)
        await self._app(scope, receive, identified)
        # Where it failed, the caller logs why, under the same id: so the id is not reset then.
        REQUEST_ID.reset(token)


def client_id_of(request: Request) -> str | None:
    """What the client calls its request, where it says so, once, in the way of an id."""
    given = _given_once(request, ID_HEADER)
    return None if given is None else client_id(given)


def caller_of(request: Request) -> dict[str, str]:
    """The headers in which a client says to which trace its request belongs, each if it is there once."""
    found: dict[str, str] = {}
    for header in _TRACE_HEADERS:
        given = _given_once(request, header)
        if given is not None and len(given) <= _MAX_TRACE_HEADER:
            found[header.decode()] = given.decode("latin-1")
    return found


def _given_once(request: Request, header: bytes) -> bytes | None:
    given = [value for name, value in request.scope["headers"] if name == header]
    return given[0] if len(given) == 1 else None
