"""In which form a weight is kept: as it is in the file, packed for the kernels, or rounded to integers and packed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.core.config import ModelConfig
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeFormat, NativeLinear, pack_dense, pack_int4, pack_int8
from penstock.kernels.packing import Weight, pack_linear
from penstock.layers.weights import WeightSpec
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.rounding import round_int4, round_int8

Packing = Callable[[WeightSpec, Tensor], Weight]

_IN_OWN_PRECISION: dict[torch.dtype, NativeFormat] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def plain(_spec: WeightSpec, tensor: Tensor) -> Weight:
    """The tensor itself, which the reference operations take."""
    return tensor


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Packs matrices for the fastest kernels there are.

    Attributes:
        body: "none" for projections in their own precision, "int8" or "int4".
        head: the same for the output head, and for the embedding.
        tied: whether head and embedding are one matrix, which is then kept once.
    """

    body: str = "none"
    head: str = "none"
    tied: bool = False

    def native_format(self, spec: WeightSpec, dtype: torch.dtype) -> NativeFormat | None:
        """The native kernels' format for the weight; None where it stays a tensor, or is packed for torch's kernels."""
        if spec.role in ("norm", "bias"):
            return None
        quantization = self.body if spec.role == "linear" else self.head
        if quantization != "none":
            return "int8" if quantization == "int8" else "int4"
        if OBSTACLE is not None or (spec.role == "embedding" and not self.tied):
            return None
        return _IN_OWN_PRECISION.get(dtype)

    def __call__(self, spec: WeightSpec, tensor: Tensor) -> Weight:
        """The weight in its form. Raises ModelFileError where its values cannot be rounded."""
        format = self.native_format(spec, tensor.dtype)
        if format is None:
            return pack_linear(tensor) if spec.role in ("linear", "head") else tensor
        return _rounded(spec, tensor, format) if format in ("int8", "int4") else pack_dense(tensor)


IN_OWN_PRECISION = PackedWeights()


def packing_of(config: ModelConfig, declaration: ModelDeclaration) -> PackedWeights:
    """The form that a configuration asks for. Raises ConfigurationError where it needs kernels that are not there."""
    if config.quantization != "none" and OBSTACLE is not None:
        raise ConfigurationError(f"--quantization {config.quantization} is not possible here: {OBSTACLE}.")
    decoder = declaration.decoder
    tied = decoder.output.weight.parts == decoder.embedding_weight.parts
    return PackedWeights(config.quantization, config.quantize_head, tied)


def heads_packing(quantization: str) -> PackedWeights:
    """The form of heads on a model's hidden states. Raises ConfigurationError as `packing_of` does."""
    if quantization != "none" and OBSTACLE is not None:
        raise ConfigurationError(f"--draft-quantization {quantization} is not possible here: {OBSTACLE}.")
    return PackedWeights(quantization, quantization)


def _rounded(spec: WeightSpec, tensor: Tensor, quantization: str) -> NativeLinear:
    values = tensor if tensor.dtype in (torch.float32, torch.bfloat16) else tensor.float()
    if quantization == "int8":
        integers, scales = round_int8(values)
        packed = pack_int8(integers, scales)
    else:
        integers, multiples, scales = round_int4(values)
        packed = pack_int4(integers, multiples, scales)
    if not scales.isfinite().all():
        raise ModelFileError(
            f"{spec.name} has values that {quantization} cannot hold (infinite, NaN, or near the end of float32); "
            "serve the model without --quantization."
        )
    return packed
