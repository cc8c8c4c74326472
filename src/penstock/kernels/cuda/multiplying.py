"""How linear weights are multiplied on a GPU, and read as embeddings."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from penstock.kernels.cuda.fp8 import fp8_linear_kernel, round_fp8_kernel
from penstock.kernels.cuda.linear import (
    add_parts_kernel,
    expand_int4_kernel,
    int4_linear_kernel,
    integer_linear_kernel,
    linear_kernel,
    round_rows_kernel,
)
from penstock.kernels.cuda.place import INTERPRETED, TYPES, Place, padded
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.cuda.step import DeviceStep
from penstock.kernels.cuda.weights import FP8_GROUP, NIBBLE_RUN, ROW_STEPS, DeviceLinear
from penstock.kernels.dispatch import Binding
from penstock.kernels.signature import Embedding, Linear

# Rows of a tile where few come, and where many do; where sums must not depend on that, always the second.
_FEW, _MANY, _MORE, _ = ROW_STEPS
_BLOCK_N, _BLOCK_K = 64, 64
# Bytes of int4 that a program expands, and numbers that are expanded at a time: 128 MiB in bfloat16.
_EXPANDED_BYTES = 1024
_EXPANDED_NUMBERS = 1 << 26
# Inputs of int4 that are read at a time, and parts that all inputs are cut into, so that enough of them are on their
# way.
_FOUR_RUNS = 4 * NIBBLE_RUN
_PARTS = 4


class _Tile(NamedTuple):
    """Rows, outputs and inputs that a program multiplies at a time, its warps, and tiles that are read ahead."""

    rows: int
    outputs: int
    inputs: int
    warps: int = 4
    stages: int = 3


def _integer_tile(rows: int) -> _Tile:
    """Of int8: sums of integers are exact in any order."""
    if rows <= _FEW:
        return _Tile(_FEW, 32, 512)
    if rows <= _MANY:
        return _Tile(_MANY, 64, 128, stages=4)
    return _Tile(_MORE, 64, 128) if rows <= _MORE else _Tile(_MORE, 128, 128)


def _int4_tile(same: bool) -> _Tile:
    """Of int4, in fours of runs, of few rows; with `same` of any number of rows."""
    return _Tile(32, 64, _FOUR_RUNS, stages=2) if same else _Tile(_FEW, 32, _FOUR_RUNS, warps=2, stages=2)


def _fp8_tile(rows: int, same: bool) -> _Tile:
    """The same of FP8, whose groups bound the inputs."""
    if rows <= _FEW and not same:
        return _Tile(_FEW, 32, FP8_GROUP, stages=4)
    return _Tile(_MANY, 64, FP8_GROUP) if rows <= _MANY or same else _Tile(_MORE, 64, FP8_GROUP)


def takes(op: Linear | Embedding, binding: Binding) -> str | None:
    """`supports` of what reads a matrix."""
    weight = binding.weight(op.weight)
    if isinstance(weight, Tensor):
        return None if weight.dtype is binding.dtype else f"the weight is {weight.dtype}"
    return None if isinstance(weight, DeviceLinear) else "the weight is packed for other kernels"


def linear(op: Linear, binding: Binding, place: Place) -> DevicePart:
    """A projection: torch's product of what is plain, unless its order of sums has to be ours."""
    weight = binding.weight(op.weight)
    bias = None if op.bias is None else binding.tensor(op.bias)
    if isinstance(weight, Tensor):
        if not place.deterministic:
            return DevicePart(place, lambda _step, x: F.linear(x, weight, bias))
        return DevicePart(place, lambda _step, x: expanded(x, weight, bias, place))
    assert isinstance(weight, DeviceLinear)
    if weight.kind == "int8" and weight.whole_rows:
        return DevicePart(place, lambda _step, x: _integers(x, weight, bias))
    if weight.kind == "fp8":
        return DevicePart(place, lambda _step, x: _fp8(x, weight, bias, place))
    if weight.kind == "int4" and weight.group % (NIBBLE_RUN // 2) == 0:
        return DevicePart(place, lambda _step, x: _int4(x, weight, bias, place))
    return DevicePart(place, lambda _step, x: expanded(x, weight, bias, place))


def _grid(outputs: int, rows: int, tile: _Tile) -> tuple[int, int]:
    return triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows)


