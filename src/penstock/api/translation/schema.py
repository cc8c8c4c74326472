"""Bodies of LibreTranslate's API, their answers, and its errors."""

from typing import Any

import msgspec

from penstock.api.fields import FieldReader, FieldRules, RefusedField
from penstock.api.parsing import decode_object
from penstock.core.errors import PenstockError
from penstock.http.error_bodies import Dialect

RULES: FieldRules = {
    "api_key": RefusedField("is not read; send the key as the header Authorization: Bearer KEY.", ("",)),
    "format": RefusedField('only "text" is supported; take the text out of the HTML first.', ("text",)),
}


class TranslateFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/translate`."""

    q: str | list[str]
    source: str
    target: str
    alternatives: int | None = None
    model: str | None = None


class Translation(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The answer: a text for each that was sent, and others where they were asked for."""

    translated_text: str | list[str]
    alternatives: list[str | list[str]] | msgspec.UnsetType = msgspec.UNSET


class Language(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A language that texts can be in, and those into which they can be translated."""

    code: str
    name: str
    targets: list[str]


class TranslationError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What went wrong, in a sentence."""

    error: str


def parse_translation(body: bytes, reader: FieldReader) -> TranslateFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    reader.settle(fields, RULES)
    return reader.convert(fields, TranslateFields)


class TranslationErrors:
    """`{"error": "message"}`"""

    def status(self, error: PenstockError) -> int:
        """The HTTP status that an error is answered with."""
        return error.http_status

    def fields(self, error: PenstockError) -> dict[str, Any]:
        """The body in LibreTranslate's form: nothing but a sentence."""
        return {"error": error.message}

    def event(self, error: PenstockError) -> bytes:
        """The body as an event; there are no streams."""
        return b"data: " + msgspec.json.encode(self.fields(error)) + b"\n\n"


ERRORS = TranslationErrors()
DIALECT = Dialect(ERRORS)
