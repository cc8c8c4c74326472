"""One weight of a checkpoint as numbers: mapped where the file has them as they are, else made of what it has."""

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.core.errors import ModelFileError
from penstock.layers.weights import HeadCut
from penstock.loading.integers import fp8_form, runs_of
from penstock.loading.quantized import Entry, QuantizedEntry, table_state
from penstock.loading.safetensors import TensorEntry
from penstock.quantization.gguf_blocks import Blocks, dequantize, mxfp4_blocks
from penstock.quantization.grouped import (
    Grouped,
    from_affine,
    from_awq,
    from_gptq,
    from_packed,
    from_q4_0,
    stacked,
    to_q8_0,
)
from penstock.quantization.scaled import Fp8Blocks, RowBytes, from_nested, from_rows, from_table, scaled, stacked_fp8

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    # Words, whose bits alone count.
    "U32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
Integers = Grouped | Blocks | RowBytes
# Bytes of numbers that are made at a time, beside the tensor itself.
_AT_ONCE = 64 << 20


def read_tensor(entry: Entry) -> Tensor:
    """The tensor in the type that it is stored in; float32 where that is one of blocks, or several tensors.

    It may be the file's own pages, which stay mapped, privately, as long as it lives. Raises ModelFileError where a
    quantized weight's parts do not make sense together.
    """
    tensor = _dequantized(entry) if isinstance(entry, QuantizedEntry) else _plain(entry)
    if entry.cut is not None:
        tensor = _cut(tensor, entry.cut)
    taken = _taken(entry, tensor.shape)
    if taken is not None:
        tensor = tensor[taken]
    return tensor if entry.over is None else tensor[:, entry.over.span]


def _taken(entry: Entry, shape: Sequence[int]) -> slice | Tensor | None:
    """Which rows of a tensor of this shape are taken, in the order that kernels want; None: all as they are."""
    share = entry.share
    own = slice(None) if share is None else share.span
    if entry.rows is not None:
        return torch.tensor(entry.rows.order(shape[0])[own])
    return None if share is None else own


def _cut(tensor: Tensor, cut: HeadCut) -> Tensor:
    heads = tensor.unflatten(0, (cut.heads, cut.size))[:, cut.first : cut.first + cut.count]
    taken: Tensor = heads.transpose(1, 2) if cut.across else heads
    return taken.flatten(0, 1)


def _plain(entry: TensorEntry) -> Tensor:
    if entry.transposed:
        return _plain(replace(entry, shape=entry.shape[::-1], transposed=False)).t()
    tensor = _numbers(entry, _pages(entry))
    return tensor + entry.shift if entry.shift else tensor


def read_integers(entry: Entry) -> Integers:
    """The weight's integers, where it has an `integer_form`."""
    found = _integers(entry)
    taken = _taken(entry, entry.shape)
    if taken is not None:
        found = found.rows(taken)
    return found if entry.over is None else found.columns(entry.over.first, entry.over.count)


