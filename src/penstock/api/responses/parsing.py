"""Bodies of `/v1/responses` as typed fields."""

from typing import TypeVar

from penstock.api.fields import FieldReader
from penstock.api.parsing import check_count, decode_object
from penstock.api.responses.schema import REASONING_RULES, RULES, TEXT_RULES, InputFields
from penstock.api.responses.tools import settle_tools

Fields = TypeVar("Fields", bound=InputFields)


def parse_response(body: bytes, reader: FieldReader, kind: type[Fields]) -> Fields:
    """Parse a body; raises RequestError, naming the field."""
    given = decode_object(body)
    reader.settle(given, RULES)
    check_count("input", given.get("input"))
    for name, rules in (("text", TEXT_RULES), ("reasoning", REASONING_RULES)):
        if isinstance(given.get(name), dict):
            reader.settle(given[name], rules, f"{name}.")
    settle_tools(given, reader)
    return reader.convert(given, kind)
