"""Named places in the code where a test, or an operator who tries out a failure, can make something go wrong.

Nothing is armed unless it is asked for. A place that is passed then costs one look at an empty table.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.core.faults import DELAY_SECONDS, POINTS, Fault

Action = Callable[[], None]
Arming = Callable[[Action | None], None]


class FailPoints:
    """The places of one process, and what happens where they are passed."""

    def __init__(
        self,
        rank: int = 0,
        elsewhere: Mapping[str, Arming] | None = None,
        others: Callable[[Fault], None] = lambda _fault: None,
    ) -> None:
        """`elsewhere`: places that are passed outside of Python, each with what has an action done there.

        `others` are told of what is to go wrong in another process.
        """
        self._rank = rank
        self._elsewhere = elsewhere or {}
        self._others = others
        self._armed: dict[str, Action] = {}

    def passed(self, name: str) -> None:
        """The code passes the place of this name."""
        if self._armed:
            action = self._armed.get(name)
            if action is not None:
                action()

    def arm(self, fault: Fault) -> None:
        """Have something go wrong, here or in another process; raises ValueError for a place that there is not."""
        if fault.point not in POINTS:
            raise ValueError(f"{fault.point[:40]!r} is no fail-point; there are {', '.join(POINTS)}.")
        if fault.rank != self._rank:
            self._others(fault)
            return
        action = None if fault.action == "nothing" else _action(fault)
        if fault.point in self._elsewhere:
            self._elsewhere[fault.point](action)
        elif action is None:
            self._armed.pop(fault.point, None)
        else:
            self._armed[fault.point] = action

    def begin(self, faults: Sequence[Fault]) -> None:
        """The process begins to load; each of these faults that is to happen in it does so from now on."""
        for fault in faults:
            if fault.rank == self._rank:
                self.arm(fault)
        self.passed("rank.load")


def _action(fault: Fault) -> Action:
    """What the fault does where its place is passed: nothing before its turn, and nothing again after it."""
    left = fault.passes

    def act() -> None:
        nonlocal left
        left -= 1
        if left != -1:
            return
        print(f"penstock: fail-point {fault.point} of rank {fault.rank}: {fault.action}", file=sys.stderr, flush=True)
        match fault.action:
            case "raise":
                raise RuntimeError(f"the fail-point {fault.point} was armed")
            case "exit":
                os._exit(70)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "delay":
                time.sleep(DELAY_SECONDS)
            case "hang":
                while True:
                    time.sleep(1.0)

    return act
