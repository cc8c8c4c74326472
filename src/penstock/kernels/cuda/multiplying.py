"""How linear weights are multiplied on a GPU, and read as embeddings."""

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from penstock.kernels.cuda.fp8 import fp8_linear_kernel, round_fp8_kernel
from penstock.kernels.cuda.linear import integer_linear_kernel, linear_kernel, round_rows_kernel
from penstock.kernels.cuda.place import INTERPRETED, TYPES, Place, padded
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.cuda.step import DeviceStep
from penstock.kernels.cuda.weights import FP8_GROUP, NIBBLE_RUN, DeviceLinear
from penstock.kernels.dispatch import Binding
from penstock.kernels.signature import Embedding, Linear

# Rows of a tile where few come, and where many do; where sums must not depend on that, always the second.
_FEW, _MANY = 16, 64
_BLOCK_N, _BLOCK_K = 64, 64


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
        return DevicePart(place, lambda _step, x: _expanded(x, weight, bias, place))
    assert isinstance(weight, DeviceLinear)
    if weight.kind == "int8" and weight.whole_rows:
        return DevicePart(place, lambda _step, x: _integers(x, weight, bias))
    if weight.kind == "fp8":
        return DevicePart(place, lambda _step, x: _fp8(x, weight, bias, place))
    return DevicePart(place, lambda _step, x: _expanded(x, weight, bias, place))


def _grid(outputs: int, rows: int, block_m: int) -> tuple[int, int]:
    return triton.cdiv(outputs, _BLOCK_N), triton.cdiv(rows, block_m)


def _expanded(x: Tensor, weight: Tensor | DeviceLinear, bias: Tensor | None, place: Place) -> Tensor:
    """x · weightᵀ, whose numbers are made on the way to the multiplication."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    y = x.new_empty((rows, outputs))
    block_m = _FEW if rows <= _FEW and not place.deterministic else _MANY
    packed = weight if isinstance(weight, DeviceLinear) else None
    data = weight if packed is None else packed.data
    linear_kernel[_grid(outputs, rows, block_m)](
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
        BLOCK_M=block_m,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
        TYPE=TYPES[x.dtype],
        WIDE=place.wide(x.dtype),
        OUT=TYPES[x.dtype],
    )
    return y


def _integers(x: Tensor, weight: DeviceLinear, bias: Tensor | None) -> Tensor:
    """The same of int8 weights and rows rounded to int8. Integers are summed exactly, whatever the tiles are."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    integers = x.new_empty((rows, inputs), dtype=torch.int8)
    row_scales = x.new_empty((rows,), dtype=torch.float32)
    round_rows_kernel[(rows,)](x, integers, row_scales, INPUTS=inputs, PADDED=padded(inputs))
    y = x.new_empty((rows, outputs))
    block_m = _FEW if rows <= _FEW else _MANY
    integer_linear_kernel[_grid(outputs, rows, block_m)](
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
        BLOCK_M=block_m,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
        EXACT=INTERPRETED,
        OUT=TYPES[x.dtype],
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
    block_m = _FEW if rows <= _FEW and not place.deterministic else _MANY
    kind = torch.uint8 if INTERPRETED else torch.float8_e4m3fn
    fp8_linear_kernel[_grid(outputs, rows, block_m)](
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
        BLOCK_M=block_m,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=FP8_GROUP,
        BYTES=INTERPRETED,
        OUT=TYPES[x.dtype],
    )
    return y


def embedding(op: Embedding, binding: Binding, place: Place) -> DevicePart:
    """Rows of a matrix, expanded where it is packed."""
    weight, dtype = binding.weight(op.weight), binding.dtype
    if isinstance(weight, Tensor):
        return DevicePart(place, lambda step: weight.index_select(0, step.token_ids))
    assert isinstance(weight, DeviceLinear)

    def run(step: DeviceStep) -> Tensor:
        return numbers_of(weight, step.token_ids).to(dtype)

    return DevicePart(place, run)


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
