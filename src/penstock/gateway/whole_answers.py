"""Whether an answer is whole and right, so that others may get it: one that broke off, or failed, is given once."""

from typing import Any

import msgspec

from penstock.gateway.exchange import Headers
from penstock.gateway.headers import streams

_DATA, _DONE = b"data:", b"[DONE]"
# How the last event of a stream is named that has come to its end, where `[DONE]` does not say it.
_LAST = ("message_stop", "response.completed", "response.incomplete")
# Responses of these are whole; others have failed, or go on.
_WHOLE = (None, "completed", "incomplete")
# Why a choice has ended that a server has given up.
_GIVEN_UP = ("abort", "error")


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Part(msgspec.Struct):
    error: Any = None
    type: Any = None
    status: Any = None
    choices: list[_Choice] | None = None

    @property
    def is_right(self) -> bool:
        """Whether nothing in it says that something failed."""
        reasons = [each.finish_reason for each in self.choices or ()]
        return self.error is None and self.type != "error" and not any(each in _GIVEN_UP for each in reasons)


_decode = msgspec.json.Decoder(_Part).decode


def is_whole(headers: Headers, body: bytes) -> bool:
    """Whether the body of an answer with status 200 says itself that it has ended, without any error."""
    try:
        if streams(headers):
            return _has_ended(body)
        part = _decode(body)
        return part.is_right and (isinstance(part.status, int) or part.status in _WHOLE)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _has_ended(body: bytes) -> bool:
    ended = False
    for line in body.splitlines():
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            ended = True
            continue
        part = _decode(data)
        if not part.is_right:
            return False
        ended = ended or part.type in _LAST
    return ended
