"""Ways to choose a replica. Each is a function of what is asked, and of what is known of those who could take it."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import ceil
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.routing.ask import Ask, Choice
from penstock.routing.loads import Loads
from penstock.routing.speed import Speed

_BITS = 2**64 - 1


class Fleet(NamedTuple):
    """What is known of replicas, each in its place.

    Attributes:
        names: by which sessions are spread, so that they stay where they are when others come and go.
        handicaps: seconds by which a replica has to be better to be chosen: since it costs more, or is far away.
    """

    names: Sequence[str]
    loads: Loads
    speeds: Sequence[Speed]
    handicaps: Sequence[float]


class Policy(Protocol):
    """Chooses one of the candidates, which are places of replicas in ascending order.

    Attributes:
        looks_at_prefixes: whether it wants to know which candidates have how many of the prompt's tokens in the cache.
    """

    looks_at_prefixes: ClassVar[bool]

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """Where the request goes. `hits` are tokens; who has none may be missing."""


class RoundRobin(msgspec.Struct, frozen=True):
    """Each request goes to the next replica."""

    looks_at_prefixes: ClassVar[bool] = False

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """See `Policy`."""
        return Choice(candidates[ask.number % len(candidates)], "its turn")


class LeastLoaded(msgspec.Struct, frozen=True):
    """One with the fewest requests; of several, the first behind the one whose turn it would be."""

    looks_at_prefixes: ClassVar[bool] = False

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """See `Policy`."""
        requests = fleet.loads.requests
        if len(candidates) < len(requests):
            requests = [requests[place] for place in candidates]
        least, turn = min(requests), ask.number % len(requests)
        try:
            found = requests.index(least, turn)
        except ValueError:
            found = requests.index(least)
        return Choice(candidates[found], "the fewest requests")


class PowerOfTwo(msgspec.Struct, frozen=True):
    """Of two drawn ones, the one with fewer requests (Mitzenmacher, 2001), so that routers that know little of one
    another do not all choose the same."""

    looks_at_prefixes: ClassVar[bool] = False

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """See `Policy`."""
        one, other = two_of(ask.number, candidates)
        requests = fleet.loads.requests
        return Choice(other if requests[other] < requests[one] else one, "the fewer requests of two drawn replicas")


class SessionAffinity(msgspec.Struct, frozen=True):
    """A session stays on its replica, unless that has more than its share: consistent hashing with bounded loads
    (Mirrokni et al., SODA 2018), over the order of replicas that each session has of its own (Thaler and Ravishankar,
    1998). A request of no session goes where the fewest are.

    Attributes:
        bound: most requests of a replica, as a multiple of the mean.
    """

    looks_at_prefixes: ClassVar[bool] = False
    bound: float = 1.25

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """See `Policy`."""
        if ask.session is None:
            return LeastLoaded().choose(ask, candidates, fleet, hits)
        requests, session = fleet.loads.requests, ask.session
        most = ceil(self.bound * (sum(requests[place] for place in candidates) + 1) / len(candidates))
        first, *others = sorted(candidates, key=lambda place: _weight(session, fleet.names[place]), reverse=True)
        if requests[first] < most:
            return Choice(first, "its session's replica")
        place = next(place for place in others if requests[place] < most)
        return Choice(place, f"its session's next replica, since {fleet.names[first]} has more than its share")


class LongestPrefix(msgspec.Struct, frozen=True):
    """The replica that has most of the prompt in its cache. Where loads differ too much, or no replica has any of it,
    the one with the fewest requests.

    Attributes:
        more, times: loads differ too much where the most requests of a replica are more than the fewest by this
            number, and than this multiple of them.
    """

    looks_at_prefixes: ClassVar[bool] = True
    more: int = 32
    times: float = 1.5

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """See `Policy`."""
        requests = fleet.loads.requests
        loads = [requests[place] for place in candidates]
        if max(loads) - min(loads) > self.more and max(loads) > self.times * min(loads):
            return msgspec.structs.replace(
                LeastLoaded().choose(ask, candidates, fleet, hits), reason="the fewest requests, since loads differ"
            )
        longest = max((hits.get(place, 0) for place in candidates), default=0)
        having = [place for place in candidates if longest and hits.get(place, 0) == longest]
        chosen = LeastLoaded().choose(ask, having or candidates, fleet, hits)
        reason = f"{longest:,} tokens of its prompt are there" if longest else chosen.reason
        return Choice(chosen.replica, reason, longest)


class Estimated(msgspec.Struct, frozen=True):
    """The replica where it costs all requests together the fewest seconds, as far as they can be estimated.

    Its first token comes once the replica has computed what it has to compute of prompts, this one's included. To
    compute this prompt keeps those waiting who are being answered there, and its answer makes their steps longer. Of
    those whose estimates differ by little, two are drawn, and the one with fewer requests is taken.

    Attributes:
        others: by which to multiply the seconds that it costs others.
        near: estimates differ by little where they differ by less than this part.
    """

    looks_at_prefixes: ClassVar[bool] = True
    others: float = 0.2
    near: float = 0.05

    def choose(self, ask: Ask, candidates: Sequence[int], fleet: Fleet, hits: Mapping[int, int]) -> Choice:
        """See `Policy`."""
        costs = [self.seconds(ask, place, fleet, hits.get(place, 0)) + fleet.handicaps[place] for place in candidates]
        least = min(costs)
        close = [place for place, cost in zip(candidates, costs, strict=True) if cost <= least * (1 + self.near)]
        chosen = close[0]
        if len(close) > 1:
            one, other = two_of(ask.number, close)
            requests = fleet.loads.requests
            chosen = other if requests[other] < requests[one] else one
        hit = hits.get(chosen, 0)
        return Choice(chosen, f"the least estimated cost, {least:.3f} s, {hit:,} tokens of its prompt being there", hit)

    def seconds(self, ask: Ask, place: int, fleet: Fleet, hit: int) -> float:
        """To its first token, and those that it costs others."""
        loads, speed = fleet.loads, fleet.speeds[place]
        own = max(0, ask.tokens - hit) / speed.prefill
        answering = loads.requests[place] - loads.reading[place]
        first = loads.uncached[place] / speed.prefill + own
        # Each step of the answer is longer by what the other rows take, and makes theirs longer by as much.
        longer = ask.output * (speed.row * (1 + answering) + speed.token * (ask.tokens + loads.context[place]))
        return first + speed.step(answering, loads.context[place]) + self.others * (own * answering + longer)


POLICIES: dict[str, Callable[[], Policy]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "session": SessionAffinity,
    "prefix": LongestPrefix,
    "estimated": Estimated,
}


def policy_of(name: str) -> Policy:
    """The one of that name. Raises ConfigurationError where there is none."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ConfigurationError(f"There is no routing policy {name!r}; there are {', '.join(POLICIES)}.") from None


def two_of(number: int, candidates: Sequence[int]) -> tuple[int, int]:
    """Two different ones, or twice the only one, drawn by a request's number."""
    count = len(candidates)
    draw = _mixed(number)
    one = draw % count
    if count == 1:
        return candidates[0], candidates[0]
    other = (draw >> 32) % (count - 1)
    return candidates[one], candidates[other + (other >= one)]


def _mixed(number: int) -> int:
    """64 bits that look drawn at random (SplitMix64: Steele, Lea, Flood, OOPSLA 2014)."""
    bits = (number + 1) * 0x9E3779B97F4A7C15 & _BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _BITS
    return bits ^ bits >> 31


def _weight(session: str, name: str) -> bytes:
    return blake2b(f"{len(session)} {session}{name}".encode(), digest_size=8).digest()
