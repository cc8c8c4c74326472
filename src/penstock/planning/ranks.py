"""Processes of one machine that compute a model together (ranks), beside the threads of one process.

A rank is planned as a device that has its part of the processor: of its memory, its bandwidth and its arithmetic. What
it costs to be several beside that is in `RankCosts`.
"""

from collections.abc import Sequence
from math import log

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.shares import head_shares
from penstock.planning.calibration import Basis, interval_of
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Estimate, Workload, estimate
from penstock.planning.latency import Deployment, MeasuredStep, step_time
from penstock.planning.memory import memory_of, places_of
from penstock.planning.rank_costs import RankCosts, RanksOf, costs_of

# The least interval that is told.
_LEAST = 0.05


def in_ranks(
    whole: Deployment, *, split: int = 1, stages: int = 1, stripes: int = 1, measured: tuple[RankCosts, ...] = ()
) -> tuple[Deployment, RankCosts]:
    """A model that one process would compute, in several that share its processor, and what that costs.

    Raises ConfigurationError where there cannot be these.
    """
    if stripes > 1 and split * stages > 1:
        raise ConfigurationError(
            "--context-parallel-size has processes with all layers each, and does not go together with "
            "--tensor-parallel-size or --pipeline-parallel-size; leave it or these out."
        )
    if split > 1:
        for layer in whole.shape.layers:
            if layer.attention.query_heads:
                head_shares(layer.attention.query_heads, layer.attention.kv_heads or 1, split)
    if stages > whole.shape.num_layers:
        raise ConfigurationError(
            f"{whole.shape.num_layers} layers cannot be in {stages} stages; give up to that number."
        )
    ranks = msgspec.structs.replace(whole, split=split, stages=stages, stripes=stripes)
    costs = costs_of(ranks_of(ranks), measured)
    return msgspec.structs.replace(ranks, device=whole.device.part(ranks.devices, costs.link)), costs


def ranks_of(deployment: Deployment) -> RanksOf:
    """What the costs of a deployment's ranks depend on."""
    shape = deployment.shape
    return RanksOf(
        split=deployment.split,
        stages=deployment.stages,
        stripes=deployment.stripes,
        hidden=shape.hidden,
        layers=shape.num_layers,
        parameters=round(shape.attention_parameters + shape.mlp_parameters),
        weights=deployment.weights.kind,
    )


def one_process(deployment: Deployment) -> Deployment:
    """The same model in one process that has all of the processor."""
    return msgspec.structs.replace(deployment, device=deployment.device.whole, split=1, stages=1, stripes=1)


def with_ranks(efficiency: Efficiency, costs: RankCosts) -> Efficiency:
    """Coefficients for ranks as well; those of one process stay."""
    return msgspec.structs.replace(efficiency, link=1.0, message_seconds=costs.message_seconds, waits=costs.waits)


def basis_of_ranks(basis: Basis, costs: RankCosts) -> Basis:
    """What estimates of ranks stand on, where those of one process stand on `basis`."""
    low, high = costs.interval
    return msgspec.structs.replace(
        basis,
        efficiency=with_ranks(basis.efficiency, costs),
        tpot=(basis.tpot[0] * low, basis.tpot[1] * high),
        ttft=(basis.ttft[0] * low, basis.ttft[1] * high),
        said=f"{basis.said}; of ranks, on {costs.said}",
    )


def measured_costs(
    ranks: Deployment, costs: RankCosts, efficiency: Efficiency, steps: Sequence[MeasuredStep], said: str
) -> RankCosts:
    """What ranks were measured to take beside what one process with these coefficients would; messages are `costs`'."""
    plain = with_ranks(efficiency, msgspec.structs.replace(costs, waits=0.0))
    told = [step_time(ranks, plain, step.rows) for step in steps]
    computed = [each.overlapped + each.cache + each.attention for each in told]
    later = sorted((step.seconds - each.seconds) / own for step, each, own in zip(steps, told, computed, strict=True))
    waits = (later[(len(later) - 1) // 2] + later[len(later) // 2]) / 2
    wrong = [
        log(step.seconds / (each.seconds + waits * own)) for step, each, own in zip(steps, told, computed, strict=True)
    ]
    return msgspec.structs.replace(
        costs, waits=waits, interval=interval_of(wrong, _LEAST), said=said, of=ranks_of(ranks)
    )


class BesideThreads(msgspec.Struct, frozen=True):
    """Ranks beside one process with as many threads, at the same requests at a time.

    Attributes:
        ttft, tpot: seconds with ranks, over those with threads.
        output: tokens a second with ranks, over those with threads; of as many requests as fit, where fewer do.
        threads_ttft_ms, threads_tpot_ms, threads_tokens_per_second: with threads.
        advice: which to take, and why.
    """

    ttft: float
    tpot: float
    output: float
    threads_ttft_ms: float
    threads_tpot_ms: float
    threads_tokens_per_second: float
    advice: str


def beside_threads(deployment: Deployment, efficiency: Efficiency, workload: Workload) -> BesideThreads | None:
    """What threads of one process would do of the same; None where the model does not fit into one, or into ranks."""
    whole = one_process(deployment)
    ranks, threads = (_told(each, efficiency, workload) for each in (deployment, whole))
    if ranks is None or threads is None:
        return None
    output = ranks.output_tokens_per_second / threads.output_tokens_per_second
    count = deployment.devices
    if output < 1:
        advice = (
            f"Take one process: {count} ranks on the same cores make {1 - output:.0%} fewer tokens, since they wait "
            "for one another. Ranks are for more machines than one."
        )
    else:
        advice = f"Take {count} ranks: they make {output - 1:.0%} more tokens than one process with all threads."
    return BesideThreads(
        ttft=ranks.ttft / threads.ttft,
        tpot=ranks.tpot / threads.tpot,
        output=output,
        threads_ttft_ms=threads.ttft * 1e3,
        threads_tpot_ms=threads.tpot * 1e3,
        threads_tokens_per_second=threads.output_tokens_per_second,
        advice=advice,
    )


def _told(deployment: Deployment, efficiency: Efficiency, workload: Workload) -> Estimate | None:
    memory = memory_of(deployment, round(workload.input_tokens + workload.output_tokens))
    if not memory.fits:
        return None
    return estimate(deployment, efficiency, workload, max(1.0, places_of(deployment, memory, workload)))
