"""What a provider says where it gives no answer, and whether that is the operator's matter."""

import logging
import re
from typing import Any, NamedTuple

import msgspec

from penstock.providers.errors import BrokenAnswer

logger = logging.getLogger("penstock.providers")

# What is wrong with the operator's side of it: the key, the account, the model's name.
_OPERATORS = frozenset((401, 402, 403, 404, 405))
_REQUESTS = range(400, 500)
_BUSY = frozenset((429, 503, 529))
# An account that is used up is told as a rate by some, and as a request that is wrong by others.
_NO_QUOTA = "insufficient_quota"
_OF_ACCOUNTS = re.compile(r"credit balance|billing|api[ _-]?key|authentication_error|permission_error", re.IGNORECASE)
_KIND = re.compile(r"[a-z_]{1,40}")
_MOST_SAID = 500
_MOST_SHOWN = 200


class Said(NamedTuple):
    """What an error's body says.

    Attributes:
        message: its text; the body's beginning where it has none.
        codes: the error's code and type, as far as it has them.
    """

    message: str
    codes: tuple[str, ...] = ()


def said_in(body: bytes) -> Said:
    """What a body says, in the forms that errors of OpenAI, Anthropic, Google and others have."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if isinstance(found, list) and found:
        found = found[0]
    inner = found.get("error", found) if isinstance(found, dict) else None
    if isinstance(inner, str):
        return Said(inner[:_MOST_SAID])
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return Said(body[:_MOST_SHOWN].decode(errors="replace"))
    codes = tuple(value for name in ("code", "type") if isinstance(value := inner.get(name), str))
    return Said(inner["message"][:_MOST_SAID], codes)


def is_operators(status: int, said: Said) -> bool:
    """Whether it is for the operator to see and to mend: clients are not told what it says."""
    if status in _BUSY:
        return _NO_QUOTA in said.codes
    if status not in _REQUESTS or status in _OPERATORS:
        return True
    return _is_of_account(said)


def is_busy(status: int, said: Said) -> bool:
    """Whether it has too much to do, and can be asked again later."""
    return status in _BUSY and not is_operators(status, said)


def broken_by(said: Said) -> BrokenAnswer:
    """What an answer has ended with that had begun. Clients are told its kind; what it says may be of the account."""
    logger.warning("A provider ended its answer with an error: %s", said.message)
    kind = "" if _is_of_account(said) else next(filter(_KIND.fullmatch, said.codes), "")
    return BrokenAnswer(f"it ended its answer with an error{kind and f' ({kind})'}; the gateway's log says which")


def _is_of_account(said: Said) -> bool:
    return _NO_QUOTA in said.codes or any(map(_OF_ACCOUNTS.search, (said.message, *said.codes)))
