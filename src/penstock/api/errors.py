"""What a request of a dialect can have wrong beside its values."""

from penstock.core.errors import InvalidParameter, RequestError


class UnknownField(InvalidParameter):
    """Nothing is known of a field of the request."""

    code = "unknown_parameter"


class ResponseNotFound(RequestError):
    """No response has this id (any more)."""

    code = "response_not_found"
    http_status = 404
