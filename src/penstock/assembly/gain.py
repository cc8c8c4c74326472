"""What rounding the weights would gain on this machine, from how fast it reads them."""

from collections.abc import Mapping

from penstock.core.config import QUANTIZED_BYTES, ModelConfig
from penstock.core.kv import DTYPE_BYTES
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.packing import Weight
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.ceilings import measure_reads

# A smaller weight may lie in the processor's caches, and says nothing of memory.
_LEAST_BYTES = 64 << 20
_READ_BYTES = 256 << 20


def describe_gain(model: ModelConfig, declaration: ModelDeclaration, weights: Mapping[str, Weight]) -> str | None:
    """A sentence for the start of an engine whose weights are in their own precision; None where there is no saying.

    A sequence alone decodes as fast as the weights of a step, the projections and the head, are read from memory; that
    is measured on the largest of them, which takes some tens of milliseconds.
    """
    packed = [weight for weight in weights.values() if isinstance(weight, NativeLinear)]
    largest = max(packed, key=lambda weight: len(weight.memory), default=None)
    if model.quantization != "none" or largest is None or len(largest.memory) < _LEAST_BYTES:
        return None
    read = measure_reads(largest.memory[:_READ_BYTES])
    step = declaration.parameters_in("linear") + declaration.decoder.output.weight.size

    def rate(bytes_each: float) -> str:
        return f"{read / (step * bytes_each):.3g}"

    gains = " and ".join(f"{rate(size)} with --quantization {name}" for name, size in QUANTIZED_BYTES.items())
    return (
        f"This machine reads weights at {read / 1e9:.3g} GB/s, so a sequence alone gets at most "
        f"{rate(DTYPE_BYTES[model.dtype])} tokens per second; it could get {gains}."
    )
