"""Bodies of `/v1/responses` as typed fields."""

from typing import TypeVar

from penstock.server.fields import FieldReader
from penstock.server.parsing import check_count, decode_object
from penstock.server.responses.schema import REASONING_RULES, RULES, TEXT_RULES, InputFields
from penstock.server.responses.tools import settle_tools

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
