"""When requests are sent: by a clock that waits for no answer, or when others have ended."""

import random
from collections.abc import Iterator

import msgspec

from penstock.core.errors import ConfigurationError


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """`concurrency` conversations at a time. Each is due when another has ended: load follows the server's speed."""

    concurrency: int


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Conversations come at random times and do not wait for others, as users do.

    Attributes:
        rate: conversations a second in the mean.
        burstiness: shape of the Gamma distribution of the gaps, whose mean is 1 / rate: 1 is a Poisson process, less
            comes in bursts, more is more even.
    """

    rate: float
    burstiness: float = 1.0


class Replay(msgspec.Struct, frozen=True, tag="replay"):
    """Conversations come at the times of a trace, each multiplied with `time_scale`."""

    time_scale: float = 1.0


Arrivals = Closed | Open | Replay


def arrival_times(arrivals: Open, seed: int) -> Iterator[float]:
    """Seconds from the beginning, without an end; the same for the same seed."""
    # The seed is a text since all its bits count then; the same number draws lengths elsewhere.
    draw, time = random.Random(f"arrivals {seed}"), 0.0
    while True:
        time += draw.gammavariate(arrivals.burstiness, 1 / (arrivals.rate * arrivals.burstiness))
        yield time


def check_arrivals(arrivals: Arrivals) -> None:
    """Raise ConfigurationError where a number makes no sense."""
    match arrivals:
        case Closed(concurrency) if concurrency < 1:
            raise ConfigurationError(f"--concurrency {concurrency} is no number of requests at a time; give 1 or more.")
        case Open(rate, _) if not 0 < rate <= 1e6:
            raise ConfigurationError(f"--rate {rate:g} is no number of requests a second; give one above 0.")
        case Open(_, burstiness) if not 1e-3 <= burstiness <= 1e6:
            raise ConfigurationError(
                f"--burstiness {burstiness:g} is no shape of the gaps; 1 is a Poisson process, 0.5 comes in bursts."
            )
        case Replay(scale) if not 0 < scale <= 1e6:
            raise ConfigurationError(f"--time-scale {scale:g} is no factor; 0.5 replays a trace twice as fast.")
