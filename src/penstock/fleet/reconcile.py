"""What is to be done next so that a fleet becomes as it is described: pure, and one rule for all places.

It is asked again whenever something has changed, and remembers nothing. A start, a failure, an update, a change of
number and an end differ only in what is there and what is wanted.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

# Replicas of a version in a row that never became ready, after which it is taken to be bad.
MOST_FAILED_STARTS = 3
# Between a replica's failure and the start of the next one: none after the first, then doubled.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Phase(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    # It was ready, and cannot be asked now.
    UNREADY = "unready"
    DRAINING = "draining"


class Member(msgspec.Struct, frozen=True):
    """A replica that there is.

    Attributes:
        name: that no other has.
        model: its name.
        version: what it was started as.
        since: when it was started, in seconds.
        requests: under way there.
    """

    name: str
    model: str
    version: str
    phase: Phase
    since: float
    requests: int = 0


class Wanted(msgspec.Struct, frozen=True):
    """What is wanted of a model.

    Attributes:
        version: what its replicas are to be.
        surge: how many may be there beyond `count` during an update.
        failures: replicas of this version in a row that ended without having been asked to.
        failed: when the last one did.
    """

    model: str
    version: str
    count: int
    surge: int = 1
    failures: int = 0
    failed: float = float("-inf")


class Start(msgspec.Struct, frozen=True):
    """Start a replica of a model."""

    model: str
    version: str


class Drain(msgspec.Struct, frozen=True):
    """Have a replica end once its requests have."""

    name: str
    why: str


Action = Start | Drain


def pause_after(failures: int) -> float:
    """Seconds between a failure and the next start."""
    return 0.0 if failures <= 1 else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 2, 16))


def reconcile(wanted: Sequence[Wanted], members: Iterable[Member], now: float) -> list[Action]:
    """What is to be done now. `now` is on the clock of members' `since`."""
    staying = [each for each in members if each.phase != Phase.DRAINING]
    known = {each.model for each in wanted}
    actions: list[Action] = [
        Drain(each.name, "its model is no longer described") for each in staying if each.model not in known
    ]
    for each in wanted:
        actions += _of_model(each, [member for member in staying if member.model == each.model], now)
    return actions


def _of_model(wanted: Wanted, staying: Sequence[Member], now: float) -> list[Action]:
    new = [each for each in staying if each.version == wanted.version]
    old = [each for each in staying if each.version != wanted.version]
    actions: list[Action] = []
    missing = wanted.count - len(new)
    # An update may have more of them, or where it may not, has to end one before it starts another.
    room = wanted.count + (wanted.surge if old else 0) - len(staying)
    if now >= wanted.failed + pause_after(wanted.failures):
        actions += [Start(wanted.model, wanted.version)] * max(0, min(missing, room))
    actions += [Drain(each.name, "an update replaces it") for each in _replaced(wanted, new, old)]
    actions += [Drain(each.name, "fewer replicas are wanted") for each in _least_missed(new)[: max(0, -missing)]]
    return actions


def _replaced(wanted: Wanted, new: Sequence[Member], old: Sequence[Member]) -> list[Member]:
    """Old replicas that may end now: behind them the wanted number can be asked, or one less without a surge.

    Those that cannot be asked go first, but for those that are needed until new ones can be: they may yet become ready.
    """
    least = wanted.count if wanted.surge else max(0, wanted.count - 1)
    coming = sum(each.phase != Phase.READY for each in new)
    ready = sum(each.phase == Phase.READY for each in (*new, *old))
    idle = [each for each in _least_missed(old) if each.phase != Phase.READY]
    idle = idle[: max(0, len(new) + len(old) - least - coming)]
    serving = [each for each in _least_missed(old) if each.phase == Phase.READY]
    return [*idle, *serving[: max(0, ready - least)]]


def _least_missed(members: Sequence[Member]) -> list[Member]:
    """Those first that are not ready, then those with the fewest requests, the youngest among them."""
    return sorted(members, key=lambda each: (each.phase == Phase.READY, each.requests, -each.since, each.name))
