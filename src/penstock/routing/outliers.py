"""Replicas that fail are left out for a time, each longer if it fails again, and never all of them."""

from collections.abc import Sequence

import msgspec

_MOST_DOUBLINGS = 16


class Rules(msgspec.Struct, frozen=True):
    """When a replica is left out.

    Attributes:
        failures: one after the other, after which it is.
        seconds, most_seconds: for how long at first, twice as long each further time, and at most.
        part: of all replicas, how many may be left out at a time.
    """

    failures: int = 3
    seconds: float = 1.0
    most_seconds: float = 30.0
    part: float = 0.5


class _Record(msgspec.Struct):
    """What is known of a replica.

    Attributes:
        failures: since its last success.
        times: that it was left out since.
        until: when it may be tried again.
        tried: whether a request tries it now that its time has passed.
    """

    failures: int = 0
    times: int = 0
    until: float = float("-inf")
    tried: bool = False


class Outliers:
    """Counts what becomes of requests at each replica (Nygard, Release It!, 2007: circuit breaker).

    One that was left out gets a single request when its time has passed. If that succeeds, it is as the others again.
    """

    def __init__(self, replicas: int, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._records = [_Record() for _ in range(replicas)]

    def add(self) -> None:
        """There is one more replica, in the next place."""
        self._records.append(_Record())

    def forget(self, place: int) -> None:
        """A replica is gone: what it did says nothing of the next one in its place."""
        self._records[place] = _Record()

    def succeeded(self, place: int) -> None:
        """A replica has answered a request: it is as the others again."""
        self._records[place] = _Record()

    def failed(self, place: int, now: float) -> None:
        """A replica has failed on a request; `now` in seconds on a clock that never goes back."""
        record, rules = self._records[place], self._rules
        if record.times and now < record.until:
            # What was sent before it was left out says nothing new.
            return
        record.failures += 1
        if record.failures >= rules.failures or record.times:
            record.until = now + min(rules.most_seconds, rules.seconds * 2 ** min(record.times, _MOST_DOUBLINGS))
            record.times, record.failures, record.tried = record.times + 1, 0, False

    def tries(self, place: int, now: float) -> bool:
        """A request is sent to a replica; whether it is the one that tries it, since it was left out."""
        record = self._records[place]
        if not record.times or now < record.until:
            return False
        record.tried = True
        return True

    def undecided(self, place: int) -> None:
        """The request that tries a replica has ended without saying anything of it: another may try it."""
        self._records[place].tried = False

    def out(self, now: float) -> list[int]:
        """Places of those that are left out, the one whose time ends last first."""
        left_out = [
            place for place, record in enumerate(self._records) if record.times and (now < record.until or record.tried)
        ]
        left_out.sort(key=lambda place: self._records[place].until, reverse=True)
        return left_out[: int(self._rules.part * len(self._records))]

    def allowed(self, candidates: Sequence[int], now: float) -> Sequence[int]:
        """Those of the candidates that are not left out; all of them where none would be left."""
        left_out = set(self.out(now))
        if not left_out:
            return candidates
        return [place for place in candidates if place not in left_out] or candidates

    def why(self, place: int, now: float) -> str | None:
        """Why a replica is left out; None where it is not."""
        if place not in self.out(now):
            return None
        record = self._records[place]
        if record.tried:
            return "it failed, and a request tries whether it still does"
        return f"it failed, and is tried again in {record.until - now:.1f} s"
