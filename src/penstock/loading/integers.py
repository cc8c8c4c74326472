"""Which weights kernels take as the integers, or the FP8, that a checkpoint has; without torch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.configuration.facts import KeptIntegers
from penstock.core.devices import Gpu
from penstock.core.errors import UnsupportedModel
from penstock.core.shares import USUAL_UNIT
from penstock.kernels.cpu.form import BLOCK_FORMATS, GROUPED_FORMATS, PANEL, Form, NativeForm, StackedForm
from penstock.layers.experts import DenseBesideExperts, MixtureOfExperts
from penstock.layers.weights import WeightPart, WeightSpec
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.quantized import Entry, QuantizedEntry
from penstock.loading.safetensors import TensorEntry
from penstock.models.declaration import ModelDeclaration

# On a GPU, the inputs of an int4 row come in runs of `GPU_RUN`. In FP8, `GPU_FP8_GROUP` inputs share a scale, or all do
# (`kernels/cuda/weights.py`).
GPU_RUN = 64
GPU_FP8_GROUP = 128
# Inputs of a block of GGUF's K types.
LARGE_BLOCK = 256


def integer_form(entry: Entry) -> NativeForm | None:
    """How the native kernels take the weight's integers as they are stored; None where it has none, or they do not.

    The columns of a rank are kept where they are whole groups, in order.
    """
    form, over = _stored_form(entry), entry.over
    if form is None or over is None or form.format == "int8":
        return form
    group = _group_of_form(form)
    return None if form.ordered or over.first % group or over.count % group else form


def _stored_form(entry: Entry) -> NativeForm | None:
    """The form of all rows and columns."""
    if entry.cut is not None:
        return None
    if isinstance(entry, TensorEntry):
        if entry.dtype == "Q4_0":
            return NativeForm("int4_float16", 32)
        return NativeForm(BLOCK_FORMATS[entry.dtype]) if entry.dtype in BLOCK_FORMATS else None
    if entry.layout == "mxfp4":
        return NativeForm(BLOCK_FORMATS["MXFP4"])
    if entry.layout == "scaled":
        signed = entry.parts["values"].dtype == "I8" and "zeros" not in entry.parts
        return NativeForm("int8") if signed and entry.block == (1, entry.shape[1]) else None
    scales = entry.parts["scales"].dtype if entry.group else ""
    # Without zeros, 8 bits in groups of a multiple of 32 are GGUF's blocks in another order.
    whole_blocks = entry.group % 32 == 0 and "zeros" not in entry.parts and not entry.group_of
    if entry.bits == 8 and entry.layout == "packed" and scales == "float16" and whole_blocks:
        return NativeForm("q8_0")
    format = GROUPED_FORMATS.get((entry.bits, scales))
    if format is None or entry.group % 16 != 0:
        return None
    return NativeForm(format, entry.group, "zeros" in entry.parts, bool(entry.group_of))


def common_form(parts: Sequence[Entry]) -> NativeForm | None:
    """The form of integers that are stacked as one weight; None where one has none, or they differ."""
    forms = [integer_form(part) for part in parts]
    found = next(iter(forms), None)
    if found is None or any(form is None or (form.format, form.group) != (found.format, found.group) for form in forms):
        return None
    if len({_group_of(part) for part in parts}) > 1:
        return None
    return replace(found, zero_points=any(form is not None and form.zero_points for form in forms))


def _group_of(entry: Entry) -> bytes:
    return entry.group_of if isinstance(entry, QuantizedEntry) else b""


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
        stacked.append((form, sum(part.shape[0] if part.share is None else part.share.count for part in run)))
    if not stacked:
        return None
    return stacked[0][0] if len(stacked) == 1 else StackedForm(tuple(stacked))


def own_form(spec: WeightSpec, parts: Sequence[Entry]) -> Form | None:
    """The native kernels' form of the integers that a weight has in the files; None where it becomes numbers.

    Experts are one matrix for the kernels: of one form, cut in whole panels, with inputs where the model has them.
    """
    form = kept_form(parts)
    if form is None or spec.experts == 1:
        return form
    return form if isinstance(form, NativeForm) and not form.ordered and in_whole_panels(spec) else None


def in_whole_panels(spec: WeightSpec) -> bool:
    """Whether the kernels can take its matrices apart: by outputs and inputs that are whole panels."""
    sizes = [size for part in spec.parts for size in part.shape]
    return spec.experts == 1 or not any(size % PANEL for size in (*sizes, spec.shape[0] // spec.experts))


def check_whole_panels(spec: WeightSpec) -> None:
    """Raise UnsupportedModel where a weight's experts cannot be rounded to integers."""
    if not in_whole_panels(spec):
        raise UnsupportedModel(
            f"{spec.name} has experts of {' and '.join(map(str, spec.parts[0].shape))} columns; they can be quantized "
            f"where both are multiples of {PANEL}. Serve the model without --quantization."
        )


