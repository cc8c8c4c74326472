"""Own devices, in whole replicas, against an API, by how many requests there are in a month."""

from math import ceil

import msgspec

from penstock.core.errors import ConfigurationError


class Volume(msgspec.Struct, frozen=True):
    """What own replicas and an API cost at any number of requests a month.

    Attributes:
        replica_month, operations_month: dollars a month: of a replica's devices; of those who operate all of them.
        replica_requests: that a replica serves in a month, at `utilisation` of what it could serve at `concurrency`.
        request_tokens: input and output of a request.
        api_request: dollars for a request at the API.
        first: requests a month at which own replicas first cost no more; None: at none.
        first_faster, first_slower: the same at the likely ends of a replica's throughput.
        always: from this number on, they cost less whatever the number; None: there is none.
        least_part: of a further replica's requests, from which it costs less than the API does; above 1: never.
    """

    replica_month: float
    operations_month: float
    replica_requests: float
    utilisation: float
    concurrency: int
    request_tokens: float
    api_request: float
    first: float | None
    first_faster: float | None
    first_slower: float | None
    always: float | None
    least_part: float

    def replicas(self, requests: float) -> int:
        """How many replicas a number of requests a month takes; at least one."""
        return max(1, ceil(requests / self.replica_requests))

    def own(self, requests: float) -> float:
        """Dollars a month of own replicas and of those who operate them."""
        return self.operations_month + self.replicas(requests) * self.replica_month

    def api(self, requests: float) -> float:
        """Dollars a month at the API."""
        return requests * self.api_request


class Replica(msgspec.Struct, frozen=True):
    """One of the replicas that requests are served on; fields as those of `Volume`.

    `slower`, `faster`: throughputs that are likely, as parts of the estimate.
    """

    month: float
    requests: float
    utilisation: float
    concurrency: int
    slower: float
    faster: float


def volume_of(replica: Replica, operations_month: float, api_request: float, request_tokens: float) -> Volume:
    """Where own replicas and an API cost the same. Raises ConfigurationError for an API without a price.

    With n replicas, the API's cost reaches theirs at v = (operations + n x month) / request, which they can serve if
    v <= n x requests. So there is an n only where a full replica costs less than its requests do at the API.
    """
    if api_request <= 0:
        raise ConfigurationError("An API that costs nothing is never dearer; give its price.")
    always = None
    saved = replica.requests * api_request - replica.month
    if saved > 0:
        # Behind this number of full replicas, one more that has nothing to do yet does not make them dearer.
        full = ceil((operations_month + replica.month) / saved - 1e-9)
        always = (operations_month + full * replica.month) / api_request
    return Volume(
        replica_month=replica.month,
        operations_month=operations_month,
        replica_requests=replica.requests,
        utilisation=replica.utilisation,
        concurrency=replica.concurrency,
        request_tokens=request_tokens,
        api_request=api_request,
        first=_first(replica, operations_month, api_request),
        first_faster=_first(replica, operations_month, api_request, replica.faster),
        first_slower=_first(replica, operations_month, api_request, replica.slower),
        always=always,
        least_part=replica.month / (replica.requests * api_request),
    )


def _first(replica: Replica, operations_month: float, api_request: float, speed: float = 1.0) -> float | None:
    """Requests a month at which replicas of `speed` times the throughput first cost no more than an API."""
    saved = replica.requests * speed * api_request - replica.month
    if saved <= 0:
        return None
    least = max(1, ceil(operations_month / saved - 1e-9))
    return (operations_month + least * replica.month) / api_request
