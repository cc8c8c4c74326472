"""What each setting would change: fewer bits, prefixes that are cached, drafts; one at a time, at the same requests."""

from collections.abc import Iterator

import msgspec

from penstock.planning.asked import Asked
from penstock.planning.drafts import expected_tokens
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Estimate, Workload, estimate
from penstock.planning.formats import FORMATS
from penstock.planning.latency import Deployment, Rows, step_time
from penstock.planning.memory import memory_of

# Drafts of the sequence's own text cost nothing; how many are right depends on the text.
_DEPTH, _ACCEPTANCE = 3, 0.6
# Formats with more bits than these are worth replacing.
_WEIGHTS, _CACHES = ("fp8", "int8", "int4"), ("fp8", "int8")


class Lever(msgspec.Struct, frozen=True):
    """One change to a replica.

    Attributes:
        what: the change.
        ttft_ms, tpot_ms, output_tokens_per_second: at the same requests at a time.
        gain: of tokens a second.
        max_concurrency: requests of the asked length that fit then.
    """

    what: str
    ttft_ms: float
    tpot_ms: float
    output_tokens_per_second: float
    gain: float
    max_concurrency: int


def levers_of(asked: Asked, efficiency: Efficiency, workload: Workload) -> list[Lever]:
    """The changes that a replica with a workload has left, the one with the largest gain first.

    A device that has no rate of its own for a format of weights multiplies it in 16 bits, so that it saves memory and
    reading alone.
    """
    deployment = asked.deployment
    plain = estimate(deployment, efficiency, workload)
    context = round(workload.input_tokens + workload.output_tokens)
    found = []
    for what, changed, other in _changes(deployment, workload):
        told = estimate(changed, efficiency, other)
        fits = memory_of(changed, context).max_concurrency
        rate = told.output_tokens_per_second
        gain = rate / plain.output_tokens_per_second - 1
        found.append(Lever(what, told.ttft * 1e3, told.tpot * 1e3, rate, gain, fits))
    if workload.output_tokens > 1:
        found.append(_drafts(deployment, efficiency, workload, plain))
    return sorted(found, key=lambda lever: -lever.gain)


def _changes(deployment: Deployment, workload: Workload) -> Iterator[tuple[str, Deployment, Workload]]:
    for name in _WEIGHTS:
        kept = FORMATS[name]
        if kept.bits < 0.75 * deployment.weights.bits:
            changed = msgspec.structs.replace(deployment, weights=kept, attention_weights=None)
            yield f"weights in {name}", changed, workload
    for name in _CACHES:
        if FORMATS[name].bits < 0.75 * deployment.cache.bits:
            yield f"keys and values in {name}", msgspec.structs.replace(deployment, cache=FORMATS[name]), workload
    half = workload.input_tokens / 2
    if workload.cached_tokens < half:
        yield "half of each prompt cached", deployment, msgspec.structs.replace(workload, cached_tokens=half)


def _drafts(deployment: Deployment, efficiency: Efficiency, workload: Workload, plain: Estimate) -> Lever:
    """Drafts by the sequence's own text, which cost nothing but their verification."""
    rows = max(1.0, workload.concurrency / deployment.stages)
    verified = step_time(deployment, efficiency, Rows(rows, workload.middle_context, drafts=float(_DEPTH))).seconds
    step = verified / expected_tokens(_ACCEPTANCE, _DEPTH)
    tpot = plain.tpot - plain.step.seconds + step
    output = max(1.0, workload.output_tokens)
    rate = workload.concurrency * output / (plain.ttft + tpot * (output - 1))
    return Lever(
        what=f"{_DEPTH} drafts a step, {_ACCEPTANCE:.0%} of them right",
        ttft_ms=plain.ttft * 1e3,
        tpot_ms=tpot * 1e3,
        output_tokens_per_second=rate,
        gain=rate / plain.output_tokens_per_second - 1,
        max_concurrency=memory_of(deployment, round(workload.input_tokens + workload.output_tokens)).max_concurrency,
    )
