"""Ends what has waited too long for a replica."""

import asyncio

from penstock.gateway.options import Timeouts
from penstock.gateway.replicas import Replica, Replicas, State

# Between two looks. One that comes later than this by as much again says nothing: the gateway itself stood still.
LOOK_SECONDS = 0.25


async def end_silence(replicas: Replicas, timeouts: Timeouts) -> None:
    """Look at all that replicas were asked, again and again, until this is cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        if now() < due + LOOK_SECONDS:
            for replica in replicas.all:
                _look(replica, timeouts, now())


def _look(replica: Replica, timeouts: Timeouts, now: float) -> None:
    # A replica that tells its state and has stopped to is asked nothing that can be asked of another. That what it
    # tells breaks off says nothing yet: it may tell it again at once.
    quiet = replica.told is not None and replica.state in (State.STALE, State.UNREACHABLE)
    gone = quiet and now - replica.heard > timeouts.silence
    for exchange in tuple(replica.under_way):
        seconds = exchange.silent(now)
        if not seconds:
            continue
        if gone and exchange.may_move():
            exchange.fail(replica.why)
        elif not exchange.begun and seconds > timeouts.first_byte:
            exchange.fail(f"it did not begin within {timeouts.first_byte:g} s")
        elif exchange.begun and seconds > timeouts.idle:
            exchange.fail(f"it sent nothing for {timeouts.idle:g} s")