def is_tied(declaration: ModelDeclaration) -> bool:
    """Whether head and embedding are one matrix."""
    decoder = declaration.decoder
    return decoder.output.weight.parts == decoder.embedding_weight.parts


@dataclass(frozen=True, slots=True)
class Fp8Form:
    """E4M3 as kernels on a GPU take it.

    Attributes:
        rows, group: how many outputs and inputs share a scale; a group is all inputs, or `GPU_FP8_GROUP`.
    """

    rows: int
    group: int

    def nbytes(self, outputs: int, inputs: int) -> int:
        """Of a weight with its scales in float32."""
        return outputs * inputs + 4 * -(-outputs // self.rows) * -(-inputs // self.group)


def fp8_form(parts: Sequence[Entry]) -> Fp8Form | None:
    """The form of E4M3 weights that are stacked as one; None where one is something else, or groups differ."""
    blocks = [_fp8_block(part) for part in parts]
    groups = {group for _, group in blocks}
    if len(groups) != 1 or 0 in groups:
        return None
    # This number of outputs share a scale in each part, wherever the part begins.
    rows = math.gcd(*(rows for rows, _ in blocks), *(part.shape[0] for part in parts[:-1]))
    return Fp8Form(rows, *groups)


def _fp8_block(entry: Entry) -> tuple[int, int]:
    """Outputs and inputs that share a scale of an E4M3 weight, as kernels on a GPU take it; else (0, 0)."""
    if not isinstance(entry, QuantizedEntry) or entry.layout != "scaled" or "zeros" in entry.parts:
        return 0, 0
    if entry.rows is not None or entry.cut is not None or entry.share is not None or entry.over is not None:
        # In another order, or taken apart, rows that share a scale would not stand together.
        return 0, 0
    rows, group = (min(size, side) for size, side in zip(entry.block, entry.shape, strict=True))
    takes = entry.parts["values"].dtype == "F8_E4M3" and group in (entry.shape[1], GPU_FP8_GROUP)
    return (rows, group) if takes else (0, 0)


def kept_on_gpu(spec: WeightSpec, parts: Sequence[Entry], *, fp8: bool) -> NativeForm | Fp8Form | None:
    """The form of what kernels on a GPU take as it is: int8 by rows, up to 4 bits in groups, and `fp8` where it can.

    There are no kernels for experts in FP8.
    """
    if fp8 and spec.experts == 1 and (own := fp8_form(parts)) is not None:
        return own
    form = common_form(parts)
    if form is None or form.format == "int8":
        return form
    takes = form.format in GROUPED_FORMATS.values() and not form.ordered and parts[0].shape[1] % GPU_RUN == 0
    return form if takes else None


def _bytes_on_gpu(form: NativeForm | Fp8Form, outputs: int, inputs: int) -> int:
    """Bytes with scales and zeros; integers of fewer than 4 bits take 4."""
    if isinstance(form, Fp8Form):
        return form.nbytes(outputs, inputs)
    if form.format == "int8":
        return outputs * (inputs + 4)
    return outputs * (inputs // 2 + 3 * inputs // form.group)


def common_group(checkpoint: Checkpoint, declaration: ModelDeclaration) -> int:
    """Columns of hidden layers that have to stay together so that the integers of the ways back can be kept."""
    found = USUAL_UNIT
    if not checkpoint.tensors:
        return found
    located = checkpoint.locate(declaration)
    for spec in _ways_back(declaration):
        for part in spec.parts:
            form = integer_form(located[part.name])
            if form is not None and form.format != "int8":
                found = math.lcm(found, _group_of_form(form))
    return found


def lost_integers(checkpoint: Checkpoint, whole: ModelDeclaration, part: ModelDeclaration) -> int:
    """How many weights of a rank's `part` become numbers, though one process keeps their integers."""
    if not checkpoint.tensors:
        return 0
    all_parts, own_parts = checkpoint.locate(whole), checkpoint.locate(part)
    every = {spec.name: spec for spec in whole.weights if spec.role == "linear"}
    lost = 0
    for spec in part.weights:
        one = every.get(spec.name)
        if one is None or own_form(one, [all_parts[each.name] for each in one.parts]) is None:
            continue
        lost += 0 if own_form(spec, [own_parts[each.name] for each in spec.parts]) is not None else spec.size
    return lost


def _ways_back(declaration: ModelDeclaration) -> Iterator[WeightSpec]:
    """Projections from hidden layers of MLPs and experts."""
    for block in declaration.decoder.blocks:
        mlp = block.mlp.dense if isinstance(block.mlp, DenseBesideExperts) else block.mlp
        if not isinstance(mlp, MixtureOfExperts):
            yield mlp.down.weight
        if block.mixture is not None:
            yield block.mixture.down
            if block.mixture.shared is not None:
                yield block.mixture.shared.down.weight


def _group_of_form(form: NativeForm) -> int:
    return LARGE_BLOCK if form.format in ("q4_k", "q6_k") else form.group or 32


def kept_integers(checkpoint: Checkpoint, declaration: ModelDeclaration, *, gpu: Gpu | None = None) -> KeptIntegers:
    """What kernels take as the integers, or FP8, that the files have; what is shared counts once, as the head's.

    Native kernels, or those for a `gpu`. Raises ModelFileError where the checkpoint does not fit the model.
    """
    if not checkpoint.tensors:
        return KeptIntegers()
    located = checkpoint.locate(declaration)
    kept: dict[str, dict[tuple[WeightPart, ...], tuple[int, int]]] = {"linear": {}, "head": {}}
    fp8 = False
    for spec in declaration.weights:
        role = "head" if spec.role == "table" else spec.role
        if role not in kept:
            continue
        parts = [located[part.name] for part in spec.parts]
        if gpu is not None:
            if (own := kept_on_gpu(spec, parts, fp8=gpu.multiplies_fp8)) is not None:
                kept[role][spec.parts] = spec.size, _bytes_on_gpu(own, *spec.shape)
                fp8 = fp8 or isinstance(own, Fp8Form)
        elif (form := own_form(spec, parts)) is not None:
            kept[role][spec.parts] = spec.size, form.nbytes(*spec.shape)
    body, body_bytes, head, head_bytes = (
        sum(each[which] for each in found.values()) for found in kept.values() for which in (0, 1)
    )
    return KeptIntegers(body, body_bytes, head, head_bytes, fp8)


def fp8_numbers(checkpoint: Checkpoint, declaration: ModelDeclaration, gpu: Gpu) -> int:
    """How many weights of projections and head the files have in FP8 that become numbers on a GPU."""
    if not checkpoint.tensors:
        return 0
    located = checkpoint.locate(declaration)
    count = 0
    for spec in declaration.weights:
        parts = [located[part.name] for part in spec.parts]
        if spec.role in ("linear", "head") and any(map(_is_fp8, parts)):
            count += spec.size if kept_on_gpu(spec, parts, fp8=gpu.multiplies_fp8) is None else 0
    return count


def _is_fp8(entry: Entry) -> bool:
    return isinstance(entry, QuantizedEntry) and entry.layout == "scaled" and entry.parts["values"].dtype != "I8"
