"""Errors as clients of Anthropic's API read them."""

from typing import Any

import msgspec

from penstock.api.errors import UnknownField
from penstock.core.errors import ContextLengthExceeded, DeadlineExceeded, PenstockError
from penstock.http.error_bodies import Dialect

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
        return {"type": "error", "error": {"type": kind, "message": _in_known_words(error) + error.message}}

    def event(self, error: PenstockError) -> bytes:
        """The body as an event of that name."""
        return b"event: error\ndata: " + msgspec.json.encode(self.fields(error)) + b"\n\n"


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


ANTHROPIC = AnthropicErrors()
# Anthropic's clients look for a request's id there.
DIALECT = Dialect(ANTHROPIC, b"request-id")
