"""A fleet in simulated time whose number of replicas changes: they start, end, and may die.

What decides sees what a gateway would: what came, what waits, and which replicas there are. Requests for which there is
no replica wait for the first; those of a replica that dies are computed again elsewhere.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf

import msgspec

from penstock.core.request import Request
from penstock.routing.autoscaling import Counted, Moment
from penstock.routing.holdings import Holdings
from penstock.routing.loads import Sent
from penstock.routing.policies import Policy
from penstock.routing.router import Router
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica, Served
from penstock.simulation.sources import Source


class Watched(Moment, frozen=True):
    """What is seen, with what other programs look at.

    Attributes:
        busy: seconds that replicas of now have computed.
    """

    busy: float = 0.0


# Says how many replicas there are to be.
Decide = Callable[[Watched], int]


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas begin, and fail.

    Attributes:
        first: replicas that there are at the beginning.
        start_seconds: until one that is started can be asked; of each start in turn, the last one from then on.
        every: seconds between decisions.
        deaths: times at which a replica dies: that with the most requests.
    """

    first: int = 1
    start_seconds: tuple[float, ...] = (10.0,)
    every: float = 5.0
    deaths: tuple[float, ...] = ()


class Fate(msgspec.Struct):
    """What became of a request, over all replicas that computed it.

    Attributes:
        arrived, first, last: in seconds; when it came, and its first and last token did.
        output: its tokens.
    """

    arrived: float
    output: int
    first: float = inf
    last: float = inf

    def within(self, ttft: float, tpot: float) -> bool:
        """Whether it was answered within targets."""
        each = (self.last - self.first) / max(1, self.output - 1) if self.last < inf else inf
        return self.first - self.arrived <= ttft and (each <= tpot or self.output == 1)


def reversals(changes: Sequence[tuple[float, int]]) -> list[float]:
    """When a number, told with times in ascending order, changed its direction."""
    steps = [(at, count > before) for (_, before), (at, count) in pairwise(changes) if count != before]
    return [at for (_, up), (at, now) in pairwise(steps) if up != now]


