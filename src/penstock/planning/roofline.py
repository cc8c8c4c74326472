"""A model on a device's roofline: operations for each byte that is moved, and what is reached of the limits there.

Operations are products with weights, two for each, on one device. A prompt's attention is not counted, so that points
of very long prompts reach a little more than they show. Bytes are weights and what the cache keeps.
"""

from collections.abc import Sequence

import msgspec

from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload, prompts_of
from penstock.planning.latency import Deployment, decode_step


class RooflinePoint(msgspec.Struct, frozen=True):
    """A step on one device.

    Attributes:
        phase: "prefill", a whole prompt; "decode", one token for each of `concurrency` requests.
        intensity: operations for each byte.
        reached, attainable: operations a second: that are estimated; that the device's limits allow at most.
    """

    phase: str
    concurrency: int
    intensity: float
    reached: float
    attainable: float


class Roofline(msgspec.Struct, frozen=True):
    """The limits of a device, and steps of a model below them (Williams et al., 2009).

    Attributes:
        peak: operations a second in the weights' format.
        bandwidth: bytes a second of its memory.
        ridge: operations for each byte from which multiplying takes longer than reading.
    """

    peak: float
    bandwidth: float
    ridge: float
    points: list[RooflinePoint]


def roofline_of(deployment: Deployment, efficiency: Efficiency, workload: Workload, sizes: Sequence[int]) -> Roofline:
    """Points of a workload's prompt, and of decodes with each number of requests at a time."""
    peak, bandwidth = deployment.device.rate(deployment.weights), deployment.device.bandwidth

    def point(phase: str, tokens: float, rows: float, kept: float, seconds: float) -> RooflinePoint:
        shape = deployment.shape
        operations = 2.0 * shape.products(tokens, rows) / deployment.split
        intensity = operations / (deployment.touched_bytes(tokens) + kept)
        return RooflinePoint(phase, round(rows), intensity, operations / seconds, min(peak, intensity * bandwidth))

    # A prompt in each group of devices.
    full = msgspec.structs.replace(workload, concurrency=float(deployment.groups))
    prompts = prompts_of(deployment, efficiency, full)
    computed = workload.computed_tokens * prompts.together
    kept = deployment.cache_bytes(workload.input_tokens)
    points = [point("prefill", computed, prompts.together, kept, prompts.step.seconds)]
    context = workload.middle_context
    for size in sizes:
        rows = max(1.0, size / deployment.stages)
        step = decode_step(deployment, efficiency, rows, context).seconds
        kept = rows / deployment.groups * deployment.cache_bytes(context)
        points.append(point("decode", rows, rows, kept, step))
    return Roofline(peak, bandwidth, peak / bandwidth, points)
