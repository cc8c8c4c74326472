"""Errors as clients of TEI (Text Embeddings Inference) read them."""

from collections.abc import Container
from typing import Any

import msgspec

from penstock.api.scoring.answers import TeiErrorType
from penstock.core.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    Overloaded,
    PenstockError,
    RequestTooLarge,
)
from penstock.http.error_bodies import PLAIN, Dialect, ErrorForm
from penstock.http.errors import TooManyConnections

_TOO_LARGE, _UNUSABLE, _TOO_MANY, _AWAY, _FAULTS = 413, 422, 429, 503, 500
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class TeiErrors:
    """`{"error": "message", "error_type": "Validation"}`"""

    def status(self, error: PenstockError) -> int:
        """The HTTP status: TEI's for what is wrong with texts and fields, else that of all dialects.

        TEI's own for a busy or broken server, 429 and 424, would tell proxies that no other server can help.
        """
        if isinstance(error, ContextLengthExceeded | RequestTooLarge):
            return _TOO_LARGE
        return _UNUSABLE if isinstance(error, InvalidParameter) else error.http_status

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The body in TEI's form: a sentence and a type."""
        return {"error": error.message, "error_type": _type(error)}

    def event(self, error: PenstockError) -> bytes:
        """The body as an event; there are no streams."""
        return b"data: " + msgspec.json.encode(self.fields(error)) + b"\n\n"


def _type(error: PenstockError) -> TeiErrorType:
    if error.http_status == _TOO_MANY or isinstance(error, Overloaded | TooManyConnections):
        return "Overloaded"
    if error.http_status == _AWAY:
        return "Unhealthy"
    return "Backend" if error.http_status >= _FAULTS else "Validation"


TEI = TeiErrors()
DIALECT = Dialect(TEI)


def in_tei_form(fields: Container[str]) -> bool:
    """Whether a body of `/rerank`, by the names of its fields, has TEI's form: `texts` are TEI's."""
    return "texts" in fields and "documents" not in fields


def _form_of(body: bytes) -> ErrorForm:
    try:
        return TEI if in_tei_form(_decode(body)) else PLAIN
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return PLAIN


# Jina's and TEI's form have the same path.
RERANK_DIALECT = Dialect(by_body=_form_of)
