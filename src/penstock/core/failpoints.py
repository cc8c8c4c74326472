"""Named places in the code where a test, or an operator who tries out a failure, can make something go wrong.

Nothing is armed unless it is asked for. A place that is passed then costs one look at an empty table.
"""

from collections.abc import Callable
from typing import Literal

POINTS = {
    "engine.step": "before a step is computed",
    "engine.send": "after a step, before its outputs are sent",
}

FailAction = Literal["raise", "exit", "hang", "nothing"]
"""What can happen there."""

_armed: dict[str, Callable[[], None]] = {}


def fail_point(name: str) -> None:
    """The code passes the place of this name."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None] | None) -> None:
    """Have `action` done whenever the place is passed, or nothing any more; raises ValueError for an unknown name."""
    if name not in POINTS:
        raise ValueError(f"{name[:40]!r} is no fail-point; there are {', '.join(POINTS)}.")
    if action is None:
        _armed.pop(name, None)
    else:
        _armed[name] = action
