"""How long a step takes, from its rows: the model's work over what a device reaches of its limits.

The form is a roofline (Williams et al., 2009) for the weights, whose bytes and products overlap, and sums of what does
not: cache, attention, messages between devices, and fixed costs of layers, steps and rows.
"""

from functools import lru_cache
from math import inf, log, sqrt

import msgspec

from penstock.core.stages import balanced, stages_of
from penstock.planning.efficiency import Efficiency
from penstock.planning.formats import FORMATS, Format
from penstock.planning.hardware import Device
from penstock.planning.shape import ModelShape
from penstock.planning.wire import DEVICES, RANKS, Sent, Wire, sent_of_contexts, sent_of_parts, sent_of_stages

# States of recurrent layers add up over a sequence, and are kept in 32 bits whatever the cache is kept in.
STATE_BYTES = 4.0
# Kernels that multiply by many experts at once work in smaller pieces, so that fewer rows fill them.
_GROUPED_HALF = 0.5


class Deployment(msgspec.Struct, frozen=True):
    """A model on devices.

    Attributes:
        split: devices over which each layer is split (tensor parallel).
        weights, cache: formats of the layers' weights, and of keys and values.
        attention_weights: format of attention's weights where another than the experts'.
        head: format of embedding and head.
        stages: parts of the layers, each on other devices (pipeline parallel).
        groups: of the `split` devices, each with requests of its own but for routed experts (data-parallel attention).
            Each expert is whole on one device then (expert parallel). 1: all devices share all requests.
        stripes: devices that each have all layers, and keep a part of every context (context parallel).
    """

    shape: ModelShape
    device: Device
    split: int = 1
    weights: Format = FORMATS["bfloat16"]
    cache: Format = FORMATS["bfloat16"]
    attention_weights: Format | None = None
    head: Format = FORMATS["bfloat16"]
    stages: int = 1
    groups: int = 1
    stripes: int = 1

    @property
    def devices(self) -> int:
        """How many devices a replica has."""
        return self.split * self.stages * self.stripes

    @property
    def sharing(self) -> int:
        """Devices that share one request's layers, but for routed experts."""
        return self.split // self.groups

    @property
    def stage_part(self) -> float:
        """Of the layers, those of a stage that has the most: ranks balance what a token is multiplied by."""
        if self.device.parts > 1:
            return _balanced_part(self.shape, self.stages)
        return -(-self.shape.num_layers // self.stages) / self.shape.num_layers

    @property
    def wire(self) -> Wire:
        """How devices, or ranks of a processor, send numbers to each other."""
        return RANKS if self.device.parts > 1 else DEVICES

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, each once."""
        shape = self.shape
        head = self.head.bytes * shape.head_parameters * (1 if shape.tied else 2)
        return self.shared_bytes + self.weights.bytes * shape.expert_parameters + head + self.table_bytes

    def touched_bytes(self, tokens: float, *, least: bool = False) -> float:
        """Bytes of weights that one device reads for a number of tokens, which reach only some experts.

        `least`: where all choose the same ones.
        """
        shape, experts = self.shape, 0.0
        for layer in shape.layers:
            touched = float(layer.mlp.chosen) if least else layer.mlp.touched(tokens)
            experts += layer.count * touched * layer.mlp.expert_parameters
        shared = self.shared_bytes + self.head.bytes * shape.head_parameters
        return shared / self.sharing + experts * self.weights.bytes / self.split

    @property
    def shared_bytes(self) -> float:
        """Bytes of all layers' weights, but for routed experts, of one group."""
        attention = (self.attention_weights or self.weights).bytes * self.shape.attention_parameters
        return attention + self.weights.bytes * self.shape.mlp_parameters

    @property
    def table_bytes(self) -> float:
        """Bytes of tables beside the embedding, which are kept as it is."""
        return self.head.bytes * self.shape.table_parameters

    def read_bytes(self, context: float) -> float:
        """That a device reads of a sequence of `context` tokens in a step that goes on with it."""
        return self.shape.read_values(context, self.sharing) * self.cache.bytes / self.stripes + self.state_bytes

    def cache_bytes(self, context: float) -> float:
        """That a device keeps of a sequence of `context` tokens that its group serves."""
        return self.shape.kept_values(context, self.sharing) * self.cache.bytes / self.stripes + self.state_bytes

    @property
    def state_bytes(self) -> float:
        """Bytes that a device keeps of a sequence that its group serves, however long it is."""
        return self.shape.sequence_values * STATE_BYTES / self.sharing


@lru_cache(maxsize=256)
def _balanced_part(shape: ModelShape, stages: int) -> float:
    """Of the layers, those of the largest stage, where the costliest has as few weights as can be (`core.stages`)."""
    costs = [
        layer.attention.parameters + layer.mlp.parameters + layer.mlp.chosen * layer.mlp.expert_parameters
        for layer in shape.layers
        for _ in range(layer.count)
    ]
    ends = balanced(costs, range(1, len(costs)), stages, shape.head_parameters)
    return max(stage.end - stage.first for stage in stages_of(ends)) / len(costs)


class StepTime(msgspec.Struct, frozen=True):
    """Seconds of a step by what they go into.

    Reading weights and multiplying by them overlap: together they take `overlapped`, to which all others add up.
    `waiting` is for the slowest of those that compute together.
    """

    reading: float
    multiplying: float
    overlapped: float
    cache: float
    attention: float
    messages: float
    fixed: float
    waiting: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the whole step takes."""
        return self.overlapped + self.cache + self.attention + self.messages + self.fixed + self.waiting

    @property
    def limit(self) -> str:
        """What most of it goes into."""
        parts = {
            "reading weights": self.overlapped if self.reading >= self.multiplying else 0.0,
            "multiplying": self.overlapped if self.multiplying > self.reading else 0.0,
            "reading the cache": self.cache,
            "attention": self.attention,
            "messages between devices": self.messages,
            "fixed costs": self.fixed,
            "waiting for the slowest": self.waiting,
        }
        return max(parts, key=lambda part: parts[part])


def least_seconds(deployment: Deployment, tokens: float, rows: float = 1.0, context: float = 0.0) -> float:
    """What no engine is faster than for a step: moving its bytes once, or multiplying at the device's rate.

    `rows` of its tokens have logits; as many sequences have `context` tokens in the cache.
    """
    device, shape = deployment.device, deployment.shape
    active = shape.products(tokens, rows)
    moved = deployment.touched_bytes(tokens, least=True)
    moved += rows / deployment.groups * deployment.read_bytes(context) if context else 0.0
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
    # Decodes are spread over all groups; of prompts, there may be fewer than groups.
    busy = min(deployment.groups, max(1, len(rows.chunks)))
    spread = tokens / deployment.groups
    read = rows.decodes / deployment.groups * deployment.read_bytes(rows.context) if rows.decodes else 0.0
    pairs = 0.0
    for start, length in rows.chunks:
        tokens += length
        spread += length / busy
        read += deployment.read_bytes(start) / busy if start else 0.0
        for layer in shape.layers:
            # Of late layers, a prompt needs its last token alone.
            first, count = (start + length - 1.0, 1.0) if layer.late else (start, length)
            pairs += layer.count * layer.attention.pair_operations * _pairs(count, first, layer.attention.window)
    # Those that have parts of contexts share out rows, all but those of logits.
    stripes = deployment.stripes
    reading, multiplying = _weights(deployment, efficiency, tokens / stripes, spread / stripes, logits)
    overlapped, cache = efficiency.together(reading, multiplying), read / (device.bandwidth * efficiency.cache)
    rate = device.rates["bf16"] * efficiency.attention
    attention = pairs / busy / deployment.sharing / stripes / rate
    return StepTime(
        reading=reading,
        multiplying=multiplying,
        overlapped=overlapped,
        cache=cache,
        attention=attention,
        messages=_messages(deployment, efficiency, tokens, spread, logits),
        fixed=_fixed(shape, efficiency)
        + rows.decodes / deployment.groups * efficiency.row_seconds
        + len(rows.chunks) / busy * efficiency.chunk_seconds,
        waiting=efficiency.waits * (overlapped + cache + attention) if deployment.devices > 1 else 0.0,
    )


def decode_step(deployment: Deployment, efficiency: Efficiency, rows: float, context: float) -> StepTime:
    """A step in which `rows` sequences, each with `context` tokens, get one token each."""
    return step_time(deployment, efficiency, Rows(rows, context))


def prefill_step(deployment: Deployment, efficiency: Efficiency, tokens: float, start: float = 0.0) -> StepTime:
    """A step that computes `tokens` of one prompt, behind `start` others that are in the cache."""
    return step_time(deployment, efficiency, Rows(chunks=((start, tokens),)))


def _weights(
    deployment: Deployment, efficiency: Efficiency, tokens: float, spread: float, logits: float
) -> tuple[float, float]:
    """Seconds of reading weights, and of multiplying by them; `spread` of the tokens are those of the fullest group.

    Rows of a routed expert are those of the tokens that chose it.
    """
    shape, device, kept = deployment.shape, deployment.device, deployment.weights
    reading = deployment.touched_bytes(tokens) / (device.bandwidth * efficiency.weights[kept.kind])
    half = efficiency.half_part * device.rate(kept) * kept.bytes / (2.0 * device.bandwidth)
    # Products on a device, as many more as would take the time that few rows take.
    products = shape.products(spread, logits * spread / tokens) - shape.routed_parameters * spread
    products *= (1.0 + half / spread) / deployment.sharing
    for layer in shape.layers:
        if layer.mlp.experts:
            rows = tokens * layer.mlp.chosen / layer.mlp.touched(tokens)
            chosen = layer.count * layer.mlp.chosen * layer.mlp.expert_parameters
            products += (
                chosen
                * tokens
                * (1.0 + _GROUPED_HALF * half / rows)
                / deployment.split
                * _uneven(deployment, tokens * layer.mlp.chosen)
            )
    return reading, 2.0 * products / (device.rate(kept) * efficiency.products[kept.kind])


def _uneven(deployment: Deployment, choices: float) -> float:
    """Of devices with whole experts, how much more the fullest one computes than the mean, where choices are random."""
    if deployment.groups == 1:
        return 1.0
    # The largest of as many normal variables; each device's count has the variance of its mean.
    return 1.0 + sqrt(2.0 * log(deployment.split) / (choices / deployment.split))


def _pairs(tokens: float, start: float, window: int | None) -> float:
    """Pairs of a query and a position that it sees: each of `tokens` behind `start` sees those before it."""
    if window is None:
        return tokens * start + tokens * (tokens + 1) / 2
    growing = max(0.0, min(tokens, window - start))
    return growing * start + growing * (growing + 1) / 2 + (tokens - growing) * window


def _messages(deployment: Deployment, efficiency: Efficiency, tokens: float, spread: float, logits: float) -> float:
    """Seconds of what devices send each other; `spread` of the tokens are those of the fullest group.

    The least that a sum takes grows with the rounds of a tree.
    """
    shape, wire, sent = deployment.shape, deployment.wire, Sent()
    if deployment.stripes > 1:
        sent += sent_of_contexts(shape, wire, deployment.stripes, tokens, logits)
    if deployment.split > 1:
        # The first has the most heads; of the others, which alone send logits, the second has the most of these.
        each = (
            sent_of_parts(
                shape, wire, deployment.split, spread, logits * spread / tokens, groups=deployment.groups, rank=rank
            )
            for rank in (0, 1)
        )
        sent += max(each, key=lambda one: one.bytes)
    if deployment.stages > 1:
        handed = sent_of_stages(shape, wire, tokens)
        sent += Sent((deployment.stages - 1) * handed.bytes, (deployment.stages - 1) * handed.rounds)
    if not sent.rounds:
        return 0.0
    link = deployment.device.link * efficiency.link
    return efficiency.message_seconds * sent.rounds + sent.bytes / link if link else inf


def _fixed(shape: ModelShape, efficiency: Efficiency) -> float:
    seconds = efficiency.step_seconds
    for layer in shape.layers:
        each = efficiency.layer_seconds
        each += efficiency.expert_seconds if layer.mlp.experts else 0.0
        each += efficiency.recurrent_seconds if layer.attention.sequence_values else 0.0
        seconds += layer.count * each
    return seconds
