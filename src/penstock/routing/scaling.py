"""How many replicas a stream of requests needs so that it is answered in time: queueing in closed form.

A replica's step lasts `decode` seconds with one row, and each further row makes it longer by k, with what it sees. A
request takes p seconds for its prompt, and its output has O tokens. Where a replica gets `a` requests a second, prompts
take the part a·p of its time, so that a token comes each step / (1 − a·p) seconds. By Little's law, a·O of these rows
run at a time. Solved for the time of a token:

    tpot = decode / (1 − ρ), with ρ = a · (p + k·O)

So p + k·O is a request's work: the part of a replica that each of them takes, beyond which none is left for steps.
Requests wait as in a queue that all N replicas serve together, into which work flows with a mean R and a variance σ² a
second. What waits is then exponential with the mean σ² / 2(N − R), as a Brownian motion that cannot fall below zero
(Kingman, 1962). Requests are taken to come independently of each other, so that σ² / R is a request's own work; what
bursts need beyond that is known in hindsight only.
"""

from math import ceil, exp, inf

import msgspec

from penstock.routing.speed import Speed

# Of requests, the part that may miss a target because others came just before.
MISSED = 0.005
# No more of a replica is given to requests than this, whatever the targets are: chance would make it more.
MOST_USED = 0.9
_MOST_REPLICAS = 1_000_000


class Targets(msgspec.Struct, frozen=True):
    """Within how many seconds the first token is to come, and each further one; infinite where that does not matter."""

    ttft: float = inf
    tpot: float = inf

    def part(self, of: float) -> "Targets":
        """The same, stricter or laxer."""
        return Targets(self.ttft * of, self.tpot * of)


class Stream(msgspec.Struct, frozen=True):
    """Requests as they come.

    Attributes:
        rate: a second.
        prompt: tokens to be computed of a prompt, in the mean, without those in a cache.
        output: tokens of an output, in the mean.
        context: tokens that a row sees, in the mean.
    """

    rate: float
    prompt: float
    output: float
    context: float


class Answered(msgspec.Struct, frozen=True):
    """How a number of replicas answers a stream.

    Attributes:
        used: part of the replicas that requests take.
        tpot: seconds between tokens; infinite where it is too much.
        missed: part of the requests whose first token comes late because others wait before them.
    """

    used: float
    tpot: float
    missed: float


def work_of(speed: Speed, prompt: float, output: float, context: float) -> float:
    """Seconds of a replica that a request takes from others."""
    return prompt / speed.prefill + (speed.row + speed.token * context) * output


def answered(stream: Stream, speed: Speed, replicas: int, targets: Targets) -> Answered:
    """How replicas answer a stream."""
    own = work_of(speed, stream.prompt, stream.output, stream.context)
    work = stream.rate * own
    used = work / replicas if replicas else inf
    if used >= 1:
        return Answered(used, inf, 1.0)
    tpot = (speed.decode + speed.token * stream.context) / (1 - used)
    alone = stream.prompt / speed.prefill / (1 - used) + tpot
    left = targets.ttft - alone
    if left <= 0:
        # Prompts are too long for the target, which no number of replicas changes.
        left = targets.ttft / 2
    variance = work * own
    missed = used * exp(-2 * (replicas - work) * replicas * left / variance) if variance and left < inf else 0.0
    return Answered(used, tpot, missed)


def needed(stream: Stream, speed: Speed, targets: Targets, missed: float = MISSED) -> int:
    """The fewest replicas that answer a stream within targets; 0 where nothing comes.

    A target for further tokens that not even an idle replica reaches is left out.
    """
    if stream.rate <= 0:
        return 0
    idle = speed.decode + speed.token * stream.context
    most_used = min(MOST_USED, 1 - idle / targets.tpot) if idle < targets.tpot * 0.95 else MOST_USED
    work = stream.rate * work_of(speed, stream.prompt, stream.output, stream.context)
    least = max(1, ceil(work / most_used))
    for replicas in range(least, _MOST_REPLICAS):
        if answered(stream, speed, replicas, targets).missed <= missed:
            return replicas
    return _MOST_REPLICAS
