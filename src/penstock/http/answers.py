"""Answers in JSON, and the header that names the fields of a request that had no effect."""

import re
from collections.abc import Iterable
from urllib.parse import quote

import msgspec
from starlette.responses import Response

# A response's header with the names of the request's fields that had no effect.
IGNORED_HEADER = "x-penstock-ignored"
MOST_TOLD = 32
# The most characters of a name in the header.
_MAX_NAME_LENGTH = 80


def json_response(content: object, status: int = 200, ignored: Iterable[str] = ()) -> Response:
    """A JSON answer; `ignored` names the fields of the request that had no effect."""
    return Response(msgspec.json.encode(content), status, ignored_header(ignored), "application/json")


def brief(names: Iterable[str]) -> tuple[str, ...]:
    """Names as they are told, each once; of more than MOST_TOLD the first, and how many more there are."""
    each = tuple(dict.fromkeys(names))
    rest = len(each) - MOST_TOLD
    # One more is as short as a word about it.
    return each if rest <= 1 else (*each[:MOST_TOLD], f"and {rest} more")


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that tells them; none where all fields had their effect."""
    told = ", ".join(map(_quoted, brief(names)))
    return {IGNORED_HEADER: told} if told else {}


def _quoted(name: str) -> str:
    """A name as headers can have it, at most 80 characters: proxies refuse answers with long headers."""
    quoted = quote(name[:_MAX_NAME_LENGTH], safe="[]().$@ ")
    return quoted if len(quoted) <= _MAX_NAME_LENGTH else re.sub("%.?$", "", quoted[:_MAX_NAME_LENGTH])
