"""Looks after replicas: whether each can answer now, and with which models.

A replica of Penstock tells its state itself, on a connection that stays open (`/v1/replica`). Of servers of other
programs the gateway asks again and again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.exchange import Exchange
from penstock.gateway.replicas import Replica, State
from penstock.routing.told import ReplicaState

logger = logging.getLogger("penstock.gateway")

# Between two looks at a replica, or two tries to be told, and the longest that a look takes.
LOOK_SECONDS = 1.0
ANSWER_SECONDS = 5.0
# The time that states are compared with one another, once and a second time.
_LAG_SECONDS = 30.0
# The most bytes of a list of models, and of a state.
_MAX_BODY = 1024 * 1024
_MAX_STATE = 64 * 1024

_GOOD, _NONE = 200, 404

# What takes in the states of a replica.
OnState = Callable[[Replica, ReplicaState], None]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode
_decode_state = msgspec.json.Decoder(ReplicaState).decode


async def watch(replica: Replica, on_state: OnState, silence: float) -> None:
    """Look at a replica again and again, until this is cancelled.

    Args:
        replica: a server.
        on_state: takes in what it tells of itself.
        silence: the age in seconds from which this is not relied on.
    """
    while True:
        try:
            if not await _listen(replica, on_state, silence):
                await _look(replica)
        except TimeoutError:
            _is(replica, State.UNREACHABLE, f"it has not answered for {ANSWER_SECONDS:g} s")
        except ReplicaBroken as error:
            _is(replica, State.UNREACHABLE, error.message)
        except msgspec.DecodeError as error:
            _is(replica, State.UNREACHABLE, f"what it says of itself cannot be read: {error}")
        except Exception:
            logger.exception("what %s says of itself could not be taken in", replica.name)
            _is(replica, State.UNREACHABLE, "what it says of itself could not be taken in; the log says why")
        await asyncio.sleep(LOOK_SECONDS)


def _is(replica: Replica, state: State, why: str = "", models: tuple[str, ...] = ()) -> None:
    """Note how a replica is, and log it where it was otherwise."""
    before = replica.state
    if state == State.READY:
        replica.is_ready(models)
    else:
        replica.is_not(state, why)
    if replica.state != before:
        logger.info("%s is %s%s", replica.name, state, f": {why}" if why else "")


async def _listen(replica: Replica, on_state: OnState, silence: float) -> bool:
    """Take in what a replica tells of itself, until it tells no more; False where it does not tell anything."""
    async with _asked(replica, "/v1/replica") as exchange:
        async with asyncio.timeout(ANSWER_SECONDS):
            head = await exchange.head()
        kinds = [value for name, value in head.headers if name == b"content-type"]
        if head.status in (401, 403):
            raise ReplicaBroken(f"it does not take the gateway's key ({head.status})")
        if head.status >= 500 or (head.status != _NONE and head.status != _GOOD and replica.told is not None):
            # What has told its state is no server of another program, whatever stands before it answers.
            raise ReplicaBroken(f"it does not tell its state ({head.status})")
        if head.status != _GOOD or kinds != [b"application/x-ndjson"]:
            return False
        lag, now = _Lag(), asyncio.get_running_loop().time
        async for state in _states(exchange, replica, silence):
            late = lag.of(now(), state.at)
            # What it takes on is known before it is sent anything.
            replica.told, replica.heard = state, now()
            on_state(replica, state)
            if state.why or state.ending:
                state_of = State.DRAINING if state.ending else State.UNREADY
                _is(replica, state_of, "it is stopping" if state.ending else state.why.rstrip("."))
            elif late > silence:
                _is(replica, State.STALE, f"what it says of itself comes {late:.1f} s late")
            else:
                _is(replica, State.READY, models=state.models)
        if not (replica.told and replica.told.ending):
            raise ReplicaBroken("it ended the stream of its state")
        return True


class _Lag:
    """How much later than the fastest of the last states one comes. The clocks of both sides need not agree."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._least = self._before = float("inf")

    def of(self, now: float, at: float) -> float:
        """Seconds; `at` is when it was made, on the replica's clock."""
        if now - self._since > _LAG_SECONDS:
            # Clocks drift: what was long ago is forgotten.
            self._since, self._before, self._least = now, self._least, float("inf")
        self._least = min(self._least, now - at)
        return now - at - min(self._least, self._before)


async def _states(exchange: Exchange, replica: Replica, silence: float) -> AsyncIterator[ReplicaState]:
    """The states as they come; meanwhile it is noted where none comes for too long."""
    rest = b""
    while True:
        piece = asyncio.ensure_future(exchange.piece())
        try:
            done, _ = await asyncio.wait((piece,), timeout=silence)
            if not done and replica.state == State.READY:
                _is(replica, State.STALE, f"it has said nothing for {silence:g} s")
            # A connection can be half open for ever.
            async with asyncio.timeout(ANSWER_SECONDS):
                new = await piece
        finally:
            piece.cancel()
        if not new:
            return
        *lines, rest = (rest + new).split(b"\n")
        if len(rest) > _MAX_STATE:
            raise ReplicaBroken(f"a state of it is longer than {_MAX_STATE} bytes")
        # Only the newest counts.
        if lines:
            yield _decode_state(lines[-1])


async def _look(replica: Replica) -> None:
    """Find out whether a server of another program can answer."""
    replica.told = None
    async with asyncio.timeout(ANSWER_SECONDS):
        # Servers of other programs may have no such path, and be ready.
        status, _ = await _fetch(replica, "/health")
        if status not in (200, 404):
            _is(replica, State.UNREADY, f"it says that it is not ready ({status})")
            return
        status, body = await _fetch(replica, "/v1/models")
        if status != 200:
            _is(replica, State.UNREADY, f"it does not tell its models ({status})")
            return
        _is(replica, State.READY, models=tuple(model.id for model in _decode_models(body).data))


async def _fetch(replica: Replica, path: str) -> tuple[int, bytes]:
    """Status and body of what a replica answers to a GET. Raises ReplicaBroken."""
    async with _asked(replica, path) as exchange:
        return (await exchange.head()).status, await exchange.body(_MAX_BODY)


@contextlib.asynccontextmanager
async def _asked(replica: Replica, path: str) -> AsyncIterator[Exchange]:
    """The answer to a GET, which is left where the block ends before it does."""
    address = replica.pool.address
    key = f"authorization: Bearer {replica.key}\r\n" if replica.key else ""
    kinds = "accept: application/x-ndjson, application/json\r\n"
    head = f"GET {address.root}{path} HTTP/1.1\r\nhost: {address.authority}\r\n{kinds}{key}\r\n".encode()
    async with replica.pool.apart(head) as (_, exchange):
        yield exchange
