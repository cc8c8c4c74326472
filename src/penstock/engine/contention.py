"""How long this process's threads were ready to run and had no processor, as the kernel counts it."""

import contextlib
import os
from pathlib import Path

# It takes a tenth of a millisecond to ask, which a step of a small model should not pay each time.
INTERVAL = 0.1
_TASKS = Path("/proc/self/task")


class CpuWait:
    """Reads `/proc/self/task/*/schedstat`, whose second number is nanoseconds on a run queue.

    Where a kernel does not count them (CONFIG_SCHED_INFO), it is 0 for ever.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        """`tasks` is the folder with one for each thread."""
        self._tasks = tasks
        self._seconds = self._waited()
        self._asked = self._ended = float("-inf")

    def begin_step(self, now: float) -> None:
        """A step begins: what threads, such as the heartbeat's, waited for in a pause before it is not its own."""
        if now - self._ended >= INTERVAL:
            self._seconds, self._asked = self._waited(), float("-inf")

    def since_last(self, now: float) -> float:
        """Seconds since the last answer that was not 0, of the thread that waited longest; mostly 0, without asking.

        To be called at the end of a step.
        """
        self._ended = now
        if now - self._asked < INTERVAL:
            return 0.0
        self._asked = now
        before, self._seconds = self._seconds, self._waited()
        return max((waited - before.get(task, 0.0) for task, waited in self._seconds.items()), default=0.0)

    def _waited(self) -> dict[str, float]:
        """Seconds of each thread from its beginning."""
        waited: dict[str, float] = {}
        try:
            tasks = os.listdir(self._tasks)
        except OSError:
            return waited
        for task in tasks:
            # One that ends meanwhile has no file any more; the others are to be read all the same, or the next answer
            # would have all that they ever waited for.
            with contextlib.suppress(OSError, IndexError, ValueError):
                waited[task] = int((self._tasks / task / "schedstat").read_text().split()[1]) / 1e9
        return waited
