"""Which requests ask the same, so that one answer is right for both, and which ask for an answer of their own."""

import re
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from starlette.types import Scope

from penstock.gateway.exchange import Headers

_RESPONSES = "/v1/responses"
# Headers by which a client asks for another answer begin so.
_ASKING = (b"anthropic-", b"openai-")
_SECONDS = re.compile(rb"max-age=(\d{1,9})")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# What belongs to one request, or to what a replica keeps, in any dialect.
_OWN = ("previous_response_id", "conversation")
_NOTHING = (b"null", b"false")


class Freshness(msgspec.Struct, frozen=True):
    """What a request's `cache-control` asks for (RFC 9111, section 5.2.1).

    Attributes:
        stored: whether its answer may be kept, or be one that was.
        most_age: seconds that a kept answer may be old; None: any number.
    """

    stored: bool = True
    most_age: int | None = None


def freshness(headers: Sequence[tuple[bytes, bytes]]) -> Freshness:
    """What the headers of a request say; `no-cache` is an age of 0."""
    stored, most = True, None
    for name, value in headers:
        if name != b"cache-control":
            continue
        for directive in value.lower().split(b","):
            match directive.strip():
                case b"no-store":
                    stored = False
                case b"no-cache":
                    most = 0
                case other if (found := _SECONDS.fullmatch(other)) is not None:
                    most = int(found[1]) if most is None else min(most, int(found[1]))
    return Freshness(stored, most)


def why_own(path: str, body: bytes) -> str | None:
    """Why the answer to a request is for that request alone; None where it is not."""
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The replica says what is wrong.
        return "its body cannot be read"

    def has(name: str) -> bool:
        return bytes(fields.get(name, b"null")) not in _NOTHING

    for name in (*_OWN, "background"):
        if has(name):
            return f"it has {name}"
    if path == _RESPONSES and bytes(fields.get("store", b"null")) != b"false":
        return "its answer is stored by a replica; store is not false"
    return "its answer is to be stored; store is not false" if has("store") else None


def key_of(tenant: str, scope: Scope, body: bytes) -> bytes | None:
    """The key of an answer: that of all requests of a tenant that say the same, to the byte of each field's value.

    White space between tokens, and the order of a body's fields, say nothing. None for a body that cannot be compared:
    one that is nested too deeply, or names a field twice: servers may read either.
    """
    try:
        compared = msgspec.json.format(msgspec.json.encode(_decode(body), order="sorted"), indent=-1)
        if len(compared) != len(msgspec.json.format(body, indent=-1)):
            return None
    except RecursionError:
        return None
    asking = sorted(_asking(scope["headers"]))
    digest = blake2b(digest_size=32)
    head = (tenant, scope["path"], scope["query_string"], asking)
    for part in (msgspec.msgpack.encode(head), compared):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _asking(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    return [header for header in headers if header[0].startswith(_ASKING)]
