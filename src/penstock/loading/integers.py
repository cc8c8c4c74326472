"""Which weights native kernels take as the integers that a checkpoint has; without torch."""

from collections.abc import Sequence
from dataclasses import replace

from penstock.core.config import KeptIntegers
from penstock.kernels.cpu.form import BLOCK_FORMATS, GROUPED_FORMATS, Form, NativeForm, StackedForm
from penstock.kernels.cpu.native import OBSTACLE
from penstock.layers.weights import WeightPart
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.quantized import Entry
from penstock.loading.safetensors import TensorEntry
from penstock.models.declaration import ModelDeclaration

# Inputs of a row of int4 on a GPU are in runs of so many (`kernels/cuda/weights.py`).
GPU_RUN = 64


def integer_form(entry: Entry) -> NativeForm | None:
    """How the native kernels take the weight's integers as they are stored; None where it has none, or they do not."""
    if isinstance(entry, TensorEntry):
        if entry.dtype == "Q4_0":
            return NativeForm("int4_float16", 32)
        return NativeForm(BLOCK_FORMATS[entry.dtype]) if entry.dtype in BLOCK_FORMATS else None
    if entry.layout == "scaled":
        signed = entry.parts["values"].dtype == "I8" and "zeros" not in entry.parts
        return NativeForm("int8") if signed and entry.block == (1, entry.shape[1]) else None
    scales = entry.parts["scales"].dtype if entry.group else ""
    # Without zeros, 8 bits in groups of a multiple of 32 are GGUF's blocks in another order.
    whole_blocks = entry.group % 32 == 0 and "zeros" not in entry.parts
    if entry.bits == 8 and entry.layout == "packed" and scales == "float16" and whole_blocks:
        return NativeForm("q8_0")
    format = GROUPED_FORMATS.get((entry.bits, scales))
    if format is None or entry.group % 16 != 0:
        return None
    return NativeForm(format, entry.group, "zeros" in entry.parts)


def common_form(parts: Sequence[Entry]) -> NativeForm | None:
    """The form of integers that are stacked as one weight; None where one has none, or they differ."""
    forms = [integer_form(part) for part in parts]
    found = next(iter(forms), None)
    if found is None or any(form is None or (form.format, form.group) != (found.format, found.group) for form in forms):
        return None
    return replace(found, zero_points=any(form is not None and form.zero_points for form in forms))


def runs_of(parts: Sequence[Entry]) -> list[list[Entry]]:
    """The parts, those together that have a form in common with their neighbours."""
    runs: list[list[Entry]] = []
    for part in parts:
        if runs and common_form([runs[-1][-1], part]) is not None:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def kept_form(parts: Sequence[Entry]) -> Form | None:
    """The form of integers that are stacked as one weight, whatever forms its parts have; None where one has none."""
    stacked = []
    for run in runs_of(parts):
        form = common_form(run)
        if form is None:
            return None
        stacked.append((form, sum(part.shape[0] for part in run)))
    if not stacked:
        return None
    return stacked[0][0] if len(stacked) == 1 else StackedForm(tuple(stacked))


def is_tied(declaration: ModelDeclaration) -> bool:
    """Whether head and embedding are one matrix."""
    decoder = declaration.decoder
    return decoder.output.weight.parts == decoder.embedding_weight.parts


def kept_on_gpu(parts: Sequence[Entry]) -> NativeForm | None:
    """The form of integers that kernels on a GPU take as they are: int8 by rows, up to 4 bits in groups."""
    form = common_form(parts)
    if form is None or form.format == "int8":
        return form
    return form if form.format in GROUPED_FORMATS.values() and parts[0].shape[1] % GPU_RUN == 0 else None


def _bytes_on_gpu(form: NativeForm, outputs: int, inputs: int) -> int:
    """Of integers with their scales, and zeros; fewer bits than 4 take as many."""
    if form.format == "int8":
        return outputs * (inputs + 4)
    return outputs * (inputs // 2 + 3 * inputs // form.group)


def kept_integers(checkpoint: Checkpoint, declaration: ModelDeclaration, *, gpu: bool = False) -> KeptIntegers:
    """What kernels take as the integers that the files have; what is shared counts once, as the head's.

    Native kernels, or those for a `gpu`. Raises ModelFileError where the checkpoint does not fit the model.
    """
    if (OBSTACLE is not None and not gpu) or not checkpoint.tensors:
        return KeptIntegers()
    located = checkpoint.locate(declaration)
    kept: dict[str, dict[tuple[WeightPart, ...], tuple[int, int]]] = {"linear": {}, "head": {}}
    for spec in declaration.weights:
        if spec.role not in kept:
            continue
        parts = [located[part.tensor] for part in spec.parts]
        if gpu:
            if (own := kept_on_gpu(parts)) is not None:
                kept[spec.role][spec.parts] = spec.size, _bytes_on_gpu(own, *spec.shape)
        elif (form := kept_form(parts)) is not None:
            kept[spec.role][spec.parts] = spec.size, form.nbytes(*spec.shape)
    totals = (sum(each[which] for each in found.values()) for found in kept.values() for which in (0, 1))
    return KeptIntegers(*totals)
