"""What each operation becomes on a GPU: a launch of our kernels, or torch's own where that is as good."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.collective import AllReduce, Gather
from penstock.kernels.cuda.attending import attention, cache_of, lacks_memory
from penstock.kernels.cuda.cache import rotate_and_store_kernel
from penstock.kernels.cuda.meeting import all_reduce, gather, takes_meeting
from penstock.kernels.cuda.mixing import experts, head_linear, route, takes_experts, takes_head_linear, takes_route
from penstock.kernels.cuda.multiplying import embedding, linear, takes
from penstock.kernels.cuda.place import TYPES, Place, padded
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.cuda.rows import gated_kernel, head_norm_kernel, layer_norm_kernel, norm_kernel
from penstock.kernels.cuda.step import DeviceStep
from penstock.kernels.cuda.weights import ROW_STEPS
from penstock.kernels.dispatch import Binding, Implementation, scale_factor
from penstock.kernels.reference import query_factors
from penstock.kernels.rope import waves
from penstock.kernels.signature import (
    Activation,
    Add,
    AddRmsNorm,
    Attention,
    Columns,
    Concatenate,
    Embedding,
    Experts,
    GatedActivation,
    HeadLayout,
    HeadLinear,
    HeadNorm,
    LayerNorm,
    Linear,
    Positions,
    QueryScale,
    RmsNorm,
    Rotary,
    Route,
    Scale,
    SelectRows,
    SigmoidGate,
    SoftCap,
    WriteKV,
)

# Columns of a gated activation that a program takes.
_GATED_COLUMNS = 1024
# Heads that a program takes of what is done head by head, where there are many tokens.
_HEADS = 8
# A row of at least this number of values is normed by twice the threads.
_WIDE_ROW = 4096


def _rms_norm(op: RmsNorm, binding: Binding, place: Place) -> DevicePart:
    weight = binding.tensor(op.weight)

    def run(_step: DeviceStep, x: Tensor) -> Tensor:
        return _normed(x, None, weight, op.eps, op.unit_offset)[0]

    return DevicePart(place, run)


def _add_rms_norm(op: AddRmsNorm, binding: Binding, place: Place) -> DevicePart:
    weight = binding.tensor(op.weight)

    def run(_step: DeviceStep, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return _normed(x, residual, weight, op.eps, op.unit_offset)

    return DevicePart(place, run)


def _normed(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, unit_offset: bool) -> tuple[Tensor, Tensor]:
    """The norm of x or of x + residual, and what was normed."""
    normed = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    norm_kernel[(x.shape[0],)](
        x,
        x if residual is None else residual,
        weight,
        normed,
        total,
        eps,
        WIDTH=x.shape[1],
        PADDED=padded(x.shape[1]),
        ADDS=residual is not None,
        UNIT_OFFSET=unit_offset,
        TYPE=TYPES[x.dtype],
        num_warps=8 if x.shape[1] >= _WIDE_ROW else 4,
    )
    return normed, total


def _layer_norm(op: LayerNorm, binding: Binding, place: Place) -> DevicePart:
    weight, bias = binding.tensor(op.weight), None if op.bias is None else binding.tensor(op.bias)

    def run(_step: DeviceStep, x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        layer_norm_kernel[(x.shape[0],)](
            x,
            weight,
            weight if bias is None else bias,
            result,
            op.eps,
            WIDTH=x.shape[1],
            PADDED=padded(x.shape[1]),
            BIASED=bias is not None,
            TYPE=TYPES[x.dtype],
            num_warps=8 if x.shape[1] >= _WIDE_ROW else 4,
        )
        return result

    return DevicePart(place, run)


def _positions(op: Positions, binding: Binding, place: Place) -> DevicePart:
    table = binding.tensor(op.weight)
    return DevicePart(place, lambda step: table.index_select(0, step.positions))


def _query_scale(op: QueryScale, _binding: Binding, place: Place) -> DevicePart:
    width = op.heads.query_width

    def run(step: DeviceStep, qkv: Tensor) -> Tensor:
        factors = query_factors(op, step.positions)[:, None]
        return torch.cat(((qkv[:, :width].float() * factors).to(qkv.dtype), qkv[:, width:]), dim=1)

    return DevicePart(place, run)


def _blocks_of(heads: HeadLayout, tokens: int) -> tuple[int, int]:
    """How many heads of a fused row a program takes, and how many programs a row: of few tokens the most."""
    width = heads.fused_width // heads.head_dim
    size = min(_HEADS, padded(width)) if tokens > ROW_STEPS[1] else 1
    return size, -(-width // size)


def _head_norm(op: HeadNorm, binding: Binding, place: Place) -> DevicePart:
    query, key, heads = binding.tensor(op.query_weight), binding.tensor(op.key_weight), op.heads
    if op.whole:
        parts = (heads.query_width, heads.kv_width, heads.kv_width)

        def run_whole(_step: DeviceStep, qkv: Tensor) -> Tensor:
            queries, keys, values = (part.contiguous() for part in qkv.split(parts, dim=1))
            normed = _normed(queries, None, query, op.eps, op.unit_offset)[0]
            return torch.cat((normed, _normed(keys, None, key, op.eps, op.unit_offset)[0], values), dim=1)

        return DevicePart(place, run_whole)

    def run(_step: DeviceStep, qkv: Tensor) -> Tensor:
        size, blocks = _blocks_of(heads, qkv.shape[0])
        result = torch.empty_like(qkv)
        head_norm_kernel[(qkv.shape[0], blocks)](
            qkv,
            query,
            key,
            result,
            op.eps,
            QUERY_HEADS=heads.query_heads,
            KV_HEADS=heads.kv_heads,
            SIZE=heads.head_dim,
            PADDED=padded(heads.head_dim),
            HEADS=size,
            UNIT_OFFSET=op.unit_offset,
            VALUES=op.values,
            TYPE=TYPES[qkv.dtype],
        )
        return result

    return DevicePart(place, run)


def _rotary(op: Rotary, binding: Binding, place: Place) -> DevicePart:
    # All positions that there can be, so that its memory never moves.
    angles = binding.rope_table(op.rope).on(place.device, place.longest - 1)
    turning = angles, waves(op.rope).to(place.device)

    def storing(store: WriteKV) -> DevicePart:
        return DevicePart(place, _rotate_and_store(op.heads, turning, store, binding))

    return DevicePart(place, _rotate_and_store(op.heads, turning, None, binding), storing=storing)


def _write_kv(op: WriteKV, binding: Binding, place: Place) -> DevicePart:
    return DevicePart(place, _rotate_and_store(op.heads, None, op, binding), stores=op)


def _rotate_and_store(
    heads: HeadLayout, turning: tuple[Tensor, Tensor] | None, store: WriteKV | None, binding: Binding
) -> Callable[..., Tensor | None]:
    """Turns query and key heads by angles and waves, if there are any, and stores key and value heads, if asked to."""
    cache = None if store is None else cache_of(binding, store.layer)
    padding = padded(heads.head_dim)

    def run(step: DeviceStep, qkv: Tensor) -> Tensor | None:
        result = qkv if turning is None else torch.empty_like(qkv)
        angles, frequencies = turning or (qkv, qkv)
        # Without a cache, of a token's entries the first alone is of use; the others are behind them.
        entries = len(step.entry_tokens) if cache is not None else qkv.shape[0]
        size, blocks = _blocks_of(heads, qkv.shape[0])
        group = 0 if cache is None else cache.table
        table = step.tables[group]
        planes = (qkv,) * 4 if cache is None else (cache.keys, cache.values, cache.key_scales, cache.value_scales)
        rotate_and_store_kernel[(entries, blocks)](
            qkv,
            result,
            angles,
            frequencies,
            0 if turning is None else len(angles),
            step.positions,
            step.entry_rows,
            step.entry_tokens,
            *planes,
            step.dropped[group],
            table,
            table.stride(0),
            QUERY_HEADS=heads.query_heads,
            KV_HEADS=heads.kv_heads,
            SIZE=heads.head_dim,
            PADDED=padding,
            HEADS=size,
            BLOCK_SIZE=1 if cache is None else cache.block_size,
            BLOCK_STRIDE=0 if cache is None else cache.block_stride,
            SCALE_STRIDE=0 if cache is None else cache.scale_stride,
            ROTATES=turning is not None,
            FAR=turning is not None and step.far,
            STORES=cache is not None,
            LATENT=heads.latent,
            KEPT="plain" if cache is None else cache.kept,
            TYPE=TYPES[qkv.dtype],
        )
        return None if turning is None else result

    return run


def _gated_activation(op: GatedActivation, _binding: Binding, place: Place) -> DevicePart:
    def run(_step: DeviceStep, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        result = gate_up.new_empty((rows, width))
        block = min(_GATED_COLUMNS, padded(width))
        gated_kernel[(rows, -(-width // block))](
            gate_up, result, WIDTH=width, BLOCK=block, GATE=op.activation, TYPE=TYPES[gate_up.dtype]
        )
        return result

    return DevicePart(place, run)


def _sigmoid_gate(_op: SigmoidGate, _binding: Binding, place: Place) -> DevicePart:
    return DevicePart(place, lambda _step, x, gate: (x.float() * torch.sigmoid(gate.float())).to(x.dtype))


def _activation(op: Activation, _binding: Binding, place: Place) -> DevicePart:
    if op.activation in ("silu", "relu"):
        plain = F.silu if op.activation == "silu" else F.relu
        return DevicePart(place, lambda _step, x: plain(x))
    form = "tanh" if op.activation == "gelu_tanh" else "none"
    return DevicePart(place, lambda _step, x: F.gelu(x, approximate=form))


def _add(_op: Add, _binding: Binding, place: Place) -> DevicePart:
    return DevicePart(place, lambda _step, x, y: x + y)


def _concatenate(op: Concatenate, _binding: Binding, place: Place) -> DevicePart:
    heads = op.heads, -1
    return DevicePart(
        place, lambda _step, x, y: torch.cat((x.unflatten(1, heads), y.unflatten(1, heads)), dim=2).flatten(1)
    )


def _columns(op: Columns, _binding: Binding, place: Place) -> DevicePart:
    last = op.first + op.count
    return DevicePart(
        place, lambda _step, x: x.unflatten(1, (op.heads, -1))[:, :, op.first : last].flatten(1).contiguous()
    )


def _scale(op: Scale, binding: Binding, place: Place) -> DevicePart:
    factor = scale_factor(op, binding)
    return DevicePart(place, lambda _step, x: x * factor)


def _soft_cap(op: SoftCap, _binding: Binding, place: Place) -> DevicePart:
    return DevicePart(place, lambda _step, x: op.cap * torch.tanh(x / op.cap))


def _select_rows(_op: SelectRows, _binding: Binding, place: Place) -> DevicePart:
    return DevicePart(place, lambda step, x: x.index_select(0, step.wanted))


def _takes_slots(op: WriteKV | Attention, binding: Binding) -> str | None:
    planes = binding.kv.planes(op.layer)
    if binding.kv.layout != "slots":
        return "the cache is laid out for other kernels"
    if op.stripe is not None:
        return "there is no kernel on CUDA for a part of each context"
    # Two values to a byte have scales of another shape.
    return (
        "there is no kernel on CUDA for a cache of int4" if planes["key"].dtype is torch.uint8 else _fits(op, binding)
    )


def _fits(_op: object, binding: Binding) -> str | None:
    return None if binding.dtype in TYPES else f"there is no kernel on CUDA for {binding.dtype}"


def implementations(place: Place) -> tuple[Implementation, ...]:
    """Every operation, on `place`."""

    def of(
        operation: Any, prepare: Callable[..., DevicePart], supports: Any = _fits, row_function: bool = True
    ) -> Implementation:
        return Implementation(
            "triton",
            operation,
            row_function,
            supports,
            lambda op, binding: replace(prepare(op, binding, place), selected=binding.selected),
        )

    def attends(op: Attention, binding: Binding) -> str | None:
        if op.bias is not None:
            return "there is no kernel on CUDA for biases by distance"
        return _takes_slots(op, binding) or lacks_memory(op, binding, place)

    same = place.deterministic
    return (
        of(Embedding, embedding, takes),
        of(Positions, _positions),
        # torch's products, and the size of their tiles here, are chosen by the number of rows.
        of(Linear, linear, takes, row_function=same),
        of(RmsNorm, _rms_norm),
        of(AddRmsNorm, _add_rms_norm),
        of(LayerNorm, _layer_norm),
        of(HeadNorm, _head_norm),
        of(Rotary, _rotary),
        of(QueryScale, _query_scale),
        of(WriteKV, _write_kv, _takes_slots),
        of(Attention, attention, attends, row_function=same),
        of(GatedActivation, _gated_activation),
        of(SigmoidGate, _sigmoid_gate),
        of(Route, route, takes_route, row_function=same),
        of(Experts, experts, takes_experts, row_function=same),
        of(HeadLinear, head_linear, takes_head_linear, row_function=same),
        of(Activation, _activation),
        of(Add, _add),
        of(Concatenate, _concatenate),
        of(Columns, _columns),
        of(Scale, _scale),
        of(SoftCap, _soft_cap),
        of(SelectRows, _select_rows),
        # In another order of ranks, libraries add up as many rows as there are.
        of(AllReduce, all_reduce, takes_meeting, row_function=same),
        of(Gather, gather, takes_meeting),
    )
