"""In which form a weight is kept: as it is in the file, packed for the kernels, or rounded to integers and packed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.core.config import ModelConfig
from penstock.core.errors import ModelFileError
from penstock.core.shares import Share
from penstock.kernels.cpu.form import (
    BLOCK_FORMATS,
    GROUPED_FORMATS,
    Form,
    NativeForm,
    NativeFormat,
    StackedForm,
)
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import INT4_GROUP, NativeLinear, empty, pack_dense, pack_int4, pack_int8
from penstock.kernels.packing import Weight
from penstock.kernels.torch.packing import pack_linear
from penstock.layers.weights import WeightSpec
from penstock.loading.integers import check_whole_panels, in_whole_panels, is_tied, own_form
from penstock.loading.quantized import Entry
from penstock.loading.tensors import Integers, Kept, Stack
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.gguf_blocks import Blocks
from penstock.quantization.grouped import Grouped
from penstock.quantization.rounding import round_int4, round_int8
from penstock.quantization.scaled import Fp8Blocks

_IN_OWN_PRECISION: dict[torch.dtype, NativeFormat] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Packing(Protocol):
    """What gives weights their form."""

    def keeps(self, spec: WeightSpec, parts: Sequence[Entry]) -> bool:
        """Whether the weight stays the integers that its parts are in the files."""
        ...

    def shares(self, weight: Weight) -> bool:
        """Whether an embedding's weight, in this form, is a tied head's too."""
        ...

    def rounds_whole(self, spec: WeightSpec) -> bool:
        """Whether the weight is given with the columns of all ranks, to be rounded before this one's are taken."""
        ...

    def __call__(self, spec: WeightSpec, weight: Tensor | Kept) -> Weight:
        """The weight in its form."""
        ...


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Packs matrices for the fastest kernels there are.

    Attributes:
        body: "none" for projections in their own precision, "int8" or "int4", "own" for the integers that the files
            have, where they have some.
        head: the same for the output head, and for the embedding.
        tied: whether head and embedding are one matrix, which is then kept once.
        native: whether the native kernels compute; else matrices in their own precision are packed for torch's.
    """

    body: str = "none"
    head: str = "none"
    tied: bool = False
    native: bool = OBSTACLE is None

    def native_form(self, spec: WeightSpec, dtype: torch.dtype, parts: Sequence[Entry] = ()) -> Form | None:
        """The native kernels' form for the weight; None where it stays a tensor, or is packed for torch's kernels."""
        if spec.role in ("positions", "norm", "bias"):
            return None
        if spec.chooses:
            return NativeForm("float32") if self.native and spec.neutral is None else None
        if self._quantization(spec) in ("int8", "int4"):
            check_whole_panels(spec)
            return NativeForm("int8" if self._quantization(spec) == "int8" else "int4")
        if not self.native or (spec.role == "embedding" and not self.tied) or not in_whole_panels(spec):
            return None
        if self.keeps(spec, parts):
            return own_form(spec, parts)
        if spec.role == "table":
            # Rows are read one by one, and the file's pages have them as they are.
            return None
        return NativeForm(_IN_OWN_PRECISION[dtype]) if dtype in _IN_OWN_PRECISION else None

    def keeps(self, spec: WeightSpec, parts: Sequence[Entry]) -> bool:
        """Whether the weight stays the integers that its parts are in the files."""
        if self._quantization(spec) != "own" or spec.role in ("positions", "norm", "bias", "router"):
            return False
        if spec.role == "embedding" and not self.tied:
            return False
        return own_form(spec, parts) is not None

    def shares(self, weight: Weight) -> bool:
        """The native kernels read one matrix either way."""
        return isinstance(weight, NativeLinear)

    def rounds_whole(self, spec: WeightSpec) -> bool:
        """So that ranks have the integers that one process would have, where their groups stay whole."""
        over = spec.over
        if spec.role not in ("linear", "head") or over is None or self._quantization(spec) not in ("int8", "int4"):
            return False
        return self._quantization(spec) == "int8" or not (over.first % INT4_GROUP or over.count % INT4_GROUP)

    def _quantization(self, spec: WeightSpec) -> str:
        return self.body if spec.role == "linear" else self.head

    def __call__(self, spec: WeightSpec, weight: Tensor | Kept) -> Weight:
        """The weight in its form. Raises ModelFileError where its values cannot be rounded."""
        if isinstance(weight, Fp8Blocks):
            raise TypeError(f"{spec.name} stays E4M3, which GPUs alone keep")
        if not isinstance(weight, Tensor):
            return _packed_integers(*(weight.parts if isinstance(weight, Stack) else (weight,)))
        form = self.native_form(spec, weight.dtype)
        if form is None:
            return pack_linear(weight) if spec.role in ("linear", "head") and spec.experts == 1 else weight
        quantization = "none" if spec.chooses else self._quantization(spec)
        return _rounded(spec, weight, quantization) if quantization in ("int8", "int4") else pack_dense(weight)


def _packed_integers(*parts: Integers) -> NativeLinear:
    """Parts of one weight, each packed where it is to be."""
    forms = [_form_of(part) for part in parts]
    stacked = tuple((form, outputs) for form, (outputs, _) in forms)
    form = stacked[0][0] if len(parts) == 1 else StackedForm(stacked)
    packed = empty(form, (sum(outputs for _, outputs in stacked), forms[0][1][1]))
    for handle, part in zip(packed.handles, parts, strict=True):
        if isinstance(part, Blocks):
            handle.fill_blocks(part.raw.contiguous())
        elif isinstance(part, Grouped):
            # Of a column that was a row, torch keeps the row's strides, which the kernels do not take.
            scales = part.scales.flatten().view(part.scales.shape)
            handle.fill_grouped(part.integers.contiguous(), scales, part.zeros, part.order())
        else:
            handle.fill_int8(part.values.contiguous(), part.scales.flatten().contiguous())
    return packed


def _form_of(weight: Integers) -> tuple[NativeForm, tuple[int, int]]:
    """The kernels' form of integers, and their shape."""
    if isinstance(weight, Blocks):
        return NativeForm(BLOCK_FORMATS[weight.kind]), (weight.raw.shape[0], weight.inputs)
    if isinstance(weight, Grouped):
        outputs, inputs = weight.integers.shape
        format = GROUPED_FORMATS[weight.bits, str(weight.scales.dtype).removeprefix("torch.")]
        group, ordered = inputs // weight.scales.shape[1], weight.group_of is not None
        return NativeForm(format, group, weight.zeros is not None, ordered), (outputs, inputs)
    outputs, inputs = weight.values.shape
    return NativeForm("int8"), (outputs, inputs)


