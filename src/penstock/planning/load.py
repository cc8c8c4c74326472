"""How many replicas a rate of requests needs, and how long requests wait for a place: queueing in closed form."""

from math import ceil, log

import msgspec

from penstock.core.errors import ConfigurationError

# Closed forms are good up to about this; near saturation waiting grows without bound, and only a simulation tells.
MOST_UTILISATION = 0.8
_QUANTILES = (0.5, 0.95, 0.99)
_MOST_REPLICAS = 1_000_000


class Load(msgspec.Struct, frozen=True):
    """A rate of requests on a number of replicas.

    Attributes:
        rate: requests a second.
        in_flight: that are served at a time in the mean, by Little's law.
        replicas, utilisation: how many there are, and what part of their places is taken.
        waiting_p50, waiting_p95, waiting_p99: seconds before a request has a place.
    """

    rate: float
    in_flight: float
    replicas: int
    utilisation: float
    waiting_p50: float
    waiting_p95: float
    waiting_p99: float


def waits(places: int, busy: float) -> float:
    """The probability that a request finds all places taken, where `busy` are in the mean (Erlang's C formula).

    The sum is taken in the form of the B formula, whose recursion cannot overflow (Jagerman, 1974).
    """
    blocked = 1.0
    for place in range(1, places + 1):
        blocked = busy * blocked / (place + busy * blocked)
    return blocked / (1 - busy / places * (1 - blocked))


def waiting(places: int, busy: float, seconds: float, part: float, variation: float = 1.0) -> float:
    """The time that a part of requests waits at most, where each takes `seconds` (Allen and Cunneen, 1990).

    `variation`: squared coefficient of variation of these seconds; 1 for exponential ones, 0 where all are alike.
    """
    if busy >= places:
        return float("inf")
    delayed = waits(places, busy)
    if delayed <= 1 - part:
        return 0.0
    free = (places - busy) / seconds
    return log(delayed / (1 - part)) / free * (1 + variation) / 2


def load_on(replicas: int, places: int, rate: float, seconds: float) -> Load:
    """A rate of requests that take `seconds` each, on replicas that serve `places` of them at a time."""
    if rate <= 0 or seconds <= 0 or places < 1:
        raise ConfigurationError(f"A rate of {rate:g} requests a second cannot be planned for; give one above zero.")
    busy = rate * seconds
    found = [waiting(replicas * places, busy, seconds, part) for part in _QUANTILES]
    return Load(rate, busy, replicas, busy / (replicas * places), *found)


def replicas_for(places: int, rate: float, seconds: float, longest_wait: float | None = None) -> Load:
    """The fewest replicas that are not fuller than `MOST_UTILISATION`, and let 99% wait no longer than that."""
    least = max(1, ceil(rate * seconds / (places * MOST_UTILISATION)))
    for replicas in range(least, _MOST_REPLICAS):
        load = load_on(replicas, places, rate, seconds)
        if longest_wait is None or load.waiting_p99 <= longest_wait:
            return load
    raise ConfigurationError(f"More than {_MOST_REPLICAS:,} replicas would be needed.")
