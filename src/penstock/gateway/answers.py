"""Answers that a gateway has given, in memory: those that were used last, within a bound of bytes."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from penstock.core.checks import LONGEST_SECONDS
from penstock.core.errors import ConfigurationError
from penstock.gateway.exchange import Headers

# Bytes of an answer beside its body: its key, its headers' objects and its entries in tables.
_BESIDE = 1024


class AnswerCacheOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a gateway keeps of answers to tenants that let it.

    Attributes:
        max_bytes: in memory, of all answers; with a store that several gateways share, that store's own bound holds.
        max_answer_bytes: of an answer; longer ones are not kept.
        store_seconds: that such a store has to say what it has; where it takes longer, a replica is asked.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_answer_bytes: int = 1024 * 1024
    store_seconds: float = 0.1

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be."""
        if not 1 <= self.max_answer_bytes <= self.max_bytes:
            raise ConfigurationError(
                f"answer_cache.max_answer_bytes is {self.max_answer_bytes}; it must be from 1 to max_bytes, "
                f"{self.max_bytes}."
            )
        if not 0.001 <= self.store_seconds <= LONGEST_SECONDS:
            raise ConfigurationError(
                f"answer_cache.store_seconds is {self.store_seconds:g}; it must be from 0.001 to "
                f"{LONGEST_SECONDS:.0f} seconds."
            )


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """A whole answer with status 200, as its client got it.

    Attributes:
        headers: those that say what the body is.
    """

    headers: Headers
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers) + _BESIDE


class Found(NamedTuple):
    """An answer, and for how many seconds it has been kept."""

    answer: Answer
    age: float


class Answers(Protocol):
    """Where answers are kept, by keys that say whose they are.

    Attributes:
        away: why they cannot be had now; None while they can.
        size: bytes of them in this process.
        dropped: answers that had no room, or not any more.
    """

    away: str | None

    @property
    def size(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    async def find(self, key: bytes, most_age: float) -> Found | None:
        """An answer that was kept for fewer than `most_age` seconds; None where there is none, or it cannot be had."""

    def put(self, key: bytes, answer: Answer, seconds: float) -> None:
        """Keep an answer for so long, in the place of an earlier one, without waiting for that."""


class _Kept(NamedTuple):
    answer: Answer
    at: float
    seconds: float


class OwnAnswers:
    """Those of one gateway, in its memory.

    Args:
        most_bytes: of all of them together.
        clock: seconds, which only grow.
    """

    away: str | None = None

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most_bytes, clock
        # The one that was used last comes last.
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self.size = self.dropped = 0

    async def find(self, key: bytes, most_age: float) -> Found | None:
        """An answer that was kept for fewer than `most_age` seconds, and no longer than it was to be kept."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        age = self._clock() - kept.at
        if age >= kept.seconds:
            self._forget(key)
            return None
        if age >= most_age:
            return None
        self._kept.move_to_end(key)
        return Found(kept.answer, age)

    def put(self, key: bytes, answer: Answer, seconds: float) -> None:
        """Keep an answer; those that were used least recently go where there is no room."""
        if key in self._kept:
            self._forget(key)
        if answer.size > self._most:
            return
        self._kept[key] = _Kept(answer, self._clock(), seconds)
        self.size += answer.size
        while self.size > self._most:
            self._forget(next(iter(self._kept)))
            self.dropped += 1

    def _forget(self, key: bytes) -> None:
        self.size -= self._kept.pop(key).answer.size
