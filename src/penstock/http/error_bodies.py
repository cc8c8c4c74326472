"""Errors as clients read them, in the form of the dialect that is spoken at a path.

No other module writes the body of an error, but the forms of dialects that have one of their own.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.errors import PenstockError
from penstock.http.errors import (
    BodiesFull,
    BodyTooLarge,
    MethodNotAllowed,
    RouteNotFound,
    ServerStopping,
    as_penstock_error,
)

# Each answer has its request's id there.
ID_HEADER = b"x-request-id"
# The last event of a stream.
DONE = b"data: [DONE]\n\n"


class ErrorForm(Protocol):
    """How an API writes errors."""

    def status(self, error: PenstockError) -> int:
        """The HTTP status that an error is answered with."""

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The object that is the body of the answer to an error."""

    def event(self, error: PenstockError) -> bytes:
        """What ends a stream of events that has begun and cannot go on."""


class PlainErrors:
    """`{"error": {"message", "type", "param", "code"}}`, which clients of OpenAI's API read too."""

    def status(self, error: PenstockError) -> int:
        """The HTTP status that an error is answered with."""
        return error.http_status

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The body: message, type, param and code."""
        kind = "invalid_request_error" if error.http_status < 500 else "server_error"
        return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}

    def event(self, error: PenstockError) -> bytes:
        """The body as an event, and the last one."""
        return b"data: " + msgspec.json.encode(self.fields(error)) + b"\n\n" + DONE


PLAIN = PlainErrors()


class Dialect(msgspec.Struct, frozen=True):
    """What is another below some paths.

    Attributes:
        errors: how errors are written.
        id_header: a header that has a request's id, beside x-request-id.
        by_body: how errors are written once a request's body is known, where two dialects share a path.
    """

    errors: ErrorForm = PLAIN
    id_header: bytes | None = None
    by_body: Callable[[bytes], ErrorForm] | None = None

    def errors_of(self, body: bytes | None) -> ErrorForm:
        """How errors of a request are written; None: its body is not known yet."""
        return self.errors if body is None or self.by_body is None else self.by_body(body)


class Dialects:
    """The dialects of one server."""

    def __init__(self, below: Mapping[str, Dialect] | None = None) -> None:
        """`below` has those that differ from the plain one, by the path at and below which they are spoken."""
        self._below = dict(below or {})
        self._plain = Dialect()

    def at(self, path: str) -> Dialect:
        """The dialect of a path: that of the scope, never one made with the Host header."""
        for root, dialect in self._below.items():
            if path == root or path.startswith(f"{root}/"):
                return dialect
        return self._plain

    @property
    def id_headers(self) -> list[str]:
        """All headers that may have a request's id."""
        others = [dialect.id_header.decode() for dialect in self._below.values() if dialect.id_header is not None]
        return [ID_HEADER.decode(), *others]

    def response(self, error: PenstockError, path: str) -> Response:
        """The response for an error that comes before any output of what is at a path."""
        return error_response(error, self.at(path).errors)


Handler = Callable[[Request, Exception], Awaitable[Response]]


class ErrorHandlers:
    """Starlette's handlers of what goes wrong before there is an answer."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects

    def all(self) -> dict[Any, Handler]:
        """By status or class of an exception, as Starlette takes them."""
        return {
            404: self.on_not_found,
            405: self.on_method_not_allowed,
            PenstockError: self.on_error,
            Exception: self.on_error,
        }

    async def on_error(self, request: Request, error: Exception) -> Response:
        """For every exception that an endpoint raises."""
        return self._dialects.response(as_penstock_error(error), request.scope["path"])

    async def on_not_found(self, request: Request, error: Exception) -> Response:
        """For paths without a route."""
        path = request.scope["path"][:200]
        return self._dialects.response(RouteNotFound(f"There is nothing at {path!r}; the API begins at /v1."), path)

    async def on_method_not_allowed(self, request: Request, error: Exception) -> Response:
        """For routes that take other methods."""
        path = request.scope["path"]
        response = self._dialects.response(MethodNotAllowed(f"{request.method} is not a method of {path!r}."), path)
        allowed = getattr(error, "headers", None) or {}
        response.headers.update(allowed)
        return response


def error_body(error: PenstockError, form: ErrorForm = PLAIN) -> bytes:
    """The body for an error."""
    return msgspec.json.encode(form.fields(error))


def error_response(error: PenstockError, form: ErrorForm = PLAIN) -> Response:
    """The response for an error that comes before any output."""
    headers = {name.decode(): value.decode() for name, value in error.headers}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, BodyTooLarge | BodiesFull | ServerStopping):
        # The rest of the body is not read, so the connection cannot carry another request.
        headers["connection"] = "close"
    return Response(error_body(error, form), form.status(error), headers, "application/json")
