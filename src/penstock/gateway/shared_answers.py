"""Answers that several gateways share, in Valkey or Redis. No request waits for it longer than a small bound."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec
import redis.asyncio
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from penstock.core.errors import ConfigurationError
from penstock.gateway.answers import Answer, Found

logger = logging.getLogger("penstock.gateway")

_FAILURES = (RedisError, OSError, TimeoutError)
# Of what an answer is written as: a gateway of another version reads none of this one's.
_FORM = 1
# Seconds until one that did not answer is asked again.
_REST_SECONDS = 1.0
# Seconds that it may take to keep an answer, while no request waits; bytes of answers that wait for it.
_PUT_SECONDS, _MOST_WAITING = 5.0, 32 * 1024 * 1024


class _Written(msgspec.Struct, array_like=True):
    form: int
    seconds: float
    answer: Answer


_decode = msgspec.msgpack.Decoder(_Written).decode


def _client(url: str, seconds: float) -> Any:
    return redis.asyncio.Redis.from_url(
        url,
        retry=None,
        socket_connect_timeout=seconds,
        socket_timeout=seconds,
        # Of the other protocol, a store that wants a password says it in a way that looks like a broken connection.
        protocol=2,
    )


class SharedAnswers:
    """Those in a store, which has its own bound of memory, and forgets what was used least recently.

    Args:
        url: of the store.
        seconds: that it has for an answer.

    Attributes:
        away: why it does not answer; None while it does.
        size: 0: none of them is in this process.
        dropped: answers that were not kept, since the store did not take them.
    """

    size = 0

    def __init__(self, url: str, seconds: float, prefix: str = "penstock:answer:") -> None:
        self.away: str | None = None
        self.dropped = 0
        # Its client can lose a cancellation, so that what is waited for has a bound there, too.
        self._asking, self._putting = _client(url, seconds), _client(url, _PUT_SECONDS)
        self._seconds, self._prefix = seconds, prefix.encode()
        self._asked_again = 0.0
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, key: bytes, most_age: float) -> Found | None:
        """An answer, if the store says in time that it has it. Its age is by the store's clock alone."""
        if not self._may_ask():
            return None
        name = self._prefix + key
        try:
            async with asyncio.timeout(self._seconds), self._asking.pipeline(transaction=False) as pipeline:
                content, left = await pipeline.get(name).pttl(name).execute()
        except _FAILURES as error:
            self._leave(error)
            return None
        self._come_back()
        if content is None or left < 0:
            return None
        try:
            written = _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Of another version.
            return None
        age = max(0.0, written.seconds - left / 1000)
        return Found(written.answer, age) if written.form == _FORM and age < most_age else None

    def put(self, key: bytes, answer: Answer, seconds: float) -> None:
        """Keep an answer, behind what is answered; it is not kept where too many wait for that."""
        if not self._may_ask() or self._waiting + answer.size > _MOST_WAITING:
            self.dropped += 1
            return
        content = msgspec.msgpack.encode(_Written(_FORM, seconds, answer))
        self._waiting += answer.size
        self._beside(self._put(self._prefix + key, content, seconds, answer.size))

    async def _put(self, name: bytes, content: bytes, seconds: float, size: int) -> None:
        try:
            async with asyncio.timeout(_PUT_SECONDS):
                await self._putting.set(name, content, px=round(1000 * seconds))
        except ResponseError:
            # It is full; what it has can be had.
            self.dropped += 1
        except _FAILURES as error:
            self.dropped += 1
            self._leave(error)
        else:
            self._come_back()
        finally:
            self._waiting -= size

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _may_ask(self) -> bool:
        """Whether it answers, or is to be asked again by this request."""
        if self.away is None:
            return True
        now = asyncio.get_running_loop().time()
        if now < self._asked_again:
            return False
        self._asked_again = now + _REST_SECONDS
        return True

    def _leave(self, error: Exception) -> None:
        self._asked_again = asyncio.get_running_loop().time() + _REST_SECONDS
        if self.away is None:
            self.away = str(error) or f"nothing in {self._seconds:g} s"
            logger.warning("The store of answers does not answer (%s): replicas are asked instead.", self.away)

    def _come_back(self) -> None:
        if self.away is not None:
            self.away = None
            logger.warning("The store of answers answers again.")

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, answers can be kept; then those that wait for it are, if the store answers.

        Raises ConfigurationError where the store will never answer. One that cannot be reached may be there later.
        """
        await self._check()
        try:
            yield
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._asking.aclose()
            await self._putting.aclose()

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(_PUT_SECONDS):
                await self._putting.get(self._prefix + b"start")
                if not int((await self._putting.config_get("maxmemory")).get("maxmemory", 1)):
                    logger.warning(
                        "The store of answers has no bound: set its maxmemory, and maxmemory-policy allkeys-lru."
                    )
        except AuthenticationError as error:
            raise ConfigurationError(f"--answer-store: the store refuses this gateway ({error}).") from None
        except ResponseError as error:
            # Hosted ones may not say how they are set.
            logger.info("the store of answers does not say what bound it has: %s", error)
        except _FAILURES as error:
            self._leave(error)
