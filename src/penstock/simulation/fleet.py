"""Several replicas in simulated time, and which of them each request goes to."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf

import msgspec

from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.keys import NO_KEYS, keys_of, token_root
from penstock.routing.loads import Sent
from penstock.routing.policies import Policy, RoundRobin
from penstock.routing.router import Router
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Figures, Replica, Served
from penstock.simulation.sources import Ended, Source

# Keys that a router remembers.
_MOST_BLOCKS = 1_000_000
ROUND_ROBIN = RoundRobin()


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

    def __init__(self, replicas: Sequence[Replica], policy: Policy) -> None:
        self.served: list[Served] = []
        self._replicas = replicas
        holdings = Holdings(_MOST_BLOCKS)
        self._feeds: list[Feed] | None = None
        if policy.looks_at_prefixes and replicas[0].tells_events:
            self._feeds = [Feed(holdings, place) for place in range(len(replicas))]
        names = [str(place) for place in range(len(replicas))]
        self._router = Router(policy, names, [replica.speed for replica in replicas], holdings)
        self._block = replicas[0].block_size
        self._sent: dict[int, tuple[Sent, Served]] = {}
        # An entry is of no use where a request has come to its replica since.
        self._coming: list[tuple[float, int]] = []

    def take(self, arrival: Arrival) -> None:
        """A request comes, once all that ends before it has ended."""
        at, request, session = arrival
        prompt, keys = request.prompt_token_ids, NO_KEYS
        if self._feeds is not None:
            keys = keys_of(prompt, self._block, token_root("", request.standing.cache_salt.encode()))
        choice, sent = self._router.send(len(prompt), keys, session)
        replica = self._replicas[choice.replica]
        before = replica.ends
        served = replica.take(at, request)
        self.served.append(served)
        self._sent[request.request_id] = sent, served
        if replica.ends != before:
            heappush(self._coming, (replica.ends, choice.replica))

    def finish_first(self, before: float) -> tuple[float, Sequence[Ended]] | None:
        """Play what ends first, where that is before a time: when it ended, and the requests that ended with it."""
        while self._coming and self._coming[0][0] < before:
            ends, place = heappop(self._coming)
            replica = self._replicas[place]
            if replica.ends != ends:
                continue
            finished = replica.finish()
            for number in finished.answering:
                self._router.loads.answering(self._sent[number][0])
            for each in finished.ended:
                sent, served = self._sent.pop(each.request_id)
                self._router.over(sent, served.output_tokens)
            if self._feeds is not None:
                self._feeds[place].take(replica.events())
            if replica.ends < inf:
                heappush(self._coming, (replica.ends, place))
            return ends, finished.ended
        return None

    def played(self) -> Played:
        """The run, when nothing is left."""
        return Played(self.served, together([replica.figures for replica in self._replicas]))


def play_fleet(replicas: Sequence[Replica], source: Source, policy: Policy = ROUND_ROBIN) -> Played:
    """Serve the requests of a source, whose outputs are as long as their `max_tokens` say.

    Raises RequestError where one can never be served.
    """
    fleet = _Fleet(replicas, policy)
    with _no_search_for_cycles():
        while True:
            due = source.due
            while (ended := fleet.finish_first(due)) is not None:
                if ended[1]:
                    source.ended(*ended)
                    due = source.due
            if due == inf:
                return fleet.played()
            fleet.take(source.take())


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
        total.disk_hit_tokens += figures.disk_hit_tokens
        total.disk_written += figures.disk_written
        total.disk_dropped += figures.disk_dropped
        total.gaps += figures.gaps
    return total
