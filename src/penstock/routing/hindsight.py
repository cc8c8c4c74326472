"""How many replicas would have been enough for what came: a queue of work, played again with each number.

Prompts wait for one another, and all replicas serve their queue together. What outputs take of replicas is spread over
the time in which they are written, so that it only leaves less to prompts. The work that waits follows Lindley's
recursion (The theory of queues with a single server, 1952, section 2): what waited before, and what came, less what was
computed meanwhile, and never less than nothing. So bursts count by how long they last, and nothing is assumed of them.
"""

from collections.abc import Sequence
from math import ceil

import msgspec


class Came(msgspec.Struct, frozen=True, gc=False):
    """What came between two moments.

    Attributes:
        at: the second of them, in seconds on any clock.
        seconds: between them, more than 0.
        requests: how many.
        prompts, outputs: seconds of a replica that they take from others, for their prompts and for their outputs.
    """

    at: float
    seconds: float
    requests: int
    prompts: float
    outputs: float

    @property
    def work(self) -> float:
        """Seconds of a replica, altogether."""
        return self.prompts + self.outputs


def rate_of(came: Sequence[Came]) -> float:
    """Replicas that are busy all the time with what came, in the mean."""
    seconds = sum(each.seconds for each in came)
    return sum(each.work for each in came) / seconds if seconds else 0.0


def late_part(came: Sequence[Came], replicas: int, most: float) -> float:
    """The part of requests whose prompts wait longer than `most` seconds with a number of replicas."""
    seconds, requests = sum(each.seconds for each in came), sum(each.requests for each in came)
    free = replicas - (sum(each.outputs for each in came) / seconds if seconds else 0.0)
    if not requests:
        return 0.0
    if free <= 0:
        return 1.0
    waiting, late = 0.0, 0
    for each in came:
        # Requests of an interval come all over it, and none waits for its own prompt.
        own = each.prompts / each.requests if each.requests else 0.0
        halfway = max(0.0, waiting + (each.prompts - own - free * each.seconds) / 2)
        if halfway > most * free:
            late += each.requests
        waiting = max(0.0, waiting + each.prompts - free * each.seconds)
    return late / requests


def enough(came: Sequence[Came], most: float, missed: float) -> int:
    """The fewest replicas with which at most a part `missed` of the requests would have waited longer than `most`.

    0 where none came.
    """
    if not any(each.requests for each in came):
        return 0
    fewest = max(1, ceil(rate_of(came)))
    # With these, no interval leaves anything to the next.
    largest = fewest + ceil(max(each.prompts / each.seconds for each in came))
    while fewest < largest:
        middle = (fewest + largest) // 2
        if late_part(came, middle, most) <= missed:
            largest = middle
        else:
            fewest = middle + 1
    return fewest


def rates(came: Sequence[Came], seconds: float) -> list[float]:
    """As `rate_of`, of one part of the time after the other, each at least so long; the newest first."""
    found, part, passed = list[float](), list[Came](), 0.0
    for each in reversed(came):
        part.append(each)
        passed += each.seconds
        if passed >= seconds:
            found.append(rate_of(part))
            part, passed = [], 0.0
    return found


def rise(came: Sequence[Came], seconds: float, by: float) -> float:
    """By how much busy replicas become more in a second, where more than ever comes; 0 where not.

    That is the case where the newest part of the time, that many seconds long, has `by` times the work of the busiest
    part before it.
    """
    newest, *before = rates(came, seconds) or [0.0]
    busiest = max(before, default=0.0)
    return (newest - before[0]) / seconds if busiest and newest > by * busiest else 0.0
