"""Reading an upload: a form whose file goes to the disk as it comes, never whole into memory."""

import logging
from collections.abc import Callable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from penstock.core.checks import check_integer
from penstock.core.errors import InvalidParameter, RequestError
from penstock.http.errors import BodyTooLarge, UnsupportedMediaType
from penstock.storage.batches import INPUT_PURPOSE
from penstock.storage.files import FileStore, Incoming, StoredFile

# The parser writes a warning for each form that is none; the client is told, which is enough.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

MAX_FIELD_BYTES = 1024
MAX_FILENAME_LENGTH = 255
# Names, headers and boundaries around a file.
MAX_FORM_BYTES = 64 * 1024
SHORTEST_EXPIRY, LONGEST_EXPIRY = 3600, 30 * 24 * 3600
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)


async def receive_upload(request: Request, store: FileStore, owner: str) -> StoredFile:
    """Keep the file of `POST /v1/files`. Raises RequestError with the cause; then nothing is kept."""
    parser = _FormParser(_boundary(request))
    limit = store.limits.file_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and len(declared) < 20 and int(declared) > limit + MAX_FORM_BYTES:
        raise _too_large(limit)
    incoming = await store.begin(owner)
    try:
        await _read(request, parser, incoming, limit)
        fields = parser.result()
        seconds = _expiry(fields)
        return await store.add(incoming, _purpose(fields), parser.filename or "", seconds)
    finally:
        await incoming.discard()


async def _read(request: Request, parser: "_FormParser", incoming: Incoming, limit: int) -> None:
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            parser.feed(part)
            for data in parser.take():
                if incoming.size + len(data) > limit:
                    raise _too_large(limit)
                await incoming.write(data)
            if size - incoming.size > MAX_FORM_BYTES:
                raise RequestError(
                    f"The form has more than {MAX_FORM_BYTES} bytes beside the file; send its fields only."
                )
    except ClientDisconnect:
        raise RequestError("The connection was closed before the whole body had arrived.") from None


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise UnsupportedMediaType(
            "The body must be a form with a file: 'Content-Type: multipart/form-data; boundary=…'."
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not accepted; send the body as it is.")
    return options[b"boundary"]


def _purpose(fields: dict[str, str]) -> str:
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidParameter("purpose", f"is missing; send {INPUT_PURPOSE!r}.")
    if purpose != INPUT_PURPOSE:
        raise InvalidParameter("purpose", f"{purpose[:40]!r} is not supported; only {INPUT_PURPOSE!r} is.")
    return purpose


def _expiry(fields: dict[str, str]) -> int | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor is None or seconds is None:
        raise InvalidParameter("expires_after", "needs both anchor and seconds.")
    if not seconds.isascii() or not seconds.isdigit() or len(seconds) > 10:
        raise InvalidParameter("expires_after.seconds", f"{seconds[:40]!r} is not a whole number.")
    return check_expiry("expires_after", anchor, int(seconds))


def check_expiry(param: str, anchor: str, seconds: int) -> int:
    """The seconds after which a file goes. Raises InvalidParameter."""
    if anchor != "created_at":
        raise InvalidParameter(f"{param}.anchor", f"{anchor[:40]!r} is not supported; only 'created_at' is.")
    check_integer(f"{param}.seconds", seconds, SHORTEST_EXPIRY, LONGEST_EXPIRY)
    return seconds


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file is longer than the {limit} bytes that this server takes; split it.")


class _FormParser:
    """Cuts a form into its fields and the pieces of its file.

    Attributes:
        filename: as the client names the file; None while there is none.
    """

    def __init__(self, boundary: bytes) -> None:
        self.filename: str | None = None
        self._fields: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._name = ""
        self._value = bytearray()
        self._header = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._ended = False
        callbacks: dict[str, Callable[..., Any]] = {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open,
            "on_end": self._finish,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise UnsupportedMediaType("The form's boundary is too long.") from error

    def feed(self, data: bytes) -> None:
        """Read on. Raises RequestError where this is no form, or one with other fields."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise RequestError("The body is not a valid form (multipart/form-data).") from error

    def take(self) -> list[bytes]:
        """What has come of the file since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def result(self) -> dict[str, str]:
        """The fields, at the end of the body. Raises RequestError where the form has no end, or no file."""
        if not self._ended:
            raise RequestError("The form ends before its last boundary; send it whole.")
        if self.filename is None:
            raise InvalidParameter("file", "is missing; send the file as a part of the form that is named 'file'.")
        return self._fields

    def _begin(self) -> None:
        self._name, self._disposition = "", b""
        self._value.clear()

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "file":
            if self.filename is not None:
                raise InvalidParameter("file", "is there twice; send one file.")
            if b"filename" not in options:
                raise InvalidParameter("file", "is a field; send it as a file, with a filename.")
            self.filename = options[b"filename"].decode("utf-8", "replace")[:MAX_FILENAME_LENGTH]
        elif name not in _FIELDS:
            raise InvalidParameter(name[:80] or "body", "is not a field of this request; leave it out.")
        elif name in self._fields:
            raise InvalidParameter(name, "is there twice; send it once.")
        self._name = name

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            self._pieces.append(data[start:end])
        elif len(self._value) + end - start > MAX_FIELD_BYTES:
            raise InvalidParameter(self._name, f"is longer than {MAX_FIELD_BYTES} bytes.")
        else:
            self._value += data[start:end]

    def _end(self) -> None:
        if self._name != "file":
            self._fields[self._name] = self._value.decode("utf-8", "replace")

    def _finish(self) -> None:
        self._ended = True
