"""Ways to lay a model over a machine's devices: which fit, which keep what was asked, and what their tokens cost."""

from math import inf

import msgspec

from penstock.planning.asked import Asked
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Estimate, estimate
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of
from penstock.planning.money import per_million

# No replica has more parts of a layer, or stages.
MOST_PARTS = 64
# Behind that many requests at a time on a replica, none is looked for.
MOST_REQUESTS = 4096


class Layout(msgspec.Struct, frozen=True):
    """One way: each layer over `split` devices, layers in `stages` parts one behind the other, and copies of that.

    Attributes:
        concurrency: most requests at a time on a replica that keep what was asked, and fit; 0: none does.
        ttft_ms, tpot_ms: with that number.
        output_tokens_per_second: of all devices then.
        dollars_million: for a million output tokens; None where a device's price is not known.
        best: whether it yields the most tokens of those that keep what was asked.
        why: what is against it, or for it.
    """

    split: int
    stages: int
    replicas: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    output_tokens_per_second: float
    dollars_million: float | None
    best: bool
    why: str

    def __str__(self) -> str:
        parts = [f"{self.replicas} x" if self.replicas > 1 else "", f"TP {self.split}" if self.split > 1 else ""]
        parts.append(f"PP {self.stages}" if self.stages > 1 else "")
        return " ".join(part for part in parts if part) or "1 device"


class _Tried(msgspec.Struct, frozen=True):
    deployment: Deployment
    replicas: int
    concurrency: int
    told: Estimate | None
    why: str

    @property
    def rate(self) -> float:
        return 0.0 if self.told is None else self.told.output_tokens_per_second * self.replicas


def layouts_of(asked: Asked, efficiency: Efficiency) -> list[Layout]:
    """All layouts of the machine's devices, the one with the most tokens a second first; none of a single device."""
    count, link = asked.machine.count, asked.machine.device.link
    if count == 1:
        return []
    sizes = [size for size in range(1, min(count, MOST_PARTS) + 1) if count % size == 0]
    layers = asked.deployment.shape.num_layers
    ways = [
        (split, stages)
        for split in sizes
        for stages in sizes
        if count % (split * stages) == 0 and stages <= layers and (link or split * stages == 1)
    ]
    tried = [_try(asked, efficiency, split, stages) for split, stages in ways]
    tried.sort(key=lambda each: -each.rate)
    best = tried[0] if tried and tried[0].rate else None
    return [_layout(asked, each, best) for each in tried]


def largest_within(
    asked: Asked, deployment: Deployment, efficiency: Efficiency, most: int
) -> tuple[int, Estimate | None]:
    """The most requests at a time, up to `most`, that keep what was asked, and what is told of them; 0: none does.

    More at a time are never faster, so that it is found by halving.
    """

    def told(size: int) -> Estimate:
        return estimate(deployment, efficiency, msgspec.structs.replace(asked.workload, concurrency=float(size)))

    def keeps(size: int) -> bool:
        return keeps_asked(asked, told(size))

    most = min(most, MOST_REQUESTS)
    if most < 1 or not keeps(1):
        return 0, None
    if keeps(most):
        return most, told(most)
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low, told(low)


def keeps_asked(asked: Asked, told: Estimate) -> bool:
    """Whether means are within the service levels, where there are some."""
    return told.ttft <= (asked.ttft or inf) and told.tpot <= (asked.tpot or inf)


def _try(asked: Asked, efficiency: Efficiency, split: int, stages: int) -> _Tried:
    deployment = msgspec.structs.replace(asked.deployment, split=split, stages=stages)
    replicas = asked.machine.count // (split * stages)
    memory = memory_of(deployment, round(asked.workload.input_tokens + asked.workload.output_tokens))
    if not memory.fits:
        weights, usable = memory.device_weights_bytes / 1e9, memory.usable_bytes / 1e9
        why = f"does not fit: {weights:.1f} GB of weights on each device, which has {usable:.1f} to use"
        return _Tried(deployment, replicas, 0, None, why)
    concurrency, told = largest_within(asked, deployment, efficiency, memory.max_concurrency)
    if told is None:
        alone = estimate(deployment, efficiency, msgspec.structs.replace(asked.workload, concurrency=1.0))
        return _Tried(deployment, replicas, 0, None, _too_slow(asked, alone))
    return _Tried(deployment, replicas, concurrency, told, told.step.limit)


def _too_slow(asked: Asked, alone: Estimate) -> str:
    """Which service level one request alone misses."""
    if asked.ttft is not None and alone.ttft > asked.ttft:
        return f"too slow: one request alone has its first token after {alone.ttft * 1e3:,.0f} ms"
    return f"too slow: one request alone takes {alone.tpot * 1e3:,.1f} ms a token"


def _layout(asked: Asked, tried: _Tried, best: _Tried | None) -> Layout:
    told, rate = tried.told, tried.rate
    dollars = None
    if asked.device_hour is not None and rate:
        dollars = per_million(asked.device_hour, asked.machine.count, rate)
    why = tried.why
    if told is not None and best is not None:
        why = f"most of a step is {why}"
        why = f"the most tokens; {why}" if tried is best else f"{1 - rate / best.rate:.0%} fewer tokens; {why}"
    return Layout(
        split=tried.deployment.split,
        stages=tried.deployment.stages,
        replicas=tried.replicas,
        concurrency=tried.concurrency,
        ttft_ms=0.0 if told is None else told.ttft * 1e3,
        tpot_ms=0.0 if told is None else told.tpot * 1e3,
        output_tokens_per_second=rate,
        dollars_million=dollars,
        best=tried is best,
        why=why,
    )
