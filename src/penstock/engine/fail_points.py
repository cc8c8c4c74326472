"""Named places in the code where a test, or an operator who tries out a failure, can make something go wrong.

Nothing is armed unless it is asked for. A place that is passed then costs one look at an empty table.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "engine.step": "before a step is computed",
        "engine.send": "after a step, before its outputs are sent",
    }
)

FailAction = Literal["raise", "exit", "hang", "nothing"]
"""What can happen there."""


class FailPoints:
    """The places of one engine, and what happens where they are passed."""

    def __init__(self) -> None:
        self._armed: dict[str, Callable[[], None]] = {}

    def passed(self, name: str) -> None:
        """The code passes the place of this name."""
        if self._armed:
            action = self._armed.get(name)
            if action is not None:
                action()

    def arm(self, name: str, action: Callable[[], None] | None) -> None:
        """Have `action` done whenever the place is passed, or nothing any more; raises ValueError for no such name."""
        if name not in POINTS:
            raise ValueError(f"{name[:40]!r} is no fail-point; there are {', '.join(POINTS)}.")
        if action is None:
            self._armed.pop(name, None)
        else:
            self._armed[name] = action
