"""What this machine can do for a model at most, and what rounding the weights would gain."""

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.core.ceilings import Ceilings
from penstock.core.config import QUANTIZED_BYTES, ModelConfig
from penstock.core.kv import DTYPE_BYTES
from penstock.kernels.cpu.native import native
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.packing import Weight
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.ceilings import measure_ceilings

# A smaller weight may lie in the processor's caches, and says nothing of memory.
_LEAST_BYTES = 64 << 20
# Bytes that are read of a larger weight; more would say no more.
_MOST_BYTES = 256 << 20


def measure_machine(weights: Mapping[str, Weight], threads: int) -> Ceilings:
    """What the native kernels' `threads` reach here, in about a tenth of a second.

    The largest of the weights is read, if it is large enough to say something of memory. Otherwise other memory is
    read, once in a process for these threads and instructions.
    """
    memory = _largest(weights)
    if len(memory) < _LEAST_BYTES:
        return _without_weights(threads, native.instruction_set())
    return measure_ceilings(memory[:_MOST_BYTES])


def describe_gain(
    model: ModelConfig, declaration: ModelDeclaration, weights: Mapping[str, Weight], ceilings: Ceilings | None
) -> str | None:
    """A sentence for the start of an engine whose weights are in their own precision; None where there is no saying.

    A sequence alone decodes as fast as the weights of a step, the projections and the head, are read from memory.
    """
    plain = model.quantization == "none" and declaration.decoder.generates
    if not plain or ceilings is None or len(_largest(weights)) < _LEAST_BYTES:
        return None
    read = ceilings.read * 1e9
    step = declaration.used_parameters + declaration.decoder.output.weight.size

    def rate(bytes_each: float) -> str:
        return f"{read / (step * bytes_each):.3g}"

    gains = " and ".join(f"{rate(size)} with --quantization {name}" for name, size in QUANTIZED_BYTES.items())
    return (
        f"This machine reads weights at {read / 1e9:.3g} GB/s, so a sequence alone gets at most "
        f"{rate(DTYPE_BYTES[model.dtype])} tokens per second; it could get {gains}."
    )


@functools.cache
def _without_weights(threads: int, instruction_set: str) -> Ceilings:
    """What the machine reaches with the threads and instructions that are in use."""
    return measure_ceilings(torch.ones(_LEAST_BYTES, dtype=torch.uint8))


def _largest(weights: Mapping[str, Weight]) -> Tensor:
    """Memory of the largest packed weight; empty where none is packed."""
    packed = [weight.memory for weight in weights.values() if isinstance(weight, NativeLinear)]
    return max(packed, key=len, default=torch.empty(0, dtype=torch.uint8))
