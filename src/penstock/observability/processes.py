"""What processes take of the machine."""

import os

import psutil

from penstock.observability.stats import ProcessFigures


class ProcessProbe:
    """Looks at processes by their ids."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def own(self) -> ProcessFigures:
        """What this process takes of the machine."""
        return self.look(os.getpid())

    def look(self, pid: int | None) -> ProcessFigures:
        """What a process takes; of one that has ended, or of none, nothing is known."""
        if pid is None:
            return ProcessFigures(None, None)
        try:
            process = self._known.get(pid) or psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                figures = ProcessFigures(process.memory_info().rss, times.user + times.system)
        except psutil.Error:
            self._known.pop(pid, None)
            return ProcessFigures(None, None)
        self._known[pid] = process
        return figures
