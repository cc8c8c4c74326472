"""Processes that a signal has stopped, as SIGSTOP does: the kernel tells it, and silence need not be waited for."""

from collections.abc import Callable, Iterable

import psutil

# Seen stopped at that number of looks in a row, a process counts as stopped. Looks are half a second apart, so that a
# tool which stops a process for a moment, to take a picture of it, costs no restart.
MOST_STOPPED = 4


class Stops:
    """Counts at how many looks in a row processes have been stopped.

    It counts looks and not the time between them: where the process that looks is stopped with the others, and goes on
    with them, it has not looked meanwhile.
    """

    def __init__(self, stopped: Callable[[int], bool]) -> None:
        """`stopped` says of a process, by its id, whether it is stopped now."""
        self._stopped = stopped
        self._looks: dict[int, int] = {}

    def look(self, processes: Iterable[int]) -> int | None:
        """Look at these; the first that counts as stopped. What is not looked at begins anew."""
        self._looks = {each: self._looks.get(each, 0) + 1 for each in processes if self._stopped(each)}
        return next((each for each, looks in self._looks.items() if looks >= MOST_STOPPED), None)


def stopped_by_signal(process: int) -> bool:
    """Whether a process is in state T; one that a debugger holds (t), or that has ended, is not."""
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