class PlayedScaled(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        fates: of all requests, as they came.
        replica_seconds: of all replicas, from the decision to start one to its end.
        changes: how many there were to be, each time that this changed.
        seconds: from the beginning to the last answer.
    """

    fates: Sequence[Fate]
    replica_seconds: float
    changes: Sequence[tuple[float, int]]
    seconds: float

    def attainment(self, ttft: float, tpot: float) -> float:
        """Part of the requests that were answered within targets."""
        return sum(each.within(ttft, tpot) for each in self.fates) / len(self.fates)

    @property
    def reversals(self) -> list[float]:
        """When the number changed its direction."""
        return reversals(self.changes)

    @property
    def most_reversals(self) -> int:
        """The most of them within an hour."""
        times = self.reversals
        return max((sum(at <= other < at + 3600.0 for other in times) for at in times), default=0)


class _Own(msgspec.Struct):
    """A replica that there is, and what it computes: requests by number, with what is noted of them."""

    replica: Replica
    since: float
    ending: bool = False
    computing: dict[int, tuple[Request, Fate, Served, Sent]] = msgspec.field(default_factory=dict)


class _Scaled:
    def __init__(self, make: Callable[[int], Replica], policy: Policy, ground: Ground) -> None:
        self._make, self._ground = make, ground
        sample = make(0)
        self.speed = sample.speed
        self._router = Router(policy, [], [], Holdings(0))
        self._own: dict[int, _Own] = {}
        self._number = 0
        self._starting: list[float] = []
        self._begun: list[float] = []
        self._held: list[tuple[Request, Fate]] = []
        self._coming: list[tuple[float, int]] = []
        self._starts = 0
        self.fates: list[Fate] = []
        self.seconds = self._spent = 0.0
        self._counted = Counted()
        self.changes: list[tuple[float, int]] = []
        for _ in range(ground.first):
            self._add(0.0, 0.0)

    def _add(self, asked: float, now: float) -> None:
        """A replica can be asked from now on, that was started before."""
        place, replica = self._number, self._make(self._number)
        self._number += 1
        self._router.add(str(place), replica.speed)
        self._own[place] = _Own(replica, asked)
        held, self._held = self._held, []
        for request, fate in held:
            self._send(now, request, fate)

    def take(self, arrival: Arrival) -> None:
        request, tokens = arrival.request, len(arrival.request.prompt_token_ids)
        fate = Fate(arrival.at, request.sampling.max_tokens or 1)
        self.fates.append(fate)
        counted = self._counted
        self._counted = msgspec.structs.replace(
            counted,
            requests=counted.requests + 1,
            prompt=counted.prompt + tokens,
            context=counted.context + tokens,
        )
        self._send(arrival.at, request, fate)

    def _send(self, now: float, request: Request, fate: Fate) -> None:
        open_ = [place for place, own in self._own.items() if not own.ending]
        if not open_:
            self._held.append((request, fate))
            return
        choice, sent = self._router.send(len(request.prompt_token_ids), candidates=open_)
        own = self._own[choice.replica]
        before = own.replica.ends
        served = own.replica.take(now, request)
        own.computing[request.request_id] = request, fate, served, sent
        if own.replica.ends != before:
            heappush(self._coming, (own.replica.ends, choice.replica))

    def next_end(self) -> float:
        """When the next replica ends a step; those of replicas that are gone, or have another end now, are left out."""
        while self._coming:
            ends, place = self._coming[0]
            if place in self._own and self._own[place].replica.ends == ends:
                return ends
            heappop(self._coming)
        return inf

    def finish(self) -> None:
        ends, place = heappop(self._coming)
        own = self._own[place]
        finished = own.replica.finish()
        self.seconds = max(self.seconds, ends)
        for number in finished.answering:
            _, fate, served, sent = own.computing[number]
            fate.first = min(fate.first, served.first)
            self._router.loads.answering(sent)
        for each in finished.ended:
            _, fate, served, sent = own.computing.pop(each.request_id)
            fate.first, fate.last = min(fate.first, served.first), served.last
            self._router.over(sent, served.output_tokens)
            counted = self._counted
            self._counted = msgspec.structs.replace(
                counted, outputs=counted.outputs + 1, output=counted.output + fate.output
            )
        if own.ending and not own.computing:
            self._remove(place, ends)
        elif own.replica.ends < inf:
            heappush(self._coming, (own.replica.ends, place))

    def _remove(self, place: int, now: float) -> None:
        self._spent += now - self._own.pop(place).since

    def next_start(self) -> float:
        return self._starting[0] if self._starting else inf

    def started(self) -> None:
        now = heappop(self._starting)
        self._add(heappop(self._begun), now)

    def dies(self, now: float) -> None:
        """The fullest replica is gone; its requests are computed again."""
        places = [place for place, own in self._own.items() if not own.ending]
        if not places:
            return
        place = max(places, key=lambda each: len(self._own[each].computing))
        lost = list(self._own[place].computing.values())
        self._remove(place, now)
        for request, fate, _, sent in lost:
            self._router.loads.over(sent)
            self._send(now, request, fate)

    def moment(self, now: float) -> Watched:
        """What a gateway would tell."""
        open_ = [place for place, own in self._own.items() if not own.ending]
        held = sum(len(request.prompt_token_ids) for request, _ in self._held)
        return Watched(
            at=now,
            hour=int(now // 3600) % 24,
            ready=len(open_),
            starting=len(self._starting),
            speed=self.speed,
            counted=self._counted,
            waiting=held + sum(self._router.loads.uncached[place] for place in open_),
            held=len(self._held),
            running=sum(len(own.computing) for own in self._own.values()),
            busy=sum(self._own[place].replica.busy for place in open_),
        )

    def scale(self, now: float, count: int) -> None:
        """From now on another number of replicas is wanted."""
        open_ = [place for place, own in self._own.items() if not own.ending]
        have = len(open_) + len(self._starting)
        if not self.changes or self.changes[-1][1] != count:
            self.changes.append((now, count))
        for _ in range(count - have):
            delays = self._ground.start_seconds
            heappush(self._starting, now + delays[min(self._starts, len(delays) - 1)])
            heappush(self._begun, now)
            self._starts += 1
        for _ in range(have - count):
            if self._starting:
                # The one that would be the last.
                self._starting.remove(max(self._starting))
                self._spent += now - max(self._begun)
                self._begun.remove(max(self._begun))
                heapify(self._starting)
                heapify(self._begun)
                continue
            place = min(open_, key=lambda each: len(self._own[each].computing))
            open_.remove(place)
            self._own[place].ending = True
            if not self._own[place].computing:
                self._remove(place, now)

    def played(self) -> PlayedScaled:
        end = self.seconds
        spent = self._spent + sum(max(0.0, end - own.since) for own in self._own.values())
        spent += sum(max(0.0, end - begun) for begun in self._begun)
        return PlayedScaled(self.fates, spent, self.changes, end)

    @property
    def idle(self) -> bool:
        """Whether nothing is computed, and no request waits."""
        return not self._held and not any(own.computing for own in self._own.values())


def play_scaled(
    make: Callable[[int], Replica], source: Source, decide: Decide, policy: Policy, ground: Ground
) -> PlayedScaled:
    """Serve the requests of a source by a number of replicas that is decided anew again and again.

    `make` makes a replica with a number. Raises RequestError where a request can never be served.
    """
    fleet = _Scaled(make, policy, ground)
    deaths = sorted(ground.deaths, reverse=True)
    decision = 0.0
    while source.due < inf or not fleet.idle:
        ends, starts, dies = fleet.next_end(), fleet.next_start(), deaths[-1] if deaths else inf
        now = min(source.due, ends, starts, dies, decision)
        if now == decision:
            fleet.scale(now, decide(fleet.moment(now)))
            decision += ground.every
        elif now == dies:
            fleet.dies(deaths.pop())
        elif now == starts:
            fleet.started()
        elif now == ends:
            fleet.finish()
        else:
            fleet.take(source.take())
    return fleet.played()
