"""The id of each request, which its response's head, its log lines and its account have in common."""

import re
import secrets
from contextvars import ContextVar

# The request that the running task serves; empty outside of requests.
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")

MAX_CLIENT_ID = 128
_CLIENT_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]*")


def new_request_id() -> str:
    """A random id, which no other request has and which cannot be guessed."""
    return f"req_{secrets.token_hex(12)}"


def client_id(given: bytes | None) -> str | None:
    """The id that a client has given its request, if it is one: a word of ASCII that is not too long.

    What is none is passed over: it says nothing of what is asked for.
    """
    if given is None or len(given) > MAX_CLIENT_ID or _CLIENT_ID.fullmatch(given) is None:
        return None
    return given.decode("ascii")
