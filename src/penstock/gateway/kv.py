"""Reads what replicas tell of their prefix caches, over ZeroMQ, as `core/kv_wire.py` has it."""

import asyncio
import logging
from typing import Any

from penstock.core.kv_wire import END, decode_batch, decode_number, encode_number
from penstock.routing.stream import Batch, EventStream

logger = logging.getLogger("penstock.gateway")

# Messages that wait here before some are missed, which are asked for again.
_MOST_WAITING = 10_000
# For an answer to what is asked again, and between two tries, at first and at most.
_ANSWER_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LARGE_BYTES = 256 * 1024
_MOST_BYTES = 512 * 1024 * 1024
# After this time without a message, all that was told has come, or is lost.
_QUIET_SECONDS = 1.0
# Messages that are taken in before others have their turn.
_AT_A_TIME = 64

MISSING = "pyzmq is not installed here; pip install 'penstock[kv-events]'"


def make_context() -> Any:
    """What sockets are made of, or None where pyzmq is not installed."""
    try:
        import zmq.asyncio
    except ImportError:
        return None
    return zmq.asyncio.Context()


class KVReader:
    """Reads the events of one replica into its stream.

    Args:
        context: of `make_context`.
        events, replay: addresses, such as tcp://10.0.0.5:5557.
    """

    def __init__(self, context: Any, stream: EventStream, events: str, replay: str) -> None:
        self._context, self._stream = context, stream
        self._events, self._replay = events, replay
        self._pause = 0.0
        self._next_try = 0.0
        # Some servers keep the last batches only, and cannot tell what was there before these.
        self._tells_all = True
        self._told = 0

    def told(self, batches: int) -> None:
        """The replica says how many batches there were so far."""
        self._told = batches

    @property
    def _is_to_begin_anew(self) -> bool:
        return self._tells_all and self._stream.is_broken

    async def read(self) -> None:
        """Take in events until this is cancelled."""
        while True:
            try:
                await self._read()
            except Exception:
                logger.exception("What %s tells could not be taken in; it is read anew.", self._events)
                self._stream.begin_anew()
                await asyncio.sleep(_QUIET_SECONDS)

    async def _read(self) -> None:
        import zmq

        told = self._socket(zmq.SUB)
        try:
            told.setsockopt(zmq.RCVHWM, _MOST_WAITING)
            told.setsockopt(zmq.SUBSCRIBE, b"")
            told.connect(self._events)
            while True:
                missing = await self._take_some(told)
                if missing is not None:
                    await self._make_up(missing)
        finally:
            told.close()

    async def _take_some(self, told: Any) -> int | None:
        """Take in what has come; the number from which on batches are to be told again, if there is one."""
        now, told_before = asyncio.get_running_loop().time, self._told
        wait = max(0.0, self._next_try - now()) if self._is_to_begin_anew else _QUIET_SECONDS
        try:
            async with asyncio.timeout(min(wait, _QUIET_SECONDS)):
                frames = await told.recv_multipart()
            for _ in range(_AT_A_TIME):
                missing = self._take(frames)
                if missing is not None or not await told.poll(0):
                    break
                frames = await told.recv_multipart()
        except TimeoutError:
            # What was told meanwhile has not come, and is not on its way any more.
            missing = self._stream.expected if self._stream.expected < told_before else None
        if missing is None and self._is_to_begin_anew and now() >= self._next_try:
            self._stream.begin_anew()
            return 0
        return missing

    def _take(self, frames: list[bytes]) -> int | None:
        """Take in a message; from which number on batches are missing."""
        try:
            topic, number, payload = frames
            at, events = decode_batch(payload)
            restarts = self._stream.restarts
            missing = self._stream.take(Batch(decode_number(number), at, events, topic.decode("latin-1")))
            if self._stream.restarts > restarts:
                # What was said of the one before says nothing of this one.
                self._told = 0
            return missing
        except ValueError as error:
            logger.warning("What %s tells cannot be read: %s.", self._events, error)
            return None

    async def _make_up(self, missing: int) -> None:
        """Have batches told again from a number on."""
        told = self._told
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                batches = await self._ask(missing)
            for _ in self._stream.take_again(batches):
                await asyncio.sleep(0)
            if self._stream.expected < told:
                # It has told of more than it tells again.
                self._stream.give_up()
            self._tells_all = self._tells_all and (missing > 0 or not self._stream.is_broken)
        except (TimeoutError, ValueError) as error:
            why = str(error) or f"it does not answer within {_ANSWER_SECONDS:g} s"
            logger.warning("What was missed of %s is not told again at %s: %s.", self._events, self._replay, why)
            self._stream.give_up()
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause or _FIRST_PAUSE) if self._stream.is_broken else 0.0
        self._next_try = asyncio.get_running_loop().time() + self._pause

    async def _ask(self, missing: int) -> list[Batch]:
        import zmq

        # A socket of its own, so that nothing comes that belongs to an earlier question.
        again = self._socket(zmq.DEALER)
        try:
            again.connect(self._replay)
            await again.send_multipart((b"", encode_number(missing)))
            batches: list[Batch] = []
            while True:
                *_, number, payload = await again.recv_multipart()
                if number == END:
                    return batches
                # One that tells all may be large.
                large = len(payload) > _LARGE_BYTES
                at, events = await asyncio.to_thread(decode_batch, payload) if large else decode_batch(payload)
                batches.append(Batch(decode_number(number), at, events, self._stream.instance))
        finally:
            again.close()

    def _socket(self, kind: int) -> Any:
        import zmq

        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        return socket
