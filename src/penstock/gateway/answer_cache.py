"""Gives an answer again that a tenant has had for the same request, where the tenant lets it, and keeps new ones."""

from collections.abc import Sequence
from typing import get_args

from starlette.types import Message, Scope, Send

from penstock.access.tenants import Tenant
from penstock.gateway.answer_key import freshness, key_of, why_own
from penstock.gateway.answers import Answer, AnswerCacheOptions, Answers, Found, OwnAnswers
from penstock.gateway.exchange import Headers
from penstock.gateway.ways import Cached
from penstock.gateway.whole_answers import is_whole
from penstock.http.answers import IGNORED_HEADER
from penstock.observability.gateway_definitions import Lookup

HEADER = b"x-penstock-cache"
_GOOD = 200
# What says how a body is to be read; all else was said of one request.
_KEPT_HEADERS = frozenset(
    (b"content-type", b"content-language", b"cache-control", b"x-accel-buffering", IGNORED_HEADER.encode())
)
# Where an answer says that it depends on a header that is not compared, it depends on these at most.
_VARY = frozenset((b"", b"accept-encoding", b"origin"))
# Of what may be kept: answers that come at the moment, before they are whole.
_PART_COMING = 4
# Bytes of an answer that are sent at once.
_PIECE = 64 * 1024


class AnswerCache:
    """That of one gateway.

    Args:
        answers: where they are; None: in memory.

    Attributes:
        counts: requests of tenants that let answers be kept, by what was found for them.
    """

    def __init__(self, options: AnswerCacheOptions, answers: Answers | None = None) -> None:
        self.answers, self.options = answers or OwnAnswers(options.max_bytes), options
        self.counts: dict[Lookup, int] = dict.fromkeys(get_args(Lookup), 0)
        self._coming = 0

    async def look(self, tenant: Tenant, scope: Scope, body: bytes) -> "Look":
        """What there is for a request, whose body is as a replica would get it."""
        seconds = tenant.answer_cache_seconds
        if not seconds:
            return Look(self, None, None, 0)
        asked = freshness(scope["headers"])
        why = why_own(scope["path"], body) if asked.stored else "it says cache-control: no-store"
        key = key_of(tenant.name, scope, body) if why is None else None
        if key is None:
            return self._looked("bypass", why or "its body cannot be compared", None, seconds)
        most = seconds if asked.most_age is None else min(seconds, asked.most_age)
        found = await self.answers.find(key, most) if most else None
        if found is not None:
            return self._looked("hit", None, key, seconds, found)
        if most and self.answers.away is not None:
            return self._looked("away", self.answers.away, key, seconds)
        return self._looked("miss", None, key, seconds)

    def _looked(
        self, lookup: Lookup, why: str | None, key: bytes | None, seconds: int, found: Found | None = None
    ) -> "Look":
        self.counts[lookup] += 1
        cached = Cached(lookup, why, None if found is None else round(found.age, 3))
        return Look(self, cached, key, seconds, found)

    def room_for(self, more: int) -> bool:
        """Whether that many bytes more may be held of answers that are not whole yet. They are to be given back."""
        if self._coming + more > self.options.max_bytes // _PART_COMING:
            return False
        self._coming += more
        return True

    def give_back(self, held: int) -> None:
        """That number of bytes is held no longer."""
        self._coming -= held


class Look:
    """What there was for one request.

    Attributes:
        cached: what its account says of it; None where its tenant lets nothing be kept.
        found: an answer for it; None where a replica is to be asked.
    """

    def __init__(
        self, cache: AnswerCache, cached: Cached | None, key: bytes | None, seconds: int, found: Found | None = None
    ) -> None:
        self.cached, self.found = cached, found
        self._cache, self._key, self._seconds = cache, key, seconds
        self._recording: _Recording | None = None

    async def give(self, found: Found, headers: Sequence[tuple[bytes, bytes]], send: Send) -> None:
        """Answer with what was found; `headers` are those of limits."""
        answer, age = found
        told = [*answer.headers, *headers, (HEADER, b"hit"), (b"age", b"%d" % age)]
        told.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": _GOOD, "headers": told})
        for start in range(0, max(1, len(answer.body)), _PIECE):
            piece, more = answer.body[start : start + _PIECE], start + _PIECE < len(answer.body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    def recording(self, send: Send) -> Send:
        """Says what was found in the answer that passes, and keeps it once it is whole."""
        if self.cached is None:
            return send
        said = b"bypass" if self.cached.lookup == "bypass" else b"miss"
        self._recording = _Recording(self._cache, self._key, self._seconds, said, send)
        return self._recording

    def end(self) -> None:
        """Nothing more comes of its answer."""
        if self._recording is not None:
            self._recording.drop()


class _Recording:
    """Keeps an answer that passes, from its beginning to its end. Of one that does not come to its end, nothing is."""

    def __init__(self, cache: AnswerCache, key: bytes | None, seconds: int, said: bytes, send: Send) -> None:
        self._cache, self._key, self._seconds, self._said, self._send = cache, key, seconds, said, send
        self._headers: Headers = []
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        """A message of the answer: its client gets it, whatever becomes of what is kept."""
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            others = (header for header in message["headers"] if header[0] != HEADER)
            message = {**message, "headers": [*others, (HEADER, self._said)]}
        elif self._key is not None and self._take(message["body"]) and not message.get("more_body"):
            # Before its client has the end, so that the client's next request finds it.
            self._keep(self._key)
        await self._send(message)

    def _begin(self, status: int, headers: Headers) -> None:
        if status != _GOOD or not _may_keep(headers):
            self._key = None
        self._headers = [header for header in headers if header[0] in _KEPT_HEADERS]

    def _take(self, piece: bytes) -> bool:
        """Whether the answer may still be kept."""
        fits = len(self._body) + len(piece) <= self._cache.options.max_answer_bytes
        if not fits or not self._cache.room_for(len(piece)):
            self.drop()
            return False
        self._body += piece
        return True

    def _keep(self, key: bytes) -> None:
        body = bytes(self._body)
        if is_whole(self._headers, body):
            self._cache.answers.put(key, Answer(self._headers, body), self._seconds)
        self.drop()

    def drop(self) -> None:
        """Keep nothing of it."""
        self._key = None
        self._cache.give_back(len(self._body))
        self._body = bytearray()


def _may_keep(headers: Headers) -> bool:
    """Whether what a replica says of its answer lets it be kept."""
    for name, value in headers:
        parts = {part.strip() for part in value.lower().split(b",")}
        if name == b"set-cookie" or (name == b"cache-control" and b"no-store" in parts):
            return False
        if name == b"vary" and not parts <= _VARY:
            return False
        if name == b"content-encoding" and parts != {b"identity"}:
            return False
    return True
