"""Weights as operations want them: plain tensors, or linear weights repacked once for the kernels that read them."""

from torch import Tensor

from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.cuda.weights import DeviceLinear
from penstock.kernels.torch.packing import PackedLinear

Weight = Tensor | PackedLinear | NativeLinear | DeviceLinear


def tensors_of(weight: Weight) -> tuple[Tensor, ...]:
    """What a weight is in memory."""
    match weight:
        case NativeLinear():
            return (weight.memory,)
        case DeviceLinear():
            return (weight.data, weight.scales, *(() if weight.zeros is None else (weight.zeros,)))
        case PackedLinear():
            return (weight.data,)
        case Tensor():
            return (weight,)
