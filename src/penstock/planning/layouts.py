"""Ways to lay a model over a machine's devices: which fit, which keep what was asked, and what their tokens cost."""

from math import inf

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning.apart import Apart, best_apart
from penstock.planning.asked import Asked
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Estimate, estimate
from penstock.planning.halving import largest_that
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
        groups: of the `split` devices, each with requests of its own but for routed experts, which are whole.
        prefill_replicas, prefill_split: that compute prompts alone, where the others alone decode; 0 where all do both.
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
    groups: int = 1
    prefill_replicas: int = 0
    prefill_split: int = 0

    def __str__(self) -> str:
        if self.prefill_replicas:
            return (
                f"{_replicas(self.prefill_replicas, _parts(self.prefill_split))} for prompts, "
                f"{_replicas(self.replicas, _parts(self.split))} to decode"
            )
        return _replicas(self.replicas, _parts(self.split, self.stages, self.groups))


def _replicas(count: int, parts: str) -> str:
    if count == 1:
        return parts or "1 device"
    return f"{count} x {parts or '1 device'}"


def _parts(split: int, stages: int = 1, groups: int = 1) -> str:
    sharing = split // groups
    parts = [f"DP {groups}" if groups > 1 else "", f"TP {sharing}" if sharing > 1 else ""]
    parts += [f"EP {split}" if groups > 1 else "", f"PP {stages}" if stages > 1 else ""]
    return " ".join(part for part in parts if part)


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
    if count == 1 or asked.machine.device.parts > 1:
        return []
    sizes = [size for size in range(1, min(count, MOST_PARTS) + 1) if count % size == 0]
    layers = asked.deployment.shape.num_layers
    ways = [
        (split, stages, 1)
        for split in sizes
        for stages in sizes
        if count % (split * stages) == 0 and stages <= layers and (link or split * stages == 1)
    ]
    if asked.deployment.shape.routes and link:
        ways += [(split, 1, groups) for split in sizes for groups in sizes if groups > 1 and split % groups == 0]
    tried = [found for way in ways if (found := _try(asked, efficiency, *way)) is not None]
    levels = asked.ttft or inf, asked.tpot or inf
    apart = best_apart(asked.deployment, efficiency, asked.workload, count, levels)
    most = max(0.0 if apart is None else apart.rate * asked.workload.output_tokens, *(each.rate for each in tried))
    layouts = [_layout(asked, each, most) for each in tried]
    if apart is not None:
        layouts.append(_layout_apart(asked, apart, most))
    return sorted(layouts, key=lambda layout: -layout.output_tokens_per_second)


def largest_within(
    asked: Asked, deployment: Deployment, efficiency: Efficiency, most: int
) -> tuple[int, Estimate | None]:
    """The most requests at a time, up to `most`, that keep what was asked, and what is told of them; 0: none does.

    More at a time are never faster, so that it is found by halving.
    """

    def told(size: int) -> Estimate:
        return estimate(deployment, efficiency, msgspec.structs.replace(asked.workload, concurrency=float(size)))

    size = largest_that(lambda size: keeps_asked(asked, told(size)), min(most, MOST_REQUESTS))
    return size, told(size) if size else None


def keeps_asked(asked: Asked, told: Estimate) -> bool:
    """Whether means are within the service levels, where there are some."""
    return told.ttft <= (asked.ttft or inf) and told.tpot <= (asked.tpot or inf)


def _try(asked: Asked, efficiency: Efficiency, split: int, stages: int, groups: int) -> _Tried | None:
    """What one way comes to; None where the model has too few heads for it."""
    try:
        return _tried(asked, efficiency, split, stages, groups)
    except ConfigurationError:
        return None


def _tried(asked: Asked, efficiency: Efficiency, split: int, stages: int, groups: int) -> _Tried:
    deployment = msgspec.structs.replace(asked.deployment, split=split, stages=stages, groups=groups)
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


def _layout(asked: Asked, tried: _Tried, most: float) -> Layout:
    told, rate = tried.told, tried.rate
    return Layout(
        split=tried.deployment.split,
        stages=tried.deployment.stages,
        groups=tried.deployment.groups,
        replicas=tried.replicas,
        concurrency=tried.concurrency,
        ttft_ms=0.0 if told is None else told.ttft * 1e3,
        tpot_ms=0.0 if told is None else told.tpot * 1e3,
        output_tokens_per_second=rate,
        dollars_million=_dollars(asked, rate),
        best=0 < rate == most,
        why=tried.why if told is None else _beside(rate, most, f"most of a step is {tried.why}"),
    )


def _layout_apart(asked: Asked, apart: Apart, most: float) -> Layout:
    rate = apart.rate * asked.workload.output_tokens
    return Layout(
        split=apart.decode.split,
        stages=1,
        replicas=apart.decodes,
        concurrency=apart.rows,
        ttft_ms=apart.ttft * 1e3,
        tpot_ms=apart.tpot * 1e3,
        output_tokens_per_second=rate,
        dollars_million=_dollars(asked, rate),
        best=rate == most,
        why=_beside(rate, most, apart.limit),
        prefill_replicas=apart.prefills,
        prefill_split=apart.prefill.split,
    )


def _dollars(asked: Asked, rate: float) -> float | None:
    """For a million output tokens."""
    if asked.device_hour is None or not rate:
        return None
    return per_million(asked.device_hour, asked.machine.count, rate)


def _beside(rate: float, most: float, why: str) -> str:
    return f"the most tokens; {why}" if rate == most else f"{1 - rate / most:.0%} fewer tokens; {why}"
