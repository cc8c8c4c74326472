"""Several replicas in simulated time, and which of them each request goes to."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf

import msgspec

from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Figures, Replica, Served

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


def play_fleet(replicas: Sequence[Replica], arrivals: Iterable[Arrival], router: Router = round_robin) -> Played:
    """Serve requests that come in ascending order of time, whose outputs are as long as their `max_tokens` say.

    Raises RequestError where one can never be served.
    """
    served: list[Served] = []
    loads = [replica.load for replica in replicas]
    # When replicas have something new to decide. An entry is of no use where a request has come to its replica since.
    coming: list[tuple[float, int]] = []

    def finish_before(at: float) -> None:
        while coming and coming[0][0] < at:
            ends, number = heappop(coming)
            replica = replicas[number]
            if replica.ends == ends:
                replica.finish()
                loads[number] = replica.load
                if replica.ends < inf:
                    heappush(coming, (replica.ends, number))

    for arrival in arrivals:
        finish_before(arrival.at)
        number = router(len(served), loads)
        replica = replicas[number]
        before = replica.ends
        served.append(replica.take(arrival.at, arrival.request))
        loads[number] = replica.load
        if replica.ends != before:
            heappush(coming, (replica.ends, number))
    finish_before(inf)
    return Played(served, together([replica.figures for replica in replicas]))


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
