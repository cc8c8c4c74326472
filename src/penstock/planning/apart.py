"""Prefill and decode on devices of their own (DistServe, Zhong et al., 2024; Splitwise, Patel et al., 2024).

A prompt is computed on one kind of replica, its keys and values are sent, and its output is decoded on the other kind.
So no decode waits for a prompt, and prompts wait only for one another.
"""

from collections.abc import Iterator
from math import inf

import msgspec

from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload
from penstock.planning.halving import largest_that
from penstock.planning.latency import Deployment, decode_step, prefill_step
from penstock.planning.memory import memory_of

# Part of their time that replicas for prompts compute at most: behind it, waiting grows fast.
MOST_BUSY = 0.9
# No replica has more devices to a layer.
_MOST_SPLIT = 16


class Apart(msgspec.Struct, frozen=True):
    """Replicas of both kinds, and what is told of them when they serve as many requests as service levels allow.

    Attributes:
        ttft, tpot: seconds, means; the first has the way of keys and values in it.
        rows: sequences at a time on a replica that decodes.
        rate: requests a second of all.
        limit: what keeps them from more.
    """

    prefill: Deployment
    decode: Deployment
    prefills: int
    decodes: int
    ttft: float
    tpot: float
    rows: int
    rate: float
    limit: str


class _Prompts(msgspec.Struct, frozen=True):
    """A replica for prompts: seconds that one computes, and that pass beside until the first token is there."""

    deployment: Deployment
    seconds: float
    beside: float


class _Decodes(msgspec.Struct, frozen=True):
    """A replica that decodes: the most sequences at a time, and seconds of a step of them."""

    deployment: Deployment
    rows: int
    tpot: float


def best_apart(
    deployment: Deployment, efficiency: Efficiency, workload: Workload, count: int, levels: tuple[float, float]
) -> Apart | None:
    """The way to share out `count` devices that serves the most requests within the levels of TTFT and TPOT.

    `levels` are in seconds. None where no way serves any.
    """
    if not deployment.device.link or workload.output_tokens < 2:
        return None
    ttft, tpot = levels
    sizes = [size for size in range(1, min(count - 1, _MOST_SPLIT) + 1) if size & (size - 1) == 0]
    alike = [msgspec.structs.replace(deployment, split=size, stages=1, groups=1) for size in sizes]
    prompts = [found for one in alike if (found := _prompts(one, efficiency, workload, ttft)) is not None]
    decodes = [other for one in alike if (other := _decodes(one, efficiency, workload, tpot)) is not None]
    ways = [
        (_most(first, second, numbers, workload, ttft), first, second, numbers)
        for first in prompts
        for second in decodes
        for numbers in _shared_out(count, first.deployment.split, second.deployment.split)
    ]
    if not ways:
        return None
    rate, first, second, numbers = max(ways, key=lambda way: way[0])
    return _told(first, second, numbers, efficiency, workload, rate)


def _shared_out(count: int, prefill: int, decode: int) -> Iterator[tuple[int, int]]:
    """Replicas of both kinds that together have all devices."""
    for prefills in range(1, count // prefill + 1):
        left = count - prefills * prefill
        if left and left % decode == 0:
            yield prefills, left // decode


def _prompts(deployment: Deployment, efficiency: Efficiency, workload: Workload, ttft: float) -> _Prompts | None:
    """None where the model does not fit, or a prompt alone takes longer than its first token may."""
    if not memory_of(deployment, round(workload.input_tokens)).fits:
        return None
    seconds = prefill_step(deployment, efficiency, workload.computed_tokens, workload.cached_tokens).seconds
    sent = deployment.cache_bytes(workload.input_tokens) / (deployment.device.link * efficiency.link)
    beside = sent + efficiency.message_seconds + efficiency.first_layer_seconds * deployment.shape.num_layers
    return _Prompts(deployment, seconds, beside) if seconds + beside <= ttft else None


def _decodes(deployment: Deployment, efficiency: Efficiency, workload: Workload, tpot: float) -> _Decodes | None:
    """None where no sequence fits, or one alone takes longer for a token than it may."""

    def step(rows: int) -> float:
        return decode_step(deployment, efficiency, float(rows), workload.middle_context).seconds

    most = memory_of(deployment, round(workload.input_tokens + workload.output_tokens)).max_concurrency
    rows = largest_that(lambda rows: step(rows) <= tpot, most)
    return _Decodes(deployment, rows, step(rows)) if rows else None


def _most(prompts: _Prompts, decodes: _Decodes, numbers: tuple[int, int], workload: Workload, ttft: float) -> float:
    """Requests a second: those that decodes finish, or prompts that begin without waiting longer than they may."""
    # The mean wait of equal works that come at random is half of seconds x busy / (1 - busy).
    left = ttft - prompts.seconds - prompts.beside
    busy = MOST_BUSY if left == inf else min(MOST_BUSY, 2 * left / (prompts.seconds + 2 * left))
    finished = numbers[1] * decodes.rows / (decodes.tpot * (workload.output_tokens - 1))
    return min(numbers[0] * busy / prompts.seconds, finished)


def _told(
    prompts: _Prompts,
    decodes: _Decodes,
    numbers: tuple[int, int],
    efficiency: Efficiency,
    workload: Workload,
    rate: float,
) -> Apart:
    """What is told of the rate, at which there may be fewer sequences at a time than there could be."""
    context, further = workload.middle_context, workload.output_tokens - 1
    low, high = 0.0, float(decodes.rows)
    for _ in range(30):
        rows = (low + high) / 2
        step = decode_step(decodes.deployment, efficiency, max(1.0, rows), context).seconds
        low, high = (rows, high) if numbers[1] * rows / (step * further) < rate else (low, rows)
    step_time = decode_step(decodes.deployment, efficiency, max(1.0, high), context)
    busy = rate * prompts.seconds / numbers[0]
    full = numbers[1] * decodes.rows / (decodes.tpot * further) <= rate * 1.001
    return Apart(
        prefill=prompts.deployment,
        decode=decodes.deployment,
        prefills=numbers[0],
        decodes=numbers[1],
        ttft=prompts.seconds * (1 + busy / (1 - busy) / 2) + prompts.beside,
        tpot=step_time.seconds,
        rows=max(1, round(high)),
        rate=rate,
        limit=f"decoding is full, {step_time.limit}" if full else f"prompts take {busy:.0%} of their devices' time",
    )
