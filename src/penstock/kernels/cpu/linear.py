"""Projections and embedding lookups on weights that were packed for the native kernels."""

import torch
from torch import Tensor

from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.dispatch import Binding, Implementation, Kernel, StepState
from penstock.kernels.signature import Embedding, Linear


def _supports(op: Linear | Embedding, binding: Binding) -> str | None:
    return None if isinstance(binding.weight(op.weight), NativeLinear) else "the weight is not packed for it"


def _linear(op: Linear, binding: Binding) -> Kernel:
    weight = binding.weight(op.weight)
    assert isinstance(weight, NativeLinear)
    bias = None if op.bias is None else binding.tensor(op.bias).float()
    multiply, outputs = weight.handle.multiply, weight.shape[0]

    def run(_step: StepState, x: Tensor) -> Tensor:
        output = torch.empty((x.shape[0], outputs), dtype=x.dtype)
        multiply(x, output, bias)
        return output

    return run


def _embedding(op: Embedding, binding: Binding) -> Kernel:
    weight = binding.weight(op.weight)
    assert isinstance(weight, NativeLinear)
    look_up, width, dtype = weight.handle.look_up, weight.shape[1], binding.dtype

    def run(step: StepState) -> Tensor:
        output = torch.empty((step.batch.token_ids.shape[0], width))
        look_up(step.batch.token_ids, output)
        return output.to(dtype)

    return run


LINEAR: tuple[Implementation, ...] = (
    Implementation("native", Embedding, True, _supports, _embedding),
    Implementation("native", Linear, True, _supports, _linear),
)
