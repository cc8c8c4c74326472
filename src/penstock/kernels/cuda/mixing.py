"""Mixtures of experts on a GPU: nothing of it waits for the processor, so that steps can be captured."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from penstock.kernels.cuda.grouped import add_experts_kernel, grouped_linear_kernel
from penstock.kernels.cuda.multiplying import expanded
from penstock.kernels.cuda.place import TYPES, Place, padded
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.cuda.rows import gated_kernel
from penstock.kernels.cuda.step import DeviceStep
from penstock.kernels.cuda.weights import DeviceLinear
from penstock.kernels.dispatch import Binding
from penstock.kernels.mixing import route as choose
from penstock.kernels.signature import Experts, HeadLinear, Route, WeightRef

# Rows, outputs and inputs that a program multiplies at a time.
_ROWS, _OUTPUTS, _INPUTS = 16, 64, 64
_COLUMNS = 1024


class _Blocks(NamedTuple):
    """Rows in order of their experts, cut into blocks that have one expert each.

    Attributes:
        order: the choices, row by row, that stand there.
        place: where each choice stands.
        expert, first, end: of each block; an expert beyond the last where a block has no rows.
    """

    order: Tensor
    place: Tensor
    expert: Tensor
    first: Tensor
    end: Tensor


def takes_route(op: Route, binding: Binding) -> str | None:
    """`supports` of a router."""
    return None if isinstance(binding.weight(op.weight), Tensor) else "the router's weight is packed"


def takes_experts(op: Experts, binding: Binding) -> str | None:
    """`supports` of experts."""
    return _packed_for_others((op.gate_up, op.down), binding)


def _packed_for_others(refs: Sequence[WeightRef], binding: Binding) -> str | None:
    for ref in refs:
        weight = binding.weight(ref)
        if isinstance(weight, DeviceLinear) and weight.kind == "fp8":
            return "there is no kernel on CUDA for experts in FP8"
        if not isinstance(weight, Tensor | DeviceLinear):
            return "the weights are packed for other kernels"
    return None


def route(op: Route, binding: Binding, place: Place) -> DevicePart:
    """A router, which computes in float32."""
    weight = binding.tensor(op.weight).float()
    bias, correction, scales = (
        None if ref is None else binding.tensor(ref).float() for ref in (op.bias, op.correction, op.scales)
    )

    def run(_step: DeviceStep, x: Tensor) -> Tensor:
        wide = x.float()
        logits = expanded(wide, weight, bias, place) if place.deterministic else F.linear(wide, weight, bias)
        return choose(logits, correction, op.routing, scales)

    return DevicePart(place, run)


def experts(op: Experts, binding: Binding, place: Place) -> DevicePart:
    """What each row's experts make of it, added up."""
    gate_up, down = binding.weight(op.gate_up), binding.weight(op.down)
    assert isinstance(gate_up, Tensor | DeviceLinear) and isinstance(down, Tensor | DeviceLinear)
    gate_up_bias, down_bias = (None if ref is None else binding.tensor(ref) for ref in (op.gate_up_bias, op.down_bias))

    def run(_step: DeviceStep, x: Tensor, routed: Tensor) -> Tensor:
        rows, width = x.shape
        chosen = routed.shape[1] // 2
        blocks = _blocks(routed[:, :chosen], op.experts)
        both = _grouped(x, gate_up, gate_up_bias, blocks, blocks.order // chosen, op.experts, place)
        hidden = both.new_empty((both.shape[0], both.shape[1] // 2))
        block = min(_COLUMNS, padded(hidden.shape[1]))
        gated_kernel[(len(hidden), triton.cdiv(hidden.shape[1], block))](
            both, hidden, WIDTH=hidden.shape[1], BLOCK=block, GATE=op.activation, TYPE=TYPES[x.dtype]
        )
        made = _grouped(hidden, down, down_bias, blocks, torch.arange(len(hidden), device=x.device), op.experts, place)
        result, block = torch.empty_like(x), min(_COLUMNS, padded(width))
        add_experts_kernel[(rows, triton.cdiv(width, block))](
            made, routed, blocks.place, result, WIDTH=width, CHOSEN=chosen, BLOCK=block, TYPE=TYPES[x.dtype]
        )
        return result

    return DevicePart(place, run)


def takes_head_linear(op: HeadLinear, binding: Binding) -> str | None:
    """`supports` of a projection of each head."""
    return _packed_for_others((op.weight,), binding)


def head_linear(op: HeadLinear, binding: Binding, place: Place) -> DevicePart:
    """What each head's matrix makes of its columns: heads are as experts that get each row's part."""
    weight, heads = binding.weight(op.weight), op.heads
    assert isinstance(weight, Tensor | DeviceLinear)

    def run(_step: DeviceStep, x: Tensor) -> Tensor:
        rows, each = x.shape[0], -(-x.shape[0] // _ROWS)
        block = torch.arange(heads * each, device=x.device)
        head, turn = block // each, block % each
        place_of = torch.arange(heads * rows, device=x.device)
        source = place_of % rows * heads + place_of // rows
        blocks = _Blocks(source, place_of, head, head * rows + turn * _ROWS, (head + 1) * rows)
        made = _grouped(x.reshape(rows * heads, -1), weight, None, blocks, source, heads, place)
        return made.view(heads, rows, -1).transpose(0, 1).flatten(1).contiguous()

    return DevicePart(place, run)


def _blocks(ids: Tensor, experts: int) -> _Blocks:
    """The choices [rows, chosen] in order of experts, and by rows in one expert."""
    flat = ids.flatten().to(torch.int64)
    ordered, order = flat.sort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(flat), device=flat.device))
    every = torch.arange(experts + 1, device=flat.device)
    begins = torch.searchsorted(ordered, every)
    counts = begins[1:] - begins[:-1]
    # As many blocks as there can be: of each expert with rows, all but one are full.
    most = len(flat) // _ROWS + min(experts, len(flat))
    ends = ((counts + _ROWS - 1) // _ROWS).cumsum(0)
    number = torch.arange(most, device=flat.device)
    expert = torch.searchsorted(ends, number, right=True)
    known = expert.clamp(max=experts - 1)
    before = torch.where(known > 0, ends[known - 1], 0)
    first = begins[known] + (number - before) * _ROWS
    return _Blocks(order, place, expert, first, begins[known + 1])


def _grouped(
    x: Tensor,
    weight: Tensor | DeviceLinear,
    bias: Tensor | None,
    blocks: _Blocks,
    source: Tensor,
    experts: int,
    place: Place,
) -> Tensor:
    """Rows `source` of x times the transposed weights of their experts, and their biases, in order of experts."""
    outputs, inputs = weight.shape[0] // experts, weight.shape[1]
    packed = weight if isinstance(weight, DeviceLinear) else None
    data = weight if packed is None else packed.data
    y = x.new_empty((len(source), outputs))
    grouped_linear_kernel[(triton.cdiv(outputs, _OUTPUTS), len(blocks.expert))](
        x,
        data,
        data if packed is None else packed.scales,
        data if packed is None or packed.zeros is None else packed.zeros,
        data if bias is None else bias,
        y,
        blocks.expert,
        blocks.first,
        blocks.end,
        source,
        EXPERTS=experts,
        OUTPUTS=outputs,
        INPUTS=inputs,
        GROUP=inputs if packed is None else packed.group,
        KIND="plain" if packed is None else packed.kind,
        BIASED=bias is not None,
        BLOCK_M=_ROWS,
        BLOCK_N=_OUTPUTS,
        BLOCK_K=_INPUTS,
        TYPE=TYPES[x.dtype],
        WIDE=place.wide(x.dtype),
        OUT=TYPES[x.dtype],
    )
    return y
