"""Several replicas in simulated time, and which of them each request goes to."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.core.request import Request
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.keys import NO_KEYS, Keys, keys_of, token_root
from penstock.routing.loads import Sent
from penstock.routing.policies import Policy, RoundRobin
from penstock.routing.router import Router
from penstock.simulation.loop import Arrival
from penstock.simulation.peer import SimulatedPeer
from penstock.simulation.replica import Figures, Replica, Served
from penstock.simulation.roles import Roles
from penstock.simulation.sources import Ended, Source

# Keys that a router remembers.
_MOST_BLOCKS = 1_000_000
ROUND_ROBIN = RoundRobin()
NO_PEERS: Mapping[int, SimulatedPeer] = MappingProxyType({})


class Played(msgspec.Struct):
    """A run of a fleet.

    Attributes:
        requests: in the order in which they came.
        handed_over, stayed: of a fleet with roles, prompts that others computed than decoded them, and that stayed.
        figures: of all replicas together; the most of a replica is that of the fullest.
    """

    requests: list[Served]
    figures: Figures
    handed_over: int = 0
    stayed: int = 0


class Handed(NamedTuple):
    """A request whose prompt one replica computes for others to go on with; `at` when it came to these."""

    arrival: Arrival
    served: Served
    at: float | None = None


class _Fleet:
    """Replicas, and when each has something new to decide."""

    def __init__(
        self, replicas: Sequence[Replica], policy: Policy, roles: Roles | None, peers: Mapping[int, SimulatedPeer]
    ) -> None:
        self.served: list[Served] = []
        self._replicas, self._roles, self._peers = replicas, roles, peers
        self._handed: dict[int, Handed] = {}
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
        tokens, keys = len(request.prompt_token_ids), self._keys(request)
        choice, sent = self._router.send(tokens, keys, session, None if self._roles is None else self._roles.decodes)
        computes = None if self._roles is None else self._roles.elsewhere(self._router, choice, tokens, keys)
        if computes is not None:
            self._router.over(sent, 0)
            choice, sent = computes, self._router.sent_to(computes, tokens)
            request = replace(request, sampling=replace(request.sampling, max_tokens=1))
        with self._noted(choice.replica) as replica:
            served = replica.take(at, request)
        if computes is not None:
            self._handed[request.request_id] = Handed(arrival, served)
        self.served.append(served)
        self._sent[request.request_id] = sent, served

    def _go_on(self, handed: Handed, at: float) -> None:
        """The prompt was computed: another replica pulls its blocks, and decodes."""
        request, served = handed.arrival.request, handed.served
        assert self._roles is not None, "prompts are handed over between roles"
        tokens, session = len(request.prompt_token_ids), handed.arrival.session
        choice, sent = self._router.send(tokens, self._keys(request), session, self._roles.decodes, brought=True)
        self._peers[choice.replica].offer(request)
        self._handed[request.request_id] = handed._replace(at=at)
        self._sent[request.request_id] = sent, served
        with self._noted(choice.replica) as replica:
            replica.go_on(at, request, served)

    def _keys(self, request: Request) -> Keys:
        if self._feeds is None:
            return NO_KEYS
        return keys_of(request.prompt_token_ids, self._block, token_root("", request.standing.cache_salt.encode()))

    @contextmanager
    def _noted(self, place: int) -> Iterator[Replica]:
        """A replica gets something to do, which may change when it has something to decide."""
        replica = self._replicas[place]
        before = replica.ends
        yield replica
        if replica.ends != before:
            heappush(self._coming, (replica.ends, place))

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
                self._measure(number, ends)
            if self._feeds is not None:
                self._feeds[place].take(replica.events())
            if replica.ends < inf:
                heappush(self._coming, (replica.ends, place))
            return ends, [each for each in finished.ended if self._has_ended(each, ends)]
        return None

    def _measure(self, number: int, now: float) -> None:
        """Of a request that was handed over, its first token came again."""
        handed = self._handed.get(number)
        if self._roles is not None and handed is not None and handed.at is not None:
            self._roles.times.measured(handed.served.prompt_tokens, now - handed.at)

    def _has_ended(self, each: Ended, now: float) -> bool:
        """A request has ended at a replica; whether it has its whole answer. Else another replica goes on with it."""
        sent, served = self._sent.pop(each.request_id)
        handed = self._handed.pop(each.request_id, None)
        going_on = handed is not None and handed.at is None and handed.arrival.request.sampling.max_tokens != 1
        self._router.over(sent, 0 if going_on else served.output_tokens)
        if handed is not None and handed.at is not None:
            self._peers[served.replica].over(each.request_id)
        if handed is not None and going_on:
            self._go_on(handed, now)
        return not going_on

    def played(self) -> Played:
        """The run, when nothing is left."""
        total = together([replica.figures for replica in self._replicas])
        if self._roles is None:
            return Played(self.served, total)
        return Played(self.served, total, self._roles.handed_over, self._roles.stayed)


def play_fleet(
    replicas: Sequence[Replica],
    source: Source,
    policy: Policy = ROUND_ROBIN,
    roles: Roles | None = None,
    peers: Mapping[int, SimulatedPeer] = NO_PEERS,
) -> Played:
    """Serve the requests of a source, whose outputs are as long as their `max_tokens` say.

    With roles, `peers` are what the replicas that decode pull from, by their places. Raises RequestError where a
    request can never be served.
    """
    fleet = _Fleet(replicas, policy, roles, peers)
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
