"""What became of each request at the gateway: where it was sent and why, for how long it waited, and how that ended."""

from collections import OrderedDict

import msgspec

from penstock.core.usage import Used
from penstock.observability.gateway_definitions import CheckResult, Lookup, Outcome, When

MOST_REMEMBERED = 4096


class Try(msgspec.Struct, gc=False):
    """A request at one replica.

    Attributes:
        replica, reason: where it was sent, and why there.
        hit: tokens of its prompt that were expected in the cache there.
        at: seconds after its arrival at which it was sent.
        others: why it was not sent to replicas that were not chosen from, by their names.
        seconds: that it was there; None while it is.
        ended: how that ended; None while it has not.
    """

    replica: str
    reason: str
    hit: int
    at: float
    others: dict[str, str] = {}
    seconds: float | None = None
    ended: str | None = None


class Cached(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the answer cache had for a request.

    Attributes:
        lookup: whether there was an answer, or none was looked for.
        why: none was looked for, or none could be had.
        age: seconds that the answer had been there.
    """

    lookup: Lookup
    why: str | None = None
    age: float | None = None


class Checked(msgspec.Struct, omit_defaults=True):
    """What a guardrail has said of a request, or of its answer.

    Attributes:
        result: the last one; "timeout" and "failure": it has said nothing.
        times, seconds: how often it was asked, and how long that took in all.
        why: it has said nothing.
    """

    guardrail: str
    when: When
    result: CheckResult
    times: int = 0
    seconds: float = 0.0
    why: str | None = None


class Way(msgspec.Struct, omit_defaults=True):
    """A request at the gateway.

    Attributes:
        id: its id here, and its client's id at replicas.
        path, tenant, client_id: what was asked, whose it is, and what its client calls it.
        created: when it came, in Unix time.
        tries: where it was sent, one after the other.
        seconds: from its arrival to its end; None while it has not ended.
        outcome: how it ended.
        checked: what guardrails have said of it.
        cached: what the answer cache had; None where its tenant lets no answer be kept.
        used, cost: what it has used, where that is counted, and what that costs, where its model has a price.
    """

    id: str
    path: str
    tenant: str = ""
    client_id: str | None = None
    created: float = 0.0
    tries: list[Try] = []
    seconds: float | None = None
    outcome: Outcome | None = None
    checked: list[Checked] = []
    cached: Cached | None = None
    used: Used | None = None
    cost: str | None = None

    def sentence(self, *, from_cache: bool, code: str) -> str:
        """How it ended, in words; `code` is the class of its error, if there was one."""
        where = " from the answer cache" if from_cache else ""
        where = f" at {self.tries[-1].replica} ({self.tries[-1].reason})" if self.tries else where
        further = f", after {len(self.tries) - 1} others" if len(self.tries) > 1 else ""
        why = f" ({code})" if code else ""
        return f"{self.path} {self.outcome}{why}{where}{further}, {self.seconds or 0.0:.3f} s"


class Ways:
    """Those of the last requests."""

    def __init__(self) -> None:
        self._ways: OrderedDict[str, Way] = OrderedDict()

    def begin(self, way: Way) -> None:
        """Remember a request that has come, in the place of the oldest where there are too many."""
        self._ways[way.id] = way
        if len(self._ways) > MOST_REMEMBERED:
            self._ways.popitem(last=False)

    def find(self, request_id: str, tenant: str) -> Way | None:
        """A tenant's request, by its id or by its client's for it; of several, the last."""
        way = self._ways.get(request_id)
        if way is None:
            mine = (
                way for way in reversed(self._ways.values()) if way.client_id == request_id and way.tenant == tenant
            )
            way = next(mine, None)
        return None if way is None or way.tenant != tenant else way

    def latest(self, tenant: str, limit: int, *, slowest: bool) -> list[Way]:
        """A tenant's requests, the newest first, or those that took longest."""
        mine = [way for way in reversed(self._ways.values()) if way.tenant == tenant]
        if slowest:
            mine.sort(key=lambda way: way.seconds or 0.0, reverse=True)
        return mine[:limit]
