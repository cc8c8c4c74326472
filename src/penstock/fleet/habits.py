"""What the hours of the last days needed, and what the same hour of another day will need by that."""

import logging
import os
import statistics
from pathlib import Path

import msgspec

logger = logging.getLogger("penstock.fleet")

# In a fleet's folder.
HABITS = "habits.json"
_HOUR, _DAY = 3600, 86400
# Days like this one that are looked at; fewer say too little. Weekends are unlike other days, and a fifth one of them
# is nearly three weeks ago.
_MOST_DAYS, _LEAST_DAYS, _KEPT_DAYS = 5, 2, 21
# Of an hour: as much has to have been seen, and a number of replicas needed for as long, for it to say something.
_SEEN_SECONDS, _NEEDED_PART = 1800.0, 0.1
# Between two times that they are written.
_KEEP_SECONDS = 300.0


class Habits(msgspec.Struct):
    """Of all models.

    Attributes:
        models: for how many seconds each number of replicas was needed, by model, and by hour since 1970 in UTC.
    """

    models: dict[str, dict[int, dict[int, float]]] = {}

    def note(self, model: str, at: float, needed: int, seconds: float) -> None:
        """A number of replicas was needed for some seconds before a time. Times are seconds since 1970."""
        hours, hour = self.models.setdefault(model, {}), int(at / _HOUR)
        if hour not in hours:
            hours[hour] = {}
            for each in [each for each in hours if each < hour - _KEPT_DAYS * 24]:
                del hours[each]
        hours[hour][needed] = hours[hour].get(needed, 0.0) + seconds

    def expected(self, model: str, at: float) -> int:
        """Replicas that the hour of a time will need for a tenth of it: the median of the same hour on days like this.

        0 where too few such days were seen.
        """
        hours, hour, found = self.models.get(model, {}), int(at / _HOUR), list[int]()
        for days in range(1, _KEPT_DAYS + 1):
            before = hours.get(hour - 24 * days, {})
            alike = _is_weekend(at - days * _DAY) == _is_weekend(at)
            if alike and sum(before.values()) >= _SEEN_SECONDS and len(found) < _MOST_DAYS:
                found.append(_needed(before))
        return statistics.median_low(found) if len(found) >= _LEAST_DAYS else 0

    def keep(self, path: Path) -> None:
        """Write them, for the next supervisor. What cannot be written is told, and is no reason to end."""
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(msgspec.json.encode(self))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            logger.warning("What hours of the last days needed is not kept: %s", error)


def read_habits(path: Path) -> Habits:
    """Those that were kept, none where there is no such file, or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Habits)
    except FileNotFoundError:
        return Habits()
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        logger.warning("What hours of the last days needed is learnt anew, since %s cannot be read: %s", path, error)
        return Habits()


class KeptHabits:
    """Those in a file, which is written now and then, and at the end.

    Attributes:
        habits: as they were read, and became since.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.habits = path, read_habits(path)
        self._kept: float | None = None

    def look(self, now: float) -> None:
        """Write them where that was long ago. `now` are seconds, on any clock."""
        if self._kept is None or now - self._kept > _KEEP_SECONDS:
            self._kept = now
            self.keep()

    def keep(self) -> None:
        """Write them at once, for the next process that keeps this fleet."""
        self.habits.keep(self._path)


def _is_weekend(at: float) -> bool:
    """The first day of 1970 was a Thursday."""
    return (int(at / _DAY) + 3) % 7 >= 5


def _needed(seconds: dict[int, float]) -> int:
    """The greatest number of replicas that was needed, by itself or with greater ones, for long enough."""
    whole, above = sum(seconds.values()), 0.0
    for count in sorted(seconds, reverse=True):
        above += seconds[count]
        if above >= _NEEDED_PART * whole:
            return count
    return 0
