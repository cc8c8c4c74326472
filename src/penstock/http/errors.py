"""Errors as clients read them, OpenAI's and Anthropic's. This is the only place that writes an error body."""

import logging
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidParameter,
    Overloaded,
    PenstockError,
    RequestError,
)
from penstock.observability.metrics import Outcome

logger = logging.getLogger("penstock.server")


class BodyTooLarge(RequestError):
    """The body is longer than the server reads."""

    code = "body_too_large"
    http_status = 413


class HeadersTooLarge(RequestError):
    """The head of a request is longer than the server reads."""

    code = "headers_too_large"
    http_status = 431


class RequestTooSlow(RequestError):
    """A request does not arrive."""

    code = "request_too_slow"
    http_status = 408


class TooManyConnections(PenstockError):
    """All connections that the server takes are busy."""

    code = "too_many_connections"
    http_status = 503
    retryable = True
    retry_after = 1

    def __init__(self) -> None:
        super().__init__("All connections that this server takes are busy; try again later.")


class BodiesFull(Overloaded):
    """All bodies that are being received have no room for more."""

    code = "bodies_full"


class UnsupportedMediaType(RequestError):
    """The body is not plain JSON."""

    code = "unsupported_media_type"
    http_status = 415


class ServerStopping(PenstockError):
    """The server takes no more requests, or could not finish one, because it ends."""

    code = "server_stopping"
    http_status = 503
    retryable = True
    retry_after = 1


class RouteNotFound(RequestError):
    """There is nothing at this path."""

    code = "route_not_found"
    http_status = 404


class MethodNotAllowed(RequestError):
    """The path does not take this method."""

    code = "method_not_allowed"
    http_status = 405


class ResponseNotFound(RequestError):
    """No response has this id (any more)."""

    code = "response_not_found"
    http_status = 404


class RequestNotFound(RequestError):
    """No request of this tenant has this id, as far as is remembered."""

    code = "request_not_found"
    http_status = 404


class PreviousResponseNotFound(RequestError):
    """A response goes on from one that is not stored (any more)."""

    code = "previous_response_not_found"


class StorageOff(RequestError):
    """The endpoint needs storage, which this server has none of."""

    code = "storage_off"
    http_status = 404


class StorageUnavailable(PenstockError):
    """What is to be kept cannot be written, or read, at the moment. Whatever needs no storage is served."""

    code = "storage_unavailable"
    http_status = 503
    retryable = True


class StorageFull(StorageUnavailable):
    """The server's disk is full, or all that it keeps has reached its bound; the message says what helps."""

    code = "storage_full"
    http_status = 507


class StorageFailed(StorageUnavailable):
    """The disk or a database did not do what it should."""

    code = "storage_failed"


class StorageLimitReached(RequestError):
    """There is no room for more of what a tenant keeps; the message says what to delete."""

    code = "storage_limit_reached"
    http_status = 413


class TooManyBatches(RequestError):
    """The tenant has the most unfinished batches that it may have."""

    code = "too_many_batches"
    http_status = 429
    retryable = True


class StoredFileNotFound(RequestError):
    """No file has this id (any more)."""

    code = "file_not_found"
    http_status = 404


class StoredFileInUse(RequestError):
    """A batch that has not ended still reads this file."""

    code = "file_in_use"
    http_status = 409


class BatchNotFound(RequestError):
    """No batch has this id (any more)."""

    code = "batch_not_found"
    http_status = 404


class BatchHasEnded(RequestError):
    """There is nothing left to cancel."""

    code = "batch_has_ended"
    http_status = 409


class ForeignPage(RequestError):
    """A browser sent this for a page that is not this server's."""

    code = "foreign_page"
    http_status = 403


class ForeignHost(RequestError):
    """The name by which the server was reached may belong to a stranger."""

    code = "foreign_host"
    http_status = 403


class UnknownField(InvalidParameter):
    """Nothing is known of a field of the request."""

    code = "unknown_parameter"


class InvalidApiKey(RequestError):
    """The request has no API key, or none that this server knows."""

    code = "invalid_api_key"
    http_status = 401


class TooManyRequests(RequestError):
    """This API key has the most requests under way that it may have."""

    code = "rate_limit_exceeded"
    http_status = 429
    retry_after = 1
    retryable = True


