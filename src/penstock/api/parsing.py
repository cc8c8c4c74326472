"""Bodies of requests as JSON, within bounds, and errors in the terms of the dialect that a client speaks."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter, RequestError, rebuild_error
from penstock.core.sampling import MAX_LOGIT_BIAS
from penstock.core.text_files import without_mark

# The most messages of one conversation, and entries of its metadata.
MAX_MESSAGES = 16384
MAX_METADATA = 16
# The most values of one body, and the most lists and objects, which take more memory.
MAX_VALUES = 1024 * 1024
MAX_NESTED = 128 * 1024
# Entries of what any request has, wherever it is checked further. More are refused before anything looks at each.
_MOST_ENTRIES = {"metadata": MAX_METADATA, "logit_bias": MAX_LOGIT_BIAS}

# Some clients write numbers that JSON does not have.
_NOT_FINITE = re.compile(rb'"(\w{1,40})"\s*:\s*(-?(?:NaN|Infinity|inf|nan))\b')


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is; raises RequestError where it is none."""
    _check_values(body)
    try:
        fields = msgspec.json.decode(without_mark(body))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        not_finite = _NOT_FINITE.search(body)
        if not_finite is not None:
            name, value = (group.decode("utf-8", "replace") for group in not_finite.groups())
            raise InvalidParameter(name, f"{value} is not a number in JSON; send a finite one.") from error
        raise RequestError(f"The body is not valid JSON: {_why_invalid(error)}.") from error
    if not isinstance(fields, dict):
        raise RequestError("The body must be a JSON object.")
    return fields


def _check_values(body: bytes) -> None:
    """Refuse a body with more values than decoding has memory for; marks in its texts count too."""
    for marks, most in ((b",", MAX_VALUES), (b"[{", MAX_NESTED)):
        if sum(map(body.count, marks)) > most:
            raise RequestError(
                f"The body has more than {MAX_VALUES} commas, or more than {MAX_NESTED} opening brackets and braces; "
                "those in its texts count too. Send less."
            )


def _why_invalid(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "lists or objects are nested too deep"
    if isinstance(error, UnicodeError):
        return "a text is not UTF-8"
    return str(error).partition(" - at")[0]


def check_count(name: str, messages: object) -> None:
    """Refuse more messages than any conversation has, before anything looks at each of them."""
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise InvalidParameter(name, f"{len(messages)} messages given, at most {MAX_MESSAGES} are accepted.")


def check_entries(fields: Mapping[str, Any]) -> None:
    """Refuse more entries of an object than any request has, before anything looks at each of them."""
    for name, most in _MOST_ENTRIES.items():
        value = fields.get(name)
        if isinstance(value, dict) and len(value) > most:
            raise InvalidParameter(name, f"{len(value)} entries given, at most {most} are accepted.")


def explain_mismatch(message: str) -> InvalidParameter:
    """msgspec's message, such as "Expected `int | null`, got `str` - at `$.n`", as an error that names the field."""
    text, _, place = message.partition(" - at ")
    path = place.removeprefix("`key` in ").strip("`").lstrip("$.").removesuffix("[...]")
    missing = "Object missing required field `"
    if text.startswith(missing):
        return InvalidParameter(f"{path}.{text.removeprefix(missing).rstrip('`')}".lstrip("."), "is missing.")
    reason = text.replace("`", "").replace(" | ", " or ")
    return InvalidParameter(path or "body", f"{reason[:1].lower()}{reason[1:]}.")


Names = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Patterns of fields of chats, the first that fits counts, and which fields of another dialect they were made from: a
template for what the pattern found, or a function of it."""


def renamed(param: str, names: Names) -> str:
    """A field of a chat as another dialect's request has it."""
    for pattern, name in names:
        found = re.match(rf"{pattern}(?=[.\[]|$)", param)
        if found is not None:
            other = found.expand(name) if isinstance(name, str) else name(found)
            return other + param[found.end() :]
    return param


@contextlib.contextmanager
def in_terms_of(names: Names) -> Iterator[None]:
    """Let errors that name a field of chats name the field of another dialect that it was made from."""
    try:
        yield
    except RequestError as error:
        param = error.param or ""
        name = renamed(param, names)
        if name == param:
            raise
        message = error.message
        if message.startswith(param):
            message = name + message.removeprefix(param)
        raise rebuild_error(error.code, message, name) from error
