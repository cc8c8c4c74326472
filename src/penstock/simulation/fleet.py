"""Several replicas in simulated time, and which of them each request goes to."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf

import msgspec

from penstock.core.request import Request
from penstock.simulation.replica import Figures, Replica, Served
from penstock.simulation.sources import Ended, Source

# Which replica a request goes to: from its number, and the requests of each replica that have not ended.
Router = Callable[[int, Sequence[int]], int]


def round_robin(number: int, loads: Sequence[int]) -> int:
    """Request 0 goes to the first replica, request 1 to the second, and so on, again from the first."""
    return number % len(loads)


def least_loaded(number: int, loads: Sequence[int]) -> int:
    """One with the fewest requests; of several, the first behind the one whose turn it would be."""
    least = min(loads)
    turn = number % len(loads)
    try:
        return loads.index(least, turn)
    except ValueError:
        return loads.index(least)


ROUTERS: dict[str, Router] = {"round-robin": round_robin, "least-loaded": least_loaded}


class Played(msgspec.Struct):
    """A run of a fleet.

    Attributes:
        requests: in the order in which they came.
        figures: of all replicas together; the most of a replica is that of the fullest.
    """

    requests: list[Served]
    figures: Figures


class _Fleet:
    """Replicas, and when each has something new to decide."""

    def __init__(self, replicas: Sequence[Replica], router: Router) -> None:
        self.served: list[Served] = []
        self._replicas, self._router = replicas, router
        self._loads = [replica.load for replica in replicas]
        # An entry is of no use where a request has come to its replica since.
        self._coming: list[tuple[float, int]] = []

    def take(self, at: float, request: Request) -> None:
        """A request comes, once all that ends before it has ended."""
        number = self._router(len(self.served), self._loads)
        replica = self._replicas[number]
        before = replica.ends
        self.served.append(replica.take(at, request))
        self._loads[number] = replica.load
        if replica.ends != before:
            heappush(self._coming, (replica.ends, number))

    def finish_first(self, before: float) -> tuple[float, Sequence[Ended]] | None:
        """Play what ends first, where that is before a time: when it ended, and the requests that ended with it."""
        while self._coming and self._coming[0][0] < before:
            ends, number = heappop(self._coming)
            replica = self._replicas[number]
            if replica.ends != ends:
                continue
            ended = replica.finish()
            self._loads[number] = replica.load
            if replica.ends < inf:
                heappush(self._coming, (replica.ends, number))
            return ends, ended
        return None

    def played(self) -> Played:
        """The run, when nothing is left."""
        return Played(self.served, together([replica.figures for replica in self._replicas]))


def play_fleet(replicas: Sequence[Replica], source: Source, router: Router = round_robin) -> Played:
    """Serve the requests of a source, whose outputs are as long as their `max_tokens` say.

    Raises RequestError where one can never be served.
    """
    fleet = _Fleet(replicas, router)
    with _no_search_for_cycles():
        while True:
            due = source.due
            while (ended := fleet.finish_first(due)) is not None:
                if ended[1]:
                    source.ended(*ended)
                    due = source.due
            if due == inf:
                return fleet.played()
            fleet.take(*source.take())


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """What is played leaves no objects that hold each other, and looking for them takes up to a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def together(each: Iterable[Figures]) -> Figures:
    """The figures of several replicas as one."""
    total = Figures()
    for figures in each:
        total.steps += figures.steps
        total.busy += figures.busy
        total.most_waiting = max(total.most_waiting, figures.most_waiting)
        total.most_blocks = max(total.most_blocks, figures.most_blocks)
        total.preemptions += figures.preemptions
        total.gaps += figures.gaps
    return total