def as_penstock_error(error: Exception) -> PenstockError:
    """The error to show for `error`: itself, or one that says nothing of the server's insides, which are logged."""
    if isinstance(error, PenstockError):
        return error
    logger.error("a request failed unexpectedly", exc_info=error)
    return PenstockError("The server failed on this request; its log has the cause.")


def outcome_of(error: PenstockError) -> Outcome:
    """How a request has ended that ended with an error."""
    if isinstance(error, Overloaded):
        return "refused"
    if isinstance(error, DeadlineExceeded):
        return "timed_out"
    return "failed" if error.http_status >= 500 else "rejected"


class ErrorForm(Protocol):
    """How an API writes errors."""

    def status(self, error: PenstockError) -> int:
        """The HTTP status that an error is answered with."""

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The object that is the body of the answer to an error."""


class OpenAIErrors:
    """`{"error": {"message", "type", "param", "code"}}`."""

    def status(self, error: PenstockError) -> int:
        """The HTTP status that an error is answered with."""
        return error.http_status

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The body in OpenAI's form: message, type, param and code."""
        kind = "invalid_request_error" if error.http_status < 500 else "server_error"
        return {"error": {"message": _message(error), "type": kind, "param": error.param, "code": error.code}}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class AnthropicErrors:
    """`{"type": "error", "error": {"type", "message"}}`, where a status has one type."""

    def status(self, error: PenstockError) -> int:
        """The HTTP status: what the server has no room for is 529 there; limits of one client are 429."""
        return 529 if _overloaded(error) else error.http_status

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The body in Anthropic's form: a type and a message."""
        if _overloaded(error):
            kind = "overloaded_error"
        elif isinstance(error, DeadlineExceeded):
            kind = "timeout_error"
        elif error.http_status >= 500:
            kind = "api_error"
        else:
            kind = _ANTHROPIC_TYPES.get(error.http_status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": _in_known_words(error) + _message(error)}}


def _in_known_words(error: PenstockError) -> str:
    """What programs look for in Anthropic's messages, to shorten a conversation or to leave a field out."""
    lengths = error.lengths if isinstance(error, ContextLengthExceeded) else None
    if isinstance(error, UnknownField):
        return f"{error.param}: Extra inputs are not permitted. "
    if lengths is None:
        return ""
    if lengths.output:
        both = f"{lengths.prompt} + {lengths.output} > {lengths.context}"
        return f"input length and `max_tokens` exceed context limit: {both}. "
    return f"prompt is too long: {lengths.prompt} tokens > {lengths.context} maximum. "


def _overloaded(error: PenstockError) -> bool:
    return error.retryable and error.http_status >= 500 and not isinstance(error, DeadlineExceeded)


OPENAI = OpenAIErrors()
ANTHROPIC = AnthropicErrors()


def form_of(path: str) -> ErrorForm:
    """The form of errors that clients of a path expect: that of the scope, never one made with the Host header."""
    return ANTHROPIC if path == "/v1/messages" or path.startswith("/v1/messages/") else OPENAI


def error_body(error: PenstockError, form: ErrorForm = OPENAI) -> bytes:
    """The body for an error."""
    return msgspec.json.encode(form.fields(error))


def error_response(error: PenstockError, form: ErrorForm = OPENAI) -> Response:
    """The response for an error that comes before any output."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, BodyTooLarge | BodiesFull | ServerStopping):
        # The rest of the body is not read, so the connection cannot carry another request.
        headers["connection"] = "close"
    return Response(error_body(error, form), form.status(error), headers, "application/json")


async def on_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for every exception that an endpoint raises."""
    return error_response(as_penstock_error(error), form_of(request.scope["path"]))


async def on_not_found(request: Request, error: Exception) -> Response:
    """Starlette's handler for paths without a route."""
    path = request.scope["path"][:200]
    return error_response(RouteNotFound(f"There is nothing at {path!r}; the API begins at /v1."), form_of(path))


async def on_method_not_allowed(request: Request, error: Exception) -> Response:
    """Starlette's handler for routes that take other methods."""
    path = request.scope["path"]
    response = error_response(MethodNotAllowed(f"{request.method} is not a method of {path!r}."), form_of(path))
    allowed = getattr(error, "headers", None) or {}
    response.headers.update(allowed)
    return response


def _message(error: PenstockError) -> str:
    # Messages may quote what a client sent, and so hold half of a surrogate pair.
    return error.message if error.message.isascii() else error.message.encode("utf-8", "replace").decode()
