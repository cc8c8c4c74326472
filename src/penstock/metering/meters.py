"""Bounds of what keys, projects and organisations may use: a request reserves in all of its meters, or in none.

Pure: the caller says what time it is. One gateway counts in memory by this, and what several share is counted by a
script that does the same (`access/meters.lua`).
"""

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import Literal, NamedTuple

import msgspec

from penstock.metering.window import Window, slot_of

Unit = Literal["requests", "tokens", "running", "money"]


class Meter(msgspec.Struct, frozen=True, dict=True):
    """A bound on what somebody uses of one thing.

    Attributes:
        owner: whose: "key/…", "project/…" or "organisation/…".
        unit: requests, tokens (of prompts and answers), requests under way, or money in billionths, rounded up.
        most: that may be used.
        seconds: within which; None: it is all that there is, for as long as the meter has this `period`.
        period: the day or month that a budget is for; another one begins at nothing.
        until: when the period ends; the meter is not asked for any more.
    """

    owner: str
    unit: Unit
    most: int
    seconds: float | None = None
    period: str = ""
    until: float = inf

    @cached_property
    def name(self) -> str:
        """The same for what counts together, whatever its bound is now."""
        return f"{self.owner}:{self.unit}:{self.period or self.seconds or 'now'}"


class Charge(NamedTuple):
    """What a request wants to use of a meter."""

    meter: Meter
    amount: int


class Refusal(NamedTuple):
    """Why nothing was reserved.

    Attributes:
        meter: that has no room.
        used: of it, by others.
        seconds: until there may be room for this request; infinite where time alone makes none.
    """

    meter: Meter
    used: int
    seconds: float


class Reservation(msgspec.Struct, eq=False):
    """What is reserved of meters for one request, until it is settled.

    Attributes:
        at: when, on the clock of the meters.
        used: of each meter, with this request: what headers tell.
    """

    charges: tuple[Charge, ...]
    at: float
    used: tuple[int, ...]
    is_settled: bool = False

    def settled(self, amounts: Sequence[int], now: float) -> "list[tuple[Charge, float]]":
        """What is to be added where these amounts were used instead, each with its moment; nothing if asked again.

        What was used beyond is used now: the time when it was reserved may be long ago.
        """
        if self.is_settled:
            return []
        self.is_settled = True
        changes = [(meter, amount - reserved) for (meter, reserved), amount in zip(self.charges, amounts, strict=True)]
        return [(Charge(meter, more), self.at if more < 0 else now) for meter, more in changes if more]


class Meters:
    """All meters of one gateway, in memory."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._totals: dict[str, int] = {}
        self._ends: dict[str, float] = {}

    def reserve(self, charges: Sequence[Charge], now: float) -> Reservation | Refusal:
        """Reserve all of it, or say which meter has no room: the one whose room comes last."""
        refused: Refusal | None = None
        found = []
        for meter, amount in charges:
            used = self.used(meter, now)
            found.append(used + amount)
            if used + amount <= meter.most:
                continue
            seconds = inf if meter.seconds is None else self._window(meter).wait(amount, meter.most, now)
            if refused is None or seconds > refused.seconds:
                refused = Refusal(meter, used, seconds)
        if refused is not None:
            return refused
        for meter, amount in charges:
            self.add(meter, amount, now)
        return Reservation(tuple(charges), now, tuple(found))

    def settle(self, reservation: Reservation, amounts: Sequence[int], now: float) -> None:
        """What was used instead, of each meter; nothing of all of them where the request did not run.

        Only the first call counts.
        """
        for (meter, more), at in reservation.settled(amounts, now):
            self.add(meter, more, at)

    def used(self, meter: Meter, now: float) -> int:
        """What was used, as far as it counts now."""
        if meter.seconds is None:
            return self._totals.get(meter.name, 0)
        return self._window(meter).look(now)

    def forget(self, now: float) -> None:
        """Let go of what says nothing any more: of windows in which nothing was used, and of periods that are over."""
        self._windows = {name: window for name, window in self._windows.items() if window.look(now) or window.slots}
        over = [name for name, end in self._ends.items() if end <= now or not self._totals[name]]
        for name in over:
            del self._totals[name], self._ends[name]

    def counts(self, name: str) -> bool:
        """Whether something of the meter of this name is counted."""
        return name in self._windows or name in self._totals

    def correct(self, meter: Meter, used: int, now: float) -> None:
        """So much counts now, whatever was added."""
        if meter.seconds is None:
            self.add(meter, used - self.used(meter, now), now)
        else:
            self._window(meter).correct(used, now)

    def slots(self, meter: Meter, now: float) -> dict[int, int]:
        """What was used in which slot of a window; of a total, all of it in slot 0."""
        if meter.seconds is None:
            return {0: self._totals[meter.name]} if meter.name in self._totals else {}
        self._window(meter).look(now)
        return dict(self._window(meter).slots)

    def _window(self, meter: Meter) -> Window:
        assert meter.seconds is not None, "totals have no window"
        window = self._windows.get(meter.name)
        if window is None:
            window = self._windows[meter.name] = Window(meter.seconds)
        return window

    def add(self, meter: Meter, amount: int, at: float) -> None:
        """Use more, or less, at a moment, whatever the bound is."""
        if meter.seconds is None:
            self._totals[meter.name] = self._totals.get(meter.name, 0) + amount
            self._ends[meter.name] = meter.until
        else:
            self._window(meter).add(amount, slot_of(at, meter.seconds))
