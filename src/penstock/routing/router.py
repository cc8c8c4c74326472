"""Keeps what a policy looks at, and follows each request from its choice to its end."""

from collections.abc import Sequence

import msgspec

from penstock.routing.ask import Ask, Choice
from penstock.routing.holdings import Holdings
from penstock.routing.keys import Keys
from penstock.routing.loads import Loads, Sent
from penstock.routing.policies import Fleet, Policy
from penstock.routing.speed import Speed

# Of each answer in the mean of their lengths.
_PART = 0.02


class Router:
    """Sends requests to replicas that all serve the same model.

    Args:
        names, speeds: of replicas, each in its place.
        holdings: what they have in their caches, as far as it is known.
        first: the number of the first request. Routers side by side that have others draw otherwise.

    Attributes:
        policy: how they are chosen.
        output: tokens of an answer, in the mean over the last ones.
    """

    def __init__(
        self, policy: Policy, names: Sequence[str], speeds: Sequence[Speed], holdings: Holdings, first: int = 0
    ) -> None:
        self.policy = policy
        self._names, self._speeds = list(names), list(speeds)
        self._handicaps = [0.0] * len(names)
        self._fleet = Fleet(self._names, Loads(len(names)), self._speeds, self._handicaps)
        self._holdings = holdings
        self._sent = first
        self.output = 0.0

    @property
    def loads(self) -> Loads:
        """What was sent and is not over."""
        return self._fleet.loads

    @property
    def speeds(self) -> Sequence[Speed]:
        """How fast replicas are, by their places."""
        return self._speeds

    def add(self, name: str, speed: Speed, handicap: float = 0.0) -> None:
        """There is one more replica, in the next place."""
        self._names.append(name)
        self._speeds.append(speed)
        self._handicaps.append(handicap)
        self.loads.add()

    def replace(self, replica: int, name: str, speed: Speed, handicap: float = 0.0) -> None:
        """Another one is in the place of a replica that is gone."""
        self._names[replica], self._speeds[replica], self._handicaps[replica] = name, speed, handicap

    def measured(self, replica: int, speed: Speed) -> None:
        """How fast a replica is now."""
        self._speeds[replica] = speed

    def send(
        self,
        tokens: int,
        keys: Keys | Sequence[Keys] = (),
        session: str | None = None,
        candidates: Sequence[int] | None = None,
        *,
        brought: bool = False,
    ) -> tuple[Choice, Sent]:
        """Choose a replica for a prompt, of the candidates, and count it there; see `Loads` for what follows.

        Where replicas name blocks in several ways, there are `keys` for each. Where it is `brought`, the prompt was
        computed, and comes to whichever is chosen.
        """
        ask = Ask(self._sent, tokens, session, round(self.output))
        self._sent += 1
        places = candidates or range(len(self._names))
        hits = dict.fromkeys(places, max(0, tokens - 1)) if brought else self.hits(tokens, keys)
        choice = self.policy.choose(ask, places, self._fleet, hits)
        if hits:
            # Whatever the policy looks at, what is there need not be computed.
            choice = msgspec.structs.replace(choice, hit=hits.get(choice.replica, 0))
        return choice, self.loads.sent(choice.replica, tokens, choice.hit)

    def sent_to(self, choice: Choice, tokens: int) -> Sent:
        """Count a prompt at a replica that was chosen otherwise."""
        return self.loads.sent(choice.replica, tokens, choice.hit)

    def hits(self, tokens: int, keys: Keys | Sequence[Keys]) -> dict[int, int]:
        """Tokens of a prompt that each replica has in its cache, as far as is known."""
        hits: dict[int, int] = {}
        keys = (keys,) if isinstance(keys, Keys) else keys
        named = frozenset().union(*(each.places for each in keys if each.places is not None))
        for each in keys:
            found = self._holdings.hits(each.keys) if each.keys else {}
            for place, blocks in found.items():
                if place in each.places if each.places is not None else place not in named:
                    # The last token is always computed.
                    hits[place] = max(hits.get(place, 0), min(tokens - 1, blocks * each.tokens))
        return hits

    def queue(self, replica: int) -> float:
        """Seconds until a replica has computed the prompts that it has, as far as its speed is known."""
        return self.loads.uncached[replica] / self._speeds[replica].prefill

    def over(self, sent: Sent, output: int) -> None:
        """A request has ended, in whatever way, with that many tokens of an answer."""
        self.loads.over(sent)
        if output:
            self.output += (output - self.output) * (_PART if self.output else 1.0)