IN_OWN_PRECISION = PackedWeights()


def stored_in(spec: WeightSpec, dtype: torch.dtype) -> torch.dtype:
    """The type of a weight in a model of `dtype`: what chooses experts is in float32 in all of them."""
    return torch.float32 if spec.chooses else dtype


def packing_of(config: ModelConfig, declaration: ModelDeclaration, *, native: bool) -> PackedWeights:
    """The form that a configuration asks for, where the `native` kernels compute and where they do not."""
    return PackedWeights(config.quantization, config.quantize_head, is_tied(declaration), native)


def _rounded(spec: WeightSpec, tensor: Tensor, quantization: str) -> NativeLinear:
    values = tensor if tensor.dtype in (torch.float32, torch.bfloat16) else tensor.float()
    if quantization == "int8":
        integers, scales = round_int8(values)
        packed = pack_int8(_own_columns(integers, spec.over), scales)
    else:
        integers, multiples, scales = round_int4(values)
        packed = pack_int4(*_own_groups(integers, multiples, spec.over), scales)
    if not scales.isfinite().all():
        raise ModelFileError(
            f"{spec.name} has values that {quantization} cannot hold (infinite, NaN, or near the end of float32); "
            "serve the model without --quantization, or let it draft with --draft-quantization none."
        )
    return packed


def _own_columns(integers: Tensor, over: Share | None) -> Tensor:
    """Those of a rank, where there are those of all."""
    if over is None or integers.shape[1] != over.of:
        return integers
    return integers[:, over.span].contiguous()


def _own_groups(integers: Tensor, multiples: Tensor, over: Share | None) -> tuple[Tensor, Tensor]:
    """The same with the multiples of their groups."""
    if over is None or integers.shape[1] != over.of:
        return integers, multiples
    first, end = over.first // INT4_GROUP, (over.first + over.count) // INT4_GROUP
    return _own_columns(integers, over), multiples[:, first:end].contiguous()
