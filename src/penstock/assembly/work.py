"""What a model's steps must do at least, from its declaration and its weights as they are in memory."""

from collections.abc import Mapping

from penstock.core.kv import KVSpec
from penstock.core.work import LayerWork, ModelWork, merge
from penstock.kernels.packing import Weight, tensors_of
from penstock.kernels.torch.packing import PackedLinear
from penstock.models.declaration import ModelDeclaration


def model_work(declaration: ModelDeclaration, weights: Mapping[str, Weight], spec: KVSpec) -> ModelWork:
    """The work of a model whose layers keep their keys and values as `spec` says."""
    decoder = declaration.decoder
    head = decoder.output.weight
    linear = {weight.name: weight.size for weight in declaration.weights if weight.role == "linear"}
    attention = [block.attention for block in decoder.blocks]
    kept = [spec.token_bytes(layer.layer) for layer in attention]
    return ModelWork(
        weight_bytes=sum(_bytes(weights[name]) for name in linear),
        head_bytes=_bytes(weights[head.name]),
        token_operations=2 * sum(linear.values()),
        head_operations=2 * head.size,
        attention=merge(
            LayerWork(1, size, layer.heads.query_width, layer.window)
            for layer, size in zip(attention, kept, strict=True)
        ),
    )


def _bytes(weight: Weight) -> int:
    match weight:
        case PackedLinear():
            # What it takes in memory is opaque.
            return weight.shape[0] * weight.shape[1] * weight.dtype.itemsize
        case _:
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(weight))
