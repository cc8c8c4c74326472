"""Which ranks have stopped without an end: a rule without a clock of its own."""

from collections.abc import Callable, Sequence

LOOK_SECONDS = 0.5
# After that number of looks without a sign of life, a rank counts as stopped.
MOST_SILENT = 20
# The same while ranks load: a process begins with imports, which take their turns on a processor for several ranks.
MOST_SILENT_LOADING = 60


class Silence:
    """Counts for how many looks ranks have been silent.

    It counts looks and not the time between them, so that a pause of this process, or of the machine, is one look.
    """

    def __init__(self, ranks: Sequence[int], beats: Callable[[int], int], most: int = MOST_SILENT) -> None:
        """`beats` says how often a rank has shown that it is not stopped; it may be silent for `most` looks."""
        self._beats = beats
        self._most = most
        self._seen = {rank: beats(rank) for rank in ranks}
        self._silent = dict.fromkeys(ranks, 0)

    def look(self) -> int | None:
        """Look at all of them; the first that has been silent for too long."""
        for rank, seen in self._seen.items():
            now = self._beats(rank)
            self._silent[rank] = self._silent[rank] + 1 if now == seen else 0
            self._seen[rank] = now
        return next((rank for rank, looks in self._silent.items() if looks >= self._most), None)
