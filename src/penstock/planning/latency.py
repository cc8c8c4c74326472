"""How long a step takes, from its rows: the model's work over what a device reaches of its limits.

The form is a roofline (Williams et al., 2009) for the weights, whose bytes and products overlap, and sums of what does
not: cache, attention, messages between devices, and fixed costs of layers, steps and rows.
"""

import msgspec

from penstock.planning.efficiency import Efficiency
from penstock.planning.formats import FORMATS, Format
from penstock.planning.hardware import Device
from penstock.planning.shape import ModelShape

ACTIVATION_BYTES = 2.0
# States of recurrent layers add up over a sequence, and are kept in 32 bits whatever the cache is kept in.
STATE_BYTES = 4.0


class Deployment(msgspec.Struct, frozen=True):
    """A model on devices.

    Attributes:
        split: devices over which each layer is split (tensor parallel).
        weights, cache: formats of the layers' weights, and of keys and values.
        attention_weights: format of attention's weights where another than the experts'.
        head: format of embedding and head.
        stages: parts of the layers, each on other devices (pipeline parallel).
    """

    shape: ModelShape
    device: Device
    split: int = 1
    weights: Format = FORMATS["bfloat16"]
    cache: Format = FORMATS["bfloat16"]
    attention_weights: Format | None = None
    head: Format = FORMATS["bfloat16"]
    stages: int = 1

    @property
    def devices(self) -> int:
        """How many devices a replica has."""
        return self.split * self.stages

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, on all devices together."""
        shape = self.shape
        attention = (self.attention_weights or self.weights).bytes * shape.attention_parameters
        rest = self.weights.bytes * (shape.mlp_parameters + shape.expert_parameters)
        return attention + rest + self.head.bytes * shape.head_parameters * (1 if shape.tied else 2)

    def touched_bytes(self, tokens: float, *, least: bool = False) -> float:
        """Bytes of weights that one device reads for a number of tokens, which reach only some experts.

        `least`: where all choose the same ones.
        """
        shape = self.shape
        values = self.weights.bytes * shape.mlp_parameters
        values += (self.attention_weights or self.weights).bytes * shape.attention_parameters
        for layer in shape.layers:
            touched = float(layer.mlp.chosen) if least else layer.mlp.touched(tokens)
            experts = touched * layer.mlp.expert_parameters
            values += layer.count * experts * self.weights.bytes
        return (values + self.head.bytes * shape.head_parameters) / self.split

    def cache_bytes(self, context: float) -> float:
        """That one device keeps of a sequence of `context` tokens."""
        return self.shape.kept_values(context, self.split) * self.cache.bytes + self.state_bytes

    @property
    def state_bytes(self) -> float:
        """Bytes that one device keeps of a sequence, however long it is."""
        return self.shape.sequence_values * STATE_BYTES / self.split


class StepTime(msgspec.Struct, frozen=True):
    """Seconds of a step by what they go into; reading weights and multiplying overlap, the others add up."""

    reading: float
    multiplying: float
    cache: float
    attention: float
    messages: float
    fixed: float

    @property
    def seconds(self) -> float:
        """How long the whole step takes."""
        return max(self.reading, self.multiplying) + self.cache + self.attention + self.messages + self.fixed

    @property
    def limit(self) -> str:
        """What most of it goes into."""
        parts = {
            "reading weights": self.reading if self.reading >= self.multiplying else 0.0,
            "multiplying": self.multiplying if self.multiplying > self.reading else 0.0,
            "reading the cache": self.cache,
            "attention": self.attention,
            "messages between devices": self.messages,
            "fixed costs": self.fixed,
        }
        return max(parts, key=lambda part: parts[part])


def least_seconds(deployment: Deployment, tokens: float, rows: float = 1.0, context: float = 0.0) -> float:
    """What no engine is faster than for a step: moving its bytes once, or multiplying at the device's rate.

    `rows` of its tokens have logits; as many sequences have `context` tokens in the cache.
    """
    device, shape = deployment.device, deployment.shape
    active = (shape.active_parameters - shape.head_parameters) * tokens + shape.head_parameters * rows
    moved = deployment.touched_bytes(tokens, least=True)
    moved += rows * deployment.cache_bytes(context) if context else 0.0
    return max(moved / device.bandwidth, 2.0 * active / deployment.split / device.rate(deployment.weights))


class Rows(msgspec.Struct, frozen=True):
    """What a step computes.

    Attributes:
        decodes: sequences that get one token each.
        context: tokens that one of them has in the mean.
        chunks: parts of prompts, each as the tokens that are in the cache before it and those that it has.
        drafts: tokens that are verified with each decode's own.
    """

    decodes: float = 0.0
    context: float = 0.0
    chunks: tuple[tuple[float, float], ...] = ()
    drafts: float = 0.0


class MeasuredStep(msgspec.Struct, frozen=True):
    """What a step computed, and the seconds that it took."""

    rows: Rows
    seconds: float


def step_time(deployment: Deployment, efficiency: Efficiency, rows: Rows) -> StepTime:
    """How long a step takes, whose decodes are taken to have equally long contexts where layers have a window."""
    shape, device = deployment.shape, deployment.device
    tokens = rows.decodes * (1 + rows.drafts)
    logits = tokens + len(rows.chunks)
    read = rows.decodes * deployment.cache_bytes(rows.context) if rows.decodes else 0.0
    pairs = 0.0
    for start, length in rows.chunks:
        tokens += length
        read += deployment.cache_bytes(start) if start else 0.0
        for layer in shape.layers:
            pairs += layer.count * layer.attention.pair_operations * _pairs(length, start, layer.attention.window)
    reading, multiplying = _weights(deployment, efficiency, tokens, logits)
    return StepTime(
        reading=reading,
        multiplying=multiplying,
        cache=read / (device.bandwidth * efficiency.cache),
        attention=pairs / deployment.split / (device.rates["bf16"] * efficiency.attention),
        messages=_messages(deployment, efficiency, tokens) + _handing_on(deployment, efficiency, tokens),
        fixed=_fixed(shape, efficiency)
        + rows.decodes * efficiency.row_seconds
        + len(rows.chunks) * efficiency.chunk_seconds,
    )


def decode_step(deployment: Deployment, efficiency: Efficiency, rows: float, context: float) -> StepTime:
    """A step in which `rows` sequences, each with `context` tokens, get one token each."""
    return step_time(deployment, efficiency, Rows(rows, context))


def prefill_step(deployment: Deployment, efficiency: Efficiency, tokens: float, start: float = 0.0) -> StepTime:
    """A step that computes `tokens` of one prompt, behind `start` others that are in the cache."""
    return step_time(deployment, efficiency, Rows(chunks=((start, tokens),)))


def _weights(deployment: Deployment, efficiency: Efficiency, tokens: float, logits: float) -> tuple[float, float]:
    """Seconds of reading weights, and of multiplying by them."""
    shape, device, kept = deployment.shape, deployment.device, deployment.weights
    reading = deployment.touched_bytes(tokens) / (device.bandwidth * efficiency.weights[kept.kind])
    active = shape.active_parameters - shape.head_parameters
    operations = 2.0 * (active * tokens + shape.head_parameters * logits) / deployment.split
    half = efficiency.half_part * device.rate(kept) * kept.bytes / (2.0 * device.bandwidth)
    reached = efficiency.products[kept.kind] * tokens / (tokens + half)
    return reading, operations / (device.rate(kept) * reached)


def _pairs(tokens: float, start: float, window: int | None) -> float:
    """Pairs of a query and a position that it sees: each of `tokens` behind `start` sees those before it."""
    if window is None:
        return tokens * start + tokens * (tokens + 1) / 2
    growing = max(0.0, min(tokens, window - start))
    return growing * start + growing * (growing + 1) / 2 + (tokens - growing) * window


def _messages(deployment: Deployment, efficiency: Efficiency, tokens: float) -> float:
    """Two all-reduces a layer (Megatron-LM, Shoeybi et al., 2019, section 3), as a ring."""
    split = deployment.split
    if split == 1:
        return 0.0
    if not deployment.device.link:
        return float("inf")
    sent = tokens * deployment.shape.hidden * ACTIVATION_BYTES * 2 * (split - 1) / split
    each = efficiency.message_seconds + sent / (deployment.device.link * efficiency.link)
    return 2 * deployment.shape.num_layers * each


def _handing_on(deployment: Deployment, efficiency: Efficiency, tokens: float) -> float:
    """The residual stream goes from each stage to the next."""
    if deployment.stages == 1:
        return 0.0
    if not deployment.device.link:
        return float("inf")
    sent = tokens * deployment.shape.hidden * ACTIVATION_BYTES / (deployment.device.link * efficiency.link)
    return (deployment.stages - 1) * (efficiency.message_seconds + sent)


def _fixed(shape: ModelShape, efficiency: Efficiency) -> float:
    seconds = efficiency.step_seconds
    for layer in shape.layers:
        each = efficiency.layer_seconds
        each += efficiency.expert_seconds if layer.mlp.experts else 0.0
        each += efficiency.recurrent_seconds if layer.attention.sequence_values else 0.0
        seconds += layer.count * each
    return seconds
