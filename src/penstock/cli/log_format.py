"""How log lines are written: for people, or as JSON for programs; either with the id of the request they concern."""

import enum
import logging
import time
from typing import Any

import msgspec

from penstock.observability.request_ids import REQUEST_ID


class LogLevel(enum.Enum):
    """How much the server writes to standard error."""

    INFO = "info"
    WARNING = "warning"


class LogFormat(enum.Enum):
    """The format of the server's log."""

    CONSOLE = "console"
    JSON = "json"


def set_up_logging(level: LogLevel, form: LogFormat) -> None:
    """Have everything that is logged written to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else ConsoleLines())
    logging.basicConfig(level=level.value.upper(), handlers=[handler])


def visible(text: str) -> str:
    """Text with every character that is not to be printed written as an escape.

    What clients have sent, and an error repeats, is to begin no line of its own, and tell a terminal nothing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class ConsoleLines(logging.Formatter):
    """A time, a level, the request's id where there is one, and a sentence."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(request)s%(text)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it where an exception is logged."""
        request_id = REQUEST_ID.get()
        record.request = f"[{request_id}] " if request_id else ""
        record.text = visible(record.getMessage())
        return super().format(record)


class JsonLines(logging.Formatter):
    """An object in a line: `time`, `level`, `logger`, `message`, and what else is known by name."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback is a field of it."""
        fields: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if REQUEST_ID.get():
            fields["request_id"] = REQUEST_ID.get()
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(fields).decode()
        except UnicodeEncodeError:
            # Half of a surrogate pair, which a client may have sent.
            repaired = {name: _encodable(value) for name, value in fields.items()}
            return msgspec.json.encode(repaired).decode()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(name): _encodable(each) for name, each in value.items()}
    return value


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
