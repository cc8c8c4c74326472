"""Meters that several gateways share, and what each does while it cannot reach them.

A gateway that cannot reach the store goes on with its part of each meter (`metering/share.py`), says so, and tells the
store what it has used as soon as that is there again.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from penstock.access.shared_meters import SharedMeters
from penstock.core.errors import ConfigurationError
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
            # Of the other protocol, a store that wants a password says it in a way that looks like a broken connection.
            protocol=2,
        )
        self._shared = SharedMeters(self._client, self.gateway, prefix)
        self._there = f"{prefix}:gateways"
        self._own, self._share = Meters(), Share()
        # The groups of meters that this gateway has used, and what it used of them since they were told last.
        self._used: dict[Meter, str] = {}
        self._changed: set[Meter] = set()
        # What the ledger says of budgets, with their groups: of all that was used before this gateway began, too.
        self._spent: dict[str, tuple[str, Meter, int]] = {}
        self._ahead = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests that the store is asked about; when it was first reached again, on the monotonic clock.
        self._asking = 0
        self._returned: float | None = None
        self._ended = False

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
            if self.apart is None:
                # It came back between the two.
                self._beside(self._add(group, charges, found.at))
        return found

    async def _ask(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal | None:
        """What the store says; None where it does not answer."""
        self._asking += 1
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await self._shared.reserve(group, charges, self.gateways)
        except _FAILURES as error:
            self._leave(error)
            return None
        finally:
            self._asking -= 1
        self._note(group, charges, found)
        return found

    def _give_back(self, group: str, ended: "asyncio.Task[Reservation | Refusal | None]") -> None:
        """What was reserved for a request that is not there any more."""
        found = None if ended.cancelled() else ended.result()
        if isinstance(found, Reservation):
            self.settle(group, found, [0] * len(found.charges))

    def settle(self, group: str, reservation: Reservation, amounts: Sequence[int]) -> None:
        """What was used instead, of each meter. The store learns it beside."""
        changes = reservation.settled(amounts, self._now())
        for at in {at for _, at in changes}:
            some = [change for change, moment in changes if moment == at]
            self._use(group, some, at)
            if self.apart is None:
                self._beside(self._add(group, some, at))
                continue
            for meter, more in some:
                self._share.add(meter, more, at)

    async def at_least(self, group: str, meter: Meter, used: int) -> None:
        """So much of a budget is used, where the store counts less; it may have lost what it had."""
        self._spent[meter.name] = group, meter, used
        self._share.at_least(meter, used, self._now(), apart=self.apart is not None)
        if self.apart is not None:
            return
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._shared.at_least(group, meter, used)
        except _FAILURES as error:
            self._leave(error)

    async def look(self, group: str, meters: Sequence[Meter]) -> Sequence[int]:
        """What counts of each meter now; as far as this gateway knows where the store does not answer."""
        if self.apart is None:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    return await self._shared.look(group, meters, self.gateways)
            except _FAILURES as error:
                self._leave(error)
        return [self._share.used(meter, self._own, self._now()) for meter in meters]

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, the store knows that this gateway is there, and it looks for who else is.

        Raises ConfigurationError where the store will never answer. One that cannot be reached may be there later.
        """
        await self._check()
        await self._look()
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            # The store's client can lose a cancellation.
            self._ended = True
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
            if self.apart is not None:
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
            self._changed.clear()
            self._share.part()
            logger.warning(
                "The store of limits does not answer (%s): this gateway goes on with one part of %d of each limit.",
                self.apart,
                len(self.gateways),
            )

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._shared.reserve("start", [])
        except (AuthenticationError, ResponseError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"--limits-store: the store refuses what a gateway asks ({error}); it must be one server, no cluster, "
                "that runs scripts and may be written to."
            ) from None
        except _FAILURES:
            # Who looks next says so.
            pass

    async def _watch(self) -> None:
        forgotten = time.time()
        while not self._ended:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
            except Exception:
                logger.exception("the store of limits could not be looked at")
            if time.time() - forgotten > _FORGET_SECONDS:
                forgotten = time.time()
                self._forget()

    async def _look(self) -> None:
        """Say that this gateway is there, learn who else is, and come back where it was apart."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                seconds, micros = await self._client.time()
            now = seconds + micros / 1e6
            self._ahead = now - time.time()
            if self.apart is not None:
                # Others that see this gateway there can count on what it has told.
                await self._tell_all()
            async with asyncio.timeout(_ANSWER_SECONDS):
                was_known = not await self._client.zadd(self._there, {self.gateway: now})
                await self._client.zremrangebyscore(self._there, "-inf", now - _FORGET_SECONDS)
                found = await self._client.zrangebyscore(self._there, now - _GONE_SECONDS, "+inf")
            there = [str(each) for each in found]
            if (self._used or self._spent) and not was_known and self.apart is None:
                self._leave(RedisError("it has lost what was used"))
                return
            if self.apart is not None:
                await self._come_back(there)
                return
            self.gateways = there
            if not self._tasks and not self._asking:
                # A number that a failure has made wrong is right again.
                await self._tell([meter for meter in self._used if meter.unit == "running"])
        except _FAILURES as error:
            self._returned = None
            self._leave(error)

    async def _come_back(self, there: list[str]) -> None:
        """Use the store again, once all gateways that there were have told what they have used, or have gone."""
        self._returned = self._returned or time.monotonic()
        if set(self.gateways) - set(there) and time.monotonic() - self._returned < _GONE_SECONDS:
            return
        self.gateways, self._returned = there, None
        await self._tell_spent()
        while len(self._changed) > _TOLD_AT_ONCE:
            await self._tell([self._changed.pop() for _ in range(_TOLD_AT_ONCE)])
        # The store hears this before what is asked from now on.
        telling = self._tell(list(self._changed))
        self.apart = None
        logger.warning("The store of limits answers again, and knows what this gateway has used.")
        await telling

    async def _tell_all(self) -> None:
        self._changed.clear()
        meters = list(self._used)
        for first in range(0, len(meters), _TOLD_AT_ONCE):
            await self._tell(meters[first : first + _TOLD_AT_ONCE])

    async def _tell_spent(self) -> None:
        """Tell what the ledger says of budgets, once all gateways have told what they have used: it is in that."""
        spent = list(self._spent.values())
        for first in range(0, len(spent), _TOLD_AT_ONCE):
            await _soon([self._shared.at_least(*each) for each in spent[first : first + _TOLD_AT_ONCE]])

    def _tell(self, meters: Sequence[Meter]) -> Awaitable[object]:
        """Tell what this gateway has used of meters, as it is now."""
        by_group: dict[str, dict[Meter, dict[int, int]]] = {}
        for meter in meters:
            by_group.setdefault(self._used[meter], {})[meter] = self._own.slots(meter, self._now())
        return _soon([self._shared.tell(group, used) for group, used in by_group.items()])

    def _forget(self) -> None:
        now = self._now()
        self._own.forget(now)
        self._share.forget(now)
        if self.apart is None:
            self._changed.clear()
        self._spent = {name: each for name, each in self._spent.items() if now < each[1].until}
        self._used = {meter: group for meter, group in self._used.items() if self._own.slots(meter, now)}

    def _now(self) -> float:
        """On the store's clock."""
        return time.time() + self._ahead

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _soon(answers: Sequence[Awaitable[object]]) -> None:
    """Wait for answers of the store, which has been asked already."""
    async with asyncio.timeout(_ANSWER_SECONDS):
        await asyncio.gather(*answers)