def _integers(entry: Entry) -> Integers:
    if isinstance(entry, QuantizedEntry):
        parts = {name: read_tensor(part) for name, part in entry.parts.items()}
        if entry.layout == "mxfp4":
            return _mxfp4(entry, parts)
        if entry.layout == "scaled":
            return RowBytes(parts["values"], parts["scales"].float().view(-1, 1))
        matrix = _grouped(entry, parts)
        return matrix if entry.bits <= 4 else Blocks(to_q8_0(matrix), "Q8_0", entry.shape[1])
    raw = _pages(entry).view(entry.shape[0], -1)
    return from_q4_0(raw) if entry.dtype == "Q4_0" else Blocks(raw, entry.dtype, entry.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Integers of different forms, one below the other."""

    parts: tuple[Integers, ...]

    def numbers(self) -> Tensor:
        """The numbers that the parts stand for, one below the other."""
        return torch.cat([part.numbers() for part in self.parts])


Kept = Integers | Stack | Fp8Blocks
"""What a weight of a checkpoint may stay."""


def read_stacked(entries: Sequence[Entry]) -> Kept:
    """The integers of weights that have some, or the E4M3 where all have that, one below the other."""
    if (form := fp8_form(entries)) is not None:
        return stacked_fp8([_read_fp8(entry) for entry in entries], form.rows)
    found = [_read_alike(run) for run in runs_of(entries)]
    return found[0] if len(found) == 1 else Stack(tuple(found))


def _read_fp8(entry: Entry) -> Fp8Blocks:
    form = fp8_form([entry])
    assert form is not None, "entries of one form are of it alone, too"
    assert isinstance(entry, QuantizedEntry), "plain tensors have no form"
    scales = read_tensor(entry.parts["scales"]).float().view(-1, -(-entry.shape[1] // form.group))
    return Fp8Blocks(read_tensor(entry.parts["values"]), scales, form.rows, form.group)


def _read_alike(entries: Sequence[Entry]) -> Integers:
    """Those of weights with a form in common."""
    parts = [read_integers(entry) for entry in entries]
    grouped = [part for part in parts if isinstance(part, Grouped)]
    if grouped:
        return stacked(grouped)
    rows = [part for part in parts if isinstance(part, RowBytes)]
    if rows:
        return RowBytes(torch.cat([part.values for part in rows]), torch.cat([part.scales for part in rows]))
    blocks = [part for part in parts if isinstance(part, Blocks)]
    return Blocks(torch.cat([part.raw for part in blocks]), blocks[0].kind, blocks[0].inputs)


def _dequantized(entry: QuantizedEntry) -> Tensor:
    parts = {name: read_tensor(part) for name, part in entry.parts.items()}
    if entry.layout == "scaled":
        return scaled(parts["values"], parts["scales"], entry.block, parts.get("zeros"))
    if entry.layout == "rows":
        if "order" in parts and parts["order"].any():
            raise ModelFileError(f"{entry.name} is stored in an order for GPUs; save the model again in order of rows.")
        return from_rows(parts["values"], parts["largest"])
    if entry.layout == "affine":
        return from_affine(parts["weights"], parts["scales"], parts["biases"], entry.bits)
    if entry.layout == "table":
        return _from_table(entry, parts).view(entry.shape)
    if entry.layout == "mxfp4":
        return _mxfp4(entry, parts).numbers()
    return _grouped(entry, parts).numbers()


def _grouped(entry: QuantizedEntry, parts: Mapping[str, Tensor]) -> Grouped:
    """The integers of a weight in one of the layouts with words of 32 bits."""
    group_of, groups = parts.get("group_of"), parts["scales"].shape[0 if entry.layout.startswith("gptq") else 1]
    if group_of is not None:
        if group_of.min() < 0 or group_of.max() >= groups:
            raise ModelFileError(
                f"{entry.parts['group_of'].name} names a group beyond the {groups} that {entry.name} has; "
                "download it again."
            )
        group_of = group_of.long() if entry.group_of or not entry.group else None
    if entry.layout == "awq":
        return from_awq(parts["weights"], parts["zeros"], parts["scales"])
    if entry.layout == "packed":
        scales, zeros = parts["scales"], parts.get("zeros")
        return from_packed(parts["weights"], zeros, scales, group_of, entry.bits, entry.shape[1])
    less_one = entry.layout == "gptq"
    return from_gptq(parts["weights"], parts["zeros"], parts["scales"], group_of, entry.bits, zeros_less_one=less_one)


def _mxfp4(entry: QuantizedEntry, parts: Mapping[str, Tensor]) -> Blocks:
    return Blocks(mxfp4_blocks(parts["nibbles"], parts["exponents"]), "MXFP4", entry.shape[1])


def _from_table(entry: QuantizedEntry, parts: Mapping[str, Tensor]) -> Tensor:
    state = table_state(parts["state"].numpy().tobytes(), entry.parts["state"].name)
    largest = parts["largest"].flatten()
    if state.nested:
        largest = from_nested(largest, parts["nested_table"], parts["nested_largest"], state.nested, state.offset)
    return from_table(parts["codes"], parts["table"], largest, state.block)[: math.prod(state.shape)]


def _numbers(entry: TensorEntry, raw: Tensor) -> Tensor:
    if entry.dtype in DTYPES:
        return raw.view(DTYPES[entry.dtype]).view(entry.shape)
    columns = entry.shape[-1]
    rows = math.prod(entry.shape[:-1])
    packed = raw.view(rows, -1)
    found = torch.empty(rows, columns)
    step = max(1, _AT_ONCE // (4 * columns))
    for first in range(0, rows, step):
        found[first : first + step] = dequantize(packed[first : first + step], entry.dtype)
    return found.view(entry.shape)


def _pages(entry: TensorEntry) -> Tensor:
    """The tensor's bytes in the file."""
    if entry.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    first_page = entry.offset - entry.offset % mmap.ALLOCATIONGRANULARITY
    inset = entry.offset - first_page
    with entry.file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), inset + entry.nbytes, access=mmap.ACCESS_COPY, offset=first_page)
    return torch.frombuffer(pages, dtype=torch.uint8, count=entry.nbytes, offset=inset)
