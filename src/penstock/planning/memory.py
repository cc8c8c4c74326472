"""Where the memory of each device goes, counted from the model's shape."""

from math import inf

import msgspec

from penstock.planning.estimates import Workload
from penstock.planning.latency import Deployment
from penstock.planning.wire import ACTIVATION_BYTES

# What is left to the driver, the runtime and fragments of memory.
OVERHEAD_BYTES = 2e9
# The part of a device's memory that engines take by default.
USED_PART = 0.9


class Memory(msgspec.Struct, frozen=True):
    """Bytes of one device, but for `weights_bytes` and `kv_bytes_per_token`, which are of all together.

    Attributes:
        weights_bytes: of the model.
        kv_bytes_per_token: that a token keeps while no window is full.
        sequence_bytes: that a sequence keeps whatever its length, as recurrent layers do.
        device_bytes: of each device, and `usable_bytes` what an engine takes of it.
        device_weights_bytes, activation_bytes, overhead_bytes: what else is in it.
        cache_bytes: what is left for keys and values; below zero, the model does not fit.
        context: tokens of each sequence of `max_concurrency`, which is how many of them fit.
    """

    weights_bytes: int
    kv_bytes_per_token: int
    sequence_bytes: int
    device_bytes: int
    usable_bytes: int
    device_weights_bytes: int
    activation_bytes: int
    overhead_bytes: int
    cache_bytes: int
    context: int
    max_concurrency: int

    @property
    def fits(self) -> bool:
        """Whether a sequence of that context can be served."""
        return self.max_concurrency > 0


def memory_of(deployment: Deployment, context: int, step_tokens: int = 2048) -> Memory:
    """The memory of a deployment whose steps have up to `step_tokens` tokens, for sequences of `context` tokens."""
    shape, kept = deployment.shape, deployment.cache.bytes
    usable = USED_PART * deployment.device.memory
    # Of the fullest stage: some have a layer more, and one has the head.
    layers = deployment.stage_part
    head = deployment.head.bytes * shape.head_parameters
    experts = deployment.weights.bytes * shape.expert_parameters * layers / deployment.split
    heads = head * (2 if deployment.stages == 1 and not shape.tied else 1)
    weights = (deployment.shared_bytes * layers + heads + deployment.table_bytes) / deployment.sharing + experts
    # The residual stream twice, and the widest layer between; logits of a step's rows in 32 bits.
    widest = max(_width(deployment, layer.mlp.parameters, layer.mlp.chosen) for layer in shape.layers)
    activations = step_tokens * ACTIVATION_BYTES * (2 * shape.hidden + widest) + 256 * 4 * shape.vocabulary
    overhead = OVERHEAD_BYTES / deployment.device.parts
    left = usable - weights - activations - overhead
    one = deployment.cache_bytes(context) * layers
    return Memory(
        weights_bytes=round(deployment.weight_bytes),
        kv_bytes_per_token=round(shape.kept_values(1) * kept),
        sequence_bytes=round(deployment.state_bytes * deployment.sharing),
        device_bytes=round(deployment.device.memory),
        usable_bytes=round(usable),
        device_weights_bytes=round(weights),
        activation_bytes=round(activations),
        overhead_bytes=round(overhead),
        cache_bytes=round(left),
        context=context,
        max_concurrency=max(0, int(left / one)) * deployment.groups if left > 0 and one > 0 else 0,
    )


def places_of(deployment: Deployment, memory: Memory, workload: Workload) -> float:
    """Requests that run at a time where each has half of its output in the mean: a pool is shared as sequences grow."""
    one = deployment.cache_bytes(workload.middle_context) * deployment.stage_part
    return memory.cache_bytes / one * deployment.groups if one else inf


def _width(deployment: Deployment, parameters: int, chosen: int) -> float:
    """About how many numbers a token has between the projections of an MLP, on one device."""
    hidden = deployment.shape.hidden
    return parameters / hidden / deployment.sharing + chosen * hidden
