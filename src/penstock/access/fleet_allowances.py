"""Meters that several gateways share, and what each does while it cannot reach them.

A gateway that cannot reach the store goes on with its part of each meter (`metering/share.py`), says so, and tells the
store what it has used as soon as that is there again.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from penstock.access.shared_meters import SharedMeters
from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation
from penstock.metering.share import Share

logger = logging.getLogger("penstock.gateway")

# Seconds that the store has for an answer; between two looks at who is there, and after which a gateway is not.
_ANSWER_SECONDS, _LOOK_SECONDS, _GONE_SECONDS = 1.0, 1.0, 5.0
_FORGET_SECONDS = 60.0
# Meters that are told of in one step.
_TOLD_AT_ONCE = 50
_FAILURES = (RedisError, OSError, TimeoutError)


class FleetAllowances:
    """Those of several gateways, in Valkey or Redis.

    Attributes:
        apart: why this gateway goes on with its part; None while it reaches the store.
        gateways: that are there, this one among them.
    """

    def __init__(self, url: str, prefix: str = "penstock") -> None:
        self.gateway = uuid.uuid4().hex[:12]
        self.gateways = [self.gateway]
        self.apart: str | None = None
        # Its answers are waited for here, so that one that hangs is left at once.
        self._client = redis.asyncio.Redis.from_url(
            url,
            retry=None,
            socket_connect_timeout=_ANSWER_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            decode_responses=True,
        )
        self._shared = SharedMeters(self._client, self.gateway, prefix)
        self._there = f"{prefix}:gateways"
        self._own, self._share = Meters(), Share()
        # The groups of meters that this gateway has used, and what it used of them since they were told last.
        self._used: dict[Meter, str] = {}
        self._changed: set[Meter] = set()
        self._ahead = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def reserve(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal:
        """Reserve all of it, or nothing; of this gateway's part where the store does not answer."""
        if self.apart is None:
            asking = asyncio.create_task(self._ask(group, charges))
            try:
                told = await asyncio.shield(asking)
            except asyncio.CancelledError:
                # The store may have reserved it, or does so yet.
                asking.add_done_callback(lambda ended: self._give_back(group, ended))
                raise
            if told is not None:
                return told
        found = self._share.reserve(charges, len(self.gateways), self._own, self._now())
        if isinstance(found, Reservation):
            self._use(group, charges, found.at)
        return found

    async def _ask(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal | None:
        """What the store says; None where it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await self._shared.reserve(group, charges, self.gateways)
        except _FAILURES as error:
            self._leave(error)
            return None
        self._note(group, charges, found)
        return found

    def _give_back(self, group: str, ended: "asyncio.Task[Reservation | Refusal | None]") -> None:
        """What was reserved for a request that is not there any more."""
        found = None if ended.cancelled() else ended.result()
        if isinstance(found, Reservation):
            self.settle(group, found, [0] * len(found.charges))

    def settle(self, group: str, reservation: Reservation, amounts: Sequence[int]) -> None:
        """What was used instead, of each meter. The store learns it beside."""
        if reservation.is_settled:
            return
        reservation.is_settled = True
        changed = [
            Charge(meter, amount - reserved)
            for (meter, reserved), amount in zip(reservation.charges, amounts, strict=True)
            if amount != reserved
        ]
        self._use(group, changed, reservation.at)
        if self.apart is not None:
            self._share.settle(reservation, amounts)
        elif changed:
            self._beside(self._add(group, changed, reservation.at))

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, the store knows that this gateway is there, and it looks for who else is."""
        await self._look()
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, *self._tasks, return_exceptions=True)
            with contextlib.suppress(*_FAILURES):
                await self._client.zrem(self._there, self.gateway)
            await self._client.aclose()

    def _note(self, group: str, charges: Sequence[Charge], found: Reservation | Refusal) -> None:
        if isinstance(found, Refusal):
            self._share.told(found.meter, found.used, self._now())
            return
        self._ahead = found.at - time.time()
        self._use(group, charges, found.at)
        for (meter, _), used in zip(charges, found.used, strict=True):
            self._share.told(meter, used, found.at)

    def _use(self, group: str, charges: Sequence[Charge], at: float) -> None:
        for meter, amount in charges:
            self._own.add(meter, amount, at)
            self._used[meter] = group
            self._changed.add(meter)

    async def _add(self, group: str, charges: Sequence[Charge], at: float) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._shared.add(group, charges, at)
        except _FAILURES as error:
            self._leave(error)

    def _leave(self, error: Exception) -> None:
        if self.apart is None:
            self.apart = str(error) or type(error).__name__
            self._share.part()
            logger.warning(
                "The store of limits does not answer (%s): this gateway goes on with one part of %d of each limit.",
                self.apart,
                len(self.gateways),
            )

    async def _watch(self) -> None:
        forgotten = time.time()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()
            if time.time() - forgotten > _FORGET_SECONDS:
                forgotten = time.time()
                self._forget()

    async def _look(self) -> None:
        """Say that this gateway is there, learn who else is, and come back where it was apart."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                seconds, micros = await self._client.time()
                now = seconds + micros / 1e6
                was_known = not await self._client.zadd(self._there, {self.gateway: now})
                there = await self._client.zrangebyscore(self._there, now - _GONE_SECONDS, "+inf")
            self.gateways = [str(each) for each in there]
            self._ahead = now - time.time()
            if self._used and not was_known:
                self._leave(RedisError("it has lost what was used"))
            if self.apart is not None:
                await self._come_back()
        except _FAILURES as error:
            self._leave(error)

    async def _come_back(self) -> None:
        """Tell the store all that this gateway has used."""
        self._changed = set(self._used)
        while self._changed:
            some = [self._changed.pop() for _ in range(min(_TOLD_AT_ONCE, len(self._changed)))]
            by_group: dict[str, dict[Meter, dict[int, int]]] = {}
            for meter in some:
                by_group.setdefault(self._used[meter], {})[meter] = self._own.slots(meter, self._now())
            async with asyncio.timeout(_ANSWER_SECONDS):
                await asyncio.gather(*(self._shared.tell(group, used) for group, used in by_group.items()))
        if self.apart is not None:
            self.apart = None
            logger.warning("The store of limits answers again, and knows what this gateway has used.")

    def _forget(self) -> None:
        now = self._now()
        self._own.forget(now)
        self._share.forget(now)
        if self.apart is None:
            self._changed.clear()
        self._used = {meter: group for meter, group in self._used.items() if self._own.slots(meter, now)}

    def _now(self) -> float:
        """On the store's clock."""
        return time.time() + self._ahead

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
