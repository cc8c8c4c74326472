"""How long this process's threads were ready to run and had no processor, as the kernel counts it."""

import os
from pathlib import Path

# It takes a tenth of a millisecond to ask, which a step of a small model should not pay each time.
INTERVAL = 0.1
_TASKS = Path("/proc/self/task")


class CpuWait:
    """Reads `/proc/self/task/*/schedstat`, whose second number is nanoseconds on a run queue.

    Where a kernel does not count them (CONFIG_SCHED_INFO), it is 0 for ever.
    """

    def __init__(self) -> None:
        self._seconds = _waited()
        self._asked = float("-inf")
        self._computed = 0.0

    def since_last(self, now: float, computed: float) -> float:
        """Seconds that the thread which waited longest has waited since the kernel was asked last; mostly 0, unasked.

        `computed` is how long the newest step took. No more than the steps since then can have been waited for in them:
        what waited besides did so before the first, or while there was nothing to do.
        """
        self._computed += computed
        if now - self._asked < INTERVAL:
            return 0.0
        most, self._computed, self._asked = self._computed, 0.0, now
        before, self._seconds = self._seconds, _waited()
        longest = max((waited - before.get(task, 0.0) for task, waited in self._seconds.items()), default=0.0)
        return min(most, longest)


def _waited() -> dict[str, float]:
    """Seconds of each thread from its beginning."""
    waited = {}
    try:
        for task in os.listdir(_TASKS):
            waited[task] = int((_TASKS / task / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        # A thread that ends meanwhile, or a system without this file.
        return waited
    return waited