def expanded(x: Tensor, weight: Tensor | DeviceLinear, bias: Tensor | None, place: Place) -> Tensor:
    """x · weightᵀ, whose numbers are made on the way to the multiplication."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    y = x.new_empty((rows, outputs))
    tile = _Tile(_FEW if rows <= _FEW and not place.deterministic else _MANY, _BLOCK_N, _BLOCK_K)
    packed = weight if isinstance(weight, DeviceLinear) else None
    data = weight if packed is None else packed.data
    linear_kernel[_grid(outputs, rows, tile)](
        x,
        data,
        data if packed is None else packed.scales,
        data if packed is None or packed.zeros is None else packed.zeros,
        data if bias is None else bias,
        y,
        rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        GROUP=inputs if packed is None else packed.group,
        KIND="plain" if packed is None else packed.kind,
        BIASED=bias is not None,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs,
        TYPE=TYPES[x.dtype],
        WIDE=place.wide(x.dtype),
        OUT=TYPES[x.dtype],
    )
    return y


def _int4(x: Tensor, weight: DeviceLinear, bias: Tensor | None, place: Place) -> Tensor:
    """The same of int4 whose half runs have one scale each."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    y = x.new_empty((rows, outputs))
    if rows > _FEW and not place.deterministic:
        _expand_and_multiply(x, weight, bias, y)
        return y
    tile = _int4_tile(place.deterministic)
    split = max(1, min(_PARTS, inputs // _FOUR_RUNS))
    given = y if bias is None else bias
    found = y if split == 1 else x.new_empty((split, rows, outputs), dtype=torch.float32)
    int4_linear_kernel[(*_grid(outputs, rows, tile), split)](
        x,
        weight.data,
        weight.scales,
        weight.zeros,
        given,
        found,
        rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        GROUP=weight.group,
        BIASED=bias is not None and split == 1,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs,
        SPLIT=split,
        TYPE=TYPES[x.dtype],
        WIDE=place.wide(x.dtype),
        OUT=TYPES[found.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if split > 1:
        block = min(1024, padded(outputs))
        add_parts_kernel[(rows, triton.cdiv(outputs, block))](
            found,
            given,
            y,
            rows,
            OUTPUTS=outputs,
            PARTS=split,
            BIASED=bias is not None,
            BLOCK=block,
            OUT=TYPES[x.dtype],
        )
    return y


def _expand_and_multiply(x: Tensor, weight: DeviceLinear, bias: Tensor | None, y: Tensor) -> None:
    """The same by torch's product, of numbers that are expanded once for all rows, some outputs at a time."""
    outputs, inputs = weight.shape
    size = max(1, _EXPANDED_NUMBERS // inputs)
    numbers = torch.empty((min(size, outputs), inputs), dtype=x.dtype, device=x.device)
    for first in range(0, outputs, size):
        some = numbers[: min(size, outputs - first)]
        rows = slice(first, first + len(some))
        expand_int4_kernel[(len(some), triton.cdiv(inputs // 2, _EXPANDED_BYTES))](
            weight.data,
            weight.scales,
            weight.zeros,
            some,
            first,
            INPUTS=inputs,
            GROUP=weight.group,
            BLOCK=_EXPANDED_BYTES,
            OUT=TYPES[x.dtype],
        )
        torch.mm(x, some.T, out=y[:, rows])
    if bias is not None:
        y += bias


def _integers(x: Tensor, weight: DeviceLinear, bias: Tensor | None) -> Tensor:
    """The same of int8 weights and rows rounded to int8. Integers are summed exactly, whatever the tiles are."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    integers = x.new_empty((rows, inputs), dtype=torch.int8)
    row_scales = x.new_empty((rows,), dtype=torch.float32)
    round_rows_kernel[(rows,)](x, integers, row_scales, INPUTS=inputs, PADDED=padded(inputs))
    y = x.new_empty((rows, outputs))
    tile = _integer_tile(rows)
    integer_linear_kernel[_grid(outputs, rows, tile)](
        integers,
        row_scales,
        weight.data,
        weight.scales,
        y if bias is None else bias,
        y,
        rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        BIASED=bias is not None,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs,
        EXACT=INTERPRETED,
        OUT=TYPES[x.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
        # Behind the integers, a scale and a bias are two roundings, whichever the size of the tile is.
        enable_fp_fusion=False,
    )
    return y


def _fp8(x: Tensor, weight: DeviceLinear, bias: Tensor | None, place: Place) -> Tensor:
    """The same of E4M3 weights and activations rounded to E4M3, by the token or by the weight's groups of inputs."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    groups = weight.scales.shape[1]
    rounded = x.new_empty((rows, inputs), dtype=torch.uint8)
    x_scales = x.new_empty((rows, groups), dtype=torch.float32)
    round_fp8_kernel[(rows,)](
        x,
        rounded,
        x_scales,
        INPUTS=inputs,
        GROUP=weight.group,
        PADDED_GROUPS=padded(groups),
        PADDED_GROUP=padded(weight.group),
    )
    y = x.new_empty((rows, outputs))
    tile = _fp8_tile(rows, place.deterministic)
    kind = torch.uint8 if INTERPRETED else torch.float8_e4m3fn
    fp8_linear_kernel[_grid(outputs, rows, tile)](
        rounded.view(kind),
        x_scales,
        weight.data.view(kind),
        weight.scales,
        y if bias is None else bias,
        y,
        rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        ROWS=weight.rows,
        GROUP=weight.group,
        BIASED=bias is not None,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs,
        BYTES=INTERPRETED,
        OUT=TYPES[x.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def embedding(op: Embedding, binding: Binding, place: Place) -> DevicePart:
    """Rows of a matrix, expanded where it is packed; of a rank's part, zeros where it has not the token's."""
    weight, dtype = binding.weight(op.weight), binding.dtype
    assert isinstance(weight, Tensor | DeviceLinear)

    def rows_of(which: Tensor) -> Tensor:
        return weight.index_select(0, which) if isinstance(weight, Tensor) else numbers_of(weight, which).to(dtype)

    def run_part(step: DeviceStep) -> Tensor:
        places, count = step.token_ids - op.first, weight.shape[0]
        there = (places >= 0) & (places < count)
        return torch.where(there[:, None], rows_of(places.clamp(0, count - 1)), 0)

    return DevicePart(place, run_part if op.ids is not None else lambda step: rows_of(step.token_ids))


def numbers_of(weight: DeviceLinear, which: Tensor) -> Tensor:
    """float32 [len(which), inputs]: some of a packed matrix's outputs."""
    data = weight.data.index_select(0, which)
    if weight.kind == "int4":
        both = torch.stack((data & 15, data >> 4), 1).view(len(which), 2, -1, NIBBLE_RUN // 2)
        integers = both.transpose(1, 2).reshape(len(which), -1).to(torch.int16)
        assert weight.zeros is not None
        integers = integers - weight.zeros.index_select(0, which).repeat_interleave(weight.group, 1)
        numbers = integers.float()
    else:
        numbers = data.view(torch.int8 if weight.kind == "int8" else torch.float8_e4m3fn).float()
    scales = weight.scales.index_select(0, which // weight.rows).float()
    return numbers * scales.repeat_interleave(weight.group, 1)[:, : weight.shape[1]]
