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
from penstock.kernels.cuda.routing import route_kernel, sort_experts_kernel
from penstock.kernels.cuda.rows import gated_kernel
from penstock.kernels.cuda.step import DeviceStep
from penstock.kernels.cuda.weights import DeviceLinear
from penstock.kernels.dispatch import Binding
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import Experts, HeadLinear, Route

_COLUMNS = 1024
# Choices that are read at a time when they are sorted.
_SORTED = 1024


class _Tile(NamedTuple):
    """Rows, outputs and bytes of inputs that a program multiplies at a time, its warps, and tiles read ahead."""

    rows: int
    outputs: int
    input_bytes: int
    warps: int = 4
    stages: int = 3


# Where sums must not depend on what is in the batch, always the first; the last takes 144 KB of shared memory.
_FEW = _Tile(16, 64, 256)
_MANY = _Tile(64, 128, 128)
_MANY_OF_LARGE = _Tile(128, 256, 128, warps=8)
_LARGE_TILE_BYTES = 150 << 10
# Rows of an expert, on average, from which on its weights are better read rarely.
_MANY_ROWS = 32


class _Blocks(NamedTuple):
    """Choices in order of experts, cut into blocks that have one expert each, as `sort_experts_kernel` says."""

    source: Tensor
    place: Tensor
    expert: Tensor
    first: Tensor
    end: Tensor


def takes_route(op: Route, binding: Binding) -> str | None:
    """`supports` of a router."""
    return None if isinstance(binding.weight(op.weight), Tensor) else "the router's weight is packed"


def takes_experts(op: Experts, binding: Binding) -> str | None:
    """`supports` of experts."""
    if op.placement is not None:
        return "there is no kernel for some of the experts"
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

    routing = op.routing
    constants = {
        "EXPERTS": routing.experts,
        "PADDED": padded(routing.experts),
        "CHOSEN": routing.chosen,
        "SOFTMAX": routing.score == "softmax",
        "CORRECTED": correction is not None,
        "SCALED": scales is not None,
        "RENORMALISED": routing.renormalise,
        "EPSILON": routing.epsilon,
        "SCALE": routing.scale,
        "GROUPS": routing.groups,
        "PADDED_GROUPS": padded(routing.groups),
        "PADDED_GROUP": padded(routing.experts // routing.groups),
        "KEPT": routing.kept_groups,
        "BEST": routing.best_of_group,
    }

    def run(_step: DeviceStep, x: Tensor) -> Tensor:
        wide = x.float()
        logits = expanded(wide, weight, bias, place) if place.deterministic else F.linear(wide, weight, bias)
        routed = logits.new_empty((len(logits), 2 * routing.chosen))
        route_kernel[(len(logits),)](
            logits,
            logits if correction is None else correction,
            logits if scales is None else scales,
            routed,
            **constants,
            num_warps=1,
        )
        return routed

    return DevicePart(place, run)


def experts(op: Experts, binding: Binding, place: Place) -> DevicePart:
    """What each row's experts make of it, added up."""
    gate_up, down = binding.weight(op.gate_up), binding.weight(op.down)
    assert isinstance(gate_up, Tensor | DeviceLinear) and isinstance(down, Tensor | DeviceLinear)
    gate_up_bias, down_bias = (None if ref is None else binding.tensor(ref) for ref in (op.gate_up_bias, op.down_bias))

    def run(_step: DeviceStep, x: Tensor, routed: Tensor) -> Tensor:
        rows, width = x.shape
        chosen = routed.shape[1] // 2
        tile = tile_of(rows * chosen // op.experts, place)
        blocks = _sorted(routed, op.experts, tile.rows)
        both = _grouped(x, gate_up, gate_up_bias, blocks, "source", op.experts, tile, place)
        hidden = both.new_empty((both.shape[0], both.shape[1] // 2))
        block = min(_COLUMNS, padded(hidden.shape[1]))
        gated_kernel[(len(hidden), triton.cdiv(hidden.shape[1], block))](
            both, hidden, WIDTH=hidden.shape[1], BLOCK=block, GATE=op.activation, TYPE=TYPES[x.dtype]
        )
        made = _grouped(hidden, down, down_bias, blocks, "place", op.experts, tile, place)
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
        tile = tile_of(len(x), place)
        made = _grouped(x.view(len(x) * heads, -1), weight, None, None, "heads", heads, tile, place)
        return made.view(len(x), -1)

    return DevicePart(place, run)


def tile_of(rows: int, place: Place) -> _Tile:
    """For that number of rows of an expert, on average."""
    if rows < _MANY_ROWS or place.deterministic:
        return _FEW
    return _MANY_OF_LARGE if place.shared >= _LARGE_TILE_BYTES else _MANY


def _sorted(routed: Tensor, experts: int, rows: int) -> _Blocks:
    """What rows were routed to [rows, 2 · chosen], in order of experts, and in blocks of up to `rows` rows."""
    chosen = routed.shape[1] // 2
    choices = len(routed) * chosen
    few = choices <= experts
    most = choices if few else choices // rows + experts
    source, place, expert, first, end = (
        torch.empty(count, dtype=torch.int32, device=routed.device) for count in (choices, choices, most, most, most)
    )
    sort_experts_kernel[(experts,)](
        routed,
        source,
        place,
        expert,
        first,
        end,
        choices,
        EXPERTS=experts,
        CHOSEN=chosen,
        ROWS=rows,
        FEW=few,
        BLOCK=_SORTED,
    )
    return _Blocks(source, place, expert, first, end)


def _grouped(
    x: Tensor,
    weight: Tensor | DeviceLinear,
    bias: Tensor | None,
    blocks: _Blocks | None,
    by: str,
    experts: int,
    tile: _Tile,
    place: Place,
) -> Tensor:
    """Rows of x times the transposed weights of their experts, and their biases, as `grouped_linear_kernel` says."""
    outputs, inputs = weight.shape[0] // experts, weight.shape[1]
    packed = weight if isinstance(weight, DeviceLinear) else None
    data = weight if packed is None else packed.data
    each = len(x) // experts
    count = experts * triton.cdiv(each, tile.rows) if blocks is None else len(blocks.expert)
    source, _, expert, first, end = blocks or (x,) * 5
    y = x.new_empty((len(x) if by != "source" else len(source), outputs))
    grouped_linear_kernel[(triton.cdiv(outputs, tile.outputs) * count,)](
        x,
        data,
        data if packed is None else packed.scales,
        data if packed is None or packed.zeros is None else packed.zeros,
        data if bias is None else bias,
        y,
        expert,
        first,
        end,
        source,
        each,
        EXPERTS=experts,
        OUTPUTS=outputs,
        INPUTS=inputs,
        GROUP=inputs if packed is None else packed.group,
        KIND="plain" if packed is None else packed.kind,
        BIASED=bias is not None,
        BY=by,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.input_bytes // x.element_size(),
        TYPE=TYPES[x.dtype],
        WIDE=place.wide(x.dtype),
        OUT=TYPES[x.dtype],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y
