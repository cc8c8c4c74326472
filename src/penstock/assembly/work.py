"""What a model's steps must do at least, from its declaration and its weights as they are in memory."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from penstock.core.kv import KVSpec
from penstock.core.work import ExpertWork, LayerWork, ModelWork, merge
from penstock.kernels.packing import Weight, tensors_of
from penstock.kernels.torch.packing import PackedLinear
from penstock.layers.decoder import DecoderBlock, storing_blocks
from penstock.layers.weights import WeightSpec
from penstock.models.declaration import ModelDeclaration


def model_work(declaration: ModelDeclaration, weights: Mapping[str, Weight], spec: KVSpec) -> ModelWork:
    """The work of a model whose layers keep their keys and values as `spec` says."""
    decoder = declaration.decoder
    head = (decoder.output.weight,) if decoder.generates else ()
    # Sources are encoded once, by a program of their own.
    of_sources = {spec for block in decoder.blocks if block.cross is not None for spec in block.cross.key_value.weights}
    projections = [
        weight for weight in decoder.weights if weight.role in ("linear", "router") and weight not in of_sources
    ]
    experts = {spec.name for block in decoder.blocks for spec in _of_experts(block)}
    linear = {weight.name: weight.size for weight in projections if weight.name not in experts}
    late = {spec.name: linear.pop(spec.name) for spec in decoder.late_weights if spec.name in linear}
    storing = storing_blocks(decoder.blocks)
    attention = [(block.attention, index >= storing) for index, block in enumerate(decoder.blocks)]
    return ModelWork(
        weight_bytes=sum(_bytes(weights[name]) for name in linear),
        head_bytes=sum(_bytes(weights[name]) for name in (*(weight.name for weight in head), *late)),
        token_operations=2 * sum(linear.values()),
        head_operations=2 * (sum(weight.size for weight in head) + sum(late.values())),
        attention=merge(
            LayerWork(
                1,
                0 if spec.keeps_nothing else spec.token_bytes(layer.layer),
                layer.heads.query_width,
                layer.window,
                last,
            )
            for layer, last in attention
        ),
        experts=_experts(declaration, weights),
    )


def _of_experts(block: DecoderBlock) -> tuple[WeightSpec, ...]:
    return () if block.mixture is None else (block.mixture.gate_up, block.mixture.down)


def _experts(declaration: ModelDeclaration, weights: Mapping[str, Weight]) -> tuple[ExpertWork, ...]:
    """What experts cost, of layers that are alike together."""
    counts: Counter[ExpertWork] = Counter()
    blocks = declaration.decoder.blocks
    storing = storing_blocks(blocks)
    for index, block in enumerate(blocks):
        mixture = block.mixture
        if mixture is not None:
            matrices, held = _of_experts(block), len(mixture.experts)
            size = sum(_bytes(weights[matrix.name]) for matrix in matrices) // held
            operations = 2 * sum(matrix.size for matrix in matrices) // held
            routing = mixture.routing
            counts[ExpertWork(1, routing.experts, routing.chosen, size, operations, index >= storing)] += 1
    return tuple(msgspec.structs.replace(work, layers=layers) for work, layers in counts.items())


def _bytes(weight: Weight) -> int:
    match weight:
        case PackedLinear():
            # What it takes in memory is opaque.
            return weight.shape[0] * weight.shape[1] * weight.dtype.itemsize
        case _:
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(weight))
