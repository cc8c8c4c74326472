"""What is wrong with a request as HTTP, whatever it asks for."""

import logging

from penstock.core.errors import Overloaded, PenstockError, RequestError

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


class ForeignPage(RequestError):
    """A browser sent this for a page that is not this server's."""

    code = "foreign_page"
    http_status = 403


class ForeignHost(RequestError):
    """The name by which the server was reached may belong to a stranger."""

    code = "foreign_host"
    http_status = 403


def as_penstock_error(error: Exception) -> PenstockError:
    """The error to show for `error`: itself, or one that says nothing of the server's insides, which are logged."""
    if isinstance(error, PenstockError):
        return error
    logger.error("a request failed unexpectedly", exc_info=error)
    return PenstockError("The server failed on this request; its log has the cause.")
