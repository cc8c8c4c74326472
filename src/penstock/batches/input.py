"""The input of a batch: one request on each line, checked before any of them runs."""

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from penstock.core.checks import check_characters
from penstock.core.errors import InvalidParameter
from penstock.core.text_files import without_mark
from penstock.storage.batches import BatchProblem
from penstock.storage.quotas import StorageQuota

MAX_CUSTOM_ID_LENGTH = 512
# A batch with more problems says so of the first ones only.
MAX_PROBLEMS = 50
_SHOWN = 80


class InputLine(msgspec.Struct, frozen=True):
    """A request of a batch; `number` counts the file's lines from 1, `body` is JSON as it was written."""

    number: int
    custom_id: str
    body: bytes


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_decoder = msgspec.json.Decoder(_Fields)


class LineProblem(Exception):
    """A line that is no request of its batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def parse_line(number: int, text: bytes, endpoint: str) -> InputLine:
    """The request on a line. Raises LineProblem; what its body asks for is only seen when it runs."""
    try:
        fields = _decoder.decode(text)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise LineProblem(
            "invalid_request_line", f"{reason.replace('`', '')}.", place.strip("`").lstrip("$.") or None
        ) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise LineProblem("invalid_json_line", f"The line is not valid JSON: {str(error)[:_SHOWN]}.") from None
    if not 1 <= len(fields.custom_id) <= MAX_CUSTOM_ID_LENGTH:
        raise LineProblem("invalid_custom_id", f"It must have 1 to {MAX_CUSTOM_ID_LENGTH} characters.", "custom_id")
    try:
        check_characters("custom_id", fields.custom_id)
    except InvalidParameter as error:
        raise LineProblem("invalid_custom_id", error.message, "custom_id") from None
    if fields.method != "POST":
        raise LineProblem("invalid_method", "Only POST is supported.", "method")
    if fields.url != endpoint:
        raise LineProblem("mismatched_url", f"It must be the batch's endpoint, {endpoint}.", "url")
    body = bytes(fields.body).strip()
    if not body.startswith(b"{"):
        raise LineProblem("invalid_body", "It must be a JSON object.", "body")
    return InputLine(number, fields.custom_id, body)


def read_lines(contents: BinaryIO, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers. One that is too long is cut off behind `most_bytes`."""
    number = 0
    while text := contents.readline(most_bytes + 1):
        number += 1
        rest = text
        while len(rest) > most_bytes and not rest.endswith(b"\n"):
            # Nothing will read what is too long, but the next line begins behind it.
            rest = contents.readline(most_bytes + 1)
        if number == 1:
            text = without_mark(text)
        if text.strip():
            yield number, text


def check_input(contents: BinaryIO, endpoint: str, limits: StorageQuota) -> tuple[int, list[BatchProblem]]:
    """How many requests a file has, and what is wrong with them."""
    problems: list[BatchProblem] = []
    seen: set[str] = set()
    total = 0
    for number, text in read_lines(contents, limits.line_bytes):
        total += 1
        if total > limits.lines:
            message = f"The file has more than {limits.lines} requests; split it."
            return total, [BatchProblem("too_many_requests", message, line=number)]
        try:
            if len(text) > limits.line_bytes:
                raise LineProblem("line_too_long", f"The line is longer than {limits.line_bytes} bytes.")
            line = parse_line(number, text, endpoint)
            if line.custom_id in seen:
                shown = line.custom_id[:_SHOWN]
                raise LineProblem("duplicate_custom_id", f"{shown!r} is on an earlier line too.", "custom_id")
            seen.add(line.custom_id)
        except LineProblem as problem:
            problems.append(BatchProblem(problem.code, problem.message, problem.param, number))
            if len(problems) >= MAX_PROBLEMS:
                break
    if not total:
        problems.append(BatchProblem("empty_file", "The file has no requests.", "input_file_id"))
    return total, problems


def pending_lines(contents: BinaryIO, endpoint: str, limits: StorageQuota, done: set[int]) -> Iterator[InputLine]:
    """The requests of a file that was checked which have no result yet, in order."""
    for number, text in read_lines(contents, limits.line_bytes):
        if number not in done:
            yield parse_line(number, text, endpoint)
