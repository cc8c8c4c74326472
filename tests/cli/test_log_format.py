"""Lines of the log: for people and for programs, with the id of the request that they concern."""

import json
import logging
import sys
from typing import Any

from penstock.cli.log_format import ConsoleLines, JsonLines
from penstock.observability.request_ids import REQUEST_ID


def record(text: str, *arguments: object, **extra: Any) -> logging.LogRecord:
    """What a logger makes."""
    return logging.getLogger("penstock.server").makeRecord(
        "penstock.server", logging.WARNING, __file__, 1, text, arguments, None, extra=extra
    )


def test_an_object_in_a_line() -> None:
    made = record("a\nb %s", "ü", fields={"endpoint": "chat", "metadata": {"k": "v"}, "seconds": 0.5, "error": None})
    line = JsonLines().format(made)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("warning", "penstock.server", "a\nb ü")
    assert fields["time"].endswith("Z") and "request_id" not in fields
    assert (fields["endpoint"], fields["metadata"], fields["seconds"]) == ("chat", {"k": "v"}, 0.5)


def test_lines_name_their_request() -> None:
    token = REQUEST_ID.set("req_7")
    try:
        assert json.loads(JsonLines().format(record("text")))["request_id"] == "req_7"
        assert ConsoleLines().format(record("text")).endswith(" WARNING [req_7] text")
    finally:
        REQUEST_ID.reset(token)
    assert ConsoleLines().format(record("text")).endswith(" WARNING text")


def test_what_a_client_sent_is_on_its_line() -> None:
    line = ConsoleLines().format(record("400 %s", "a\nb \x1b[31m\u2028 ü\ud800"))
    assert line.endswith(" WARNING 400 a\\nb \\x1b[31m\\u2028 ü\\ud800")


def test_a_traceback_is_a_field() -> None:
    made = record("failed")
    try:
        raise ValueError("of this test")
    except ValueError:
        made.exc_info = sys.exc_info()
    fields = json.loads(JsonLines().format(made))
    assert fields["exception"].endswith("ValueError: of this test")
    assert "Traceback" in ConsoleLines().format(made)


def test_half_a_character_breaks_no_line() -> None:
    fields = json.loads(JsonLines().format(record("a \ud800", fields={"metadata": {"k": "\udfff"}})))
    assert (fields["message"], fields["metadata"]) == ("a \\ud800", {"k": "\\udfff"})
