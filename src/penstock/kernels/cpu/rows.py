"""What happens to each row between the projections, natively."""

from typing import Any

import torch
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.dispatch import Binding, Implementation, Kernel, StepState, overwrites_input
from penstock.kernels.signature import AddRmsNorm, GatedActivation, HeadNorm, Operation, RmsNorm, Rotary, WeightRef

_DTYPES = (torch.float32, torch.bfloat16)


def _supports(_op: object, binding: Binding) -> str | None:
    if OBSTACLE is not None:
        return OBSTACLE
    return None if binding.dtype in _DTYPES else f"there is no native kernel for {binding.dtype}"


def _supports_in_place(op: Operation, binding: Binding) -> str | None:
    return _supports(op, binding) or overwrites_input(op, binding)


def _norm_weight(binding: Binding, ref: WeightRef, unit_offset: bool) -> Tensor:
    weight = binding.tensor(ref).float()
    return (1.0 + weight if unit_offset else weight).contiguous()


def _rms_norm(op: RmsNorm, binding: Binding) -> Kernel:
    weight, eps = _norm_weight(binding, op.weight, op.unit_offset), op.eps

    def run(_step: StepState, x: Tensor) -> Tensor:
        output = torch.empty_like(x)
        native.rms_norm(x, weight, eps, output)
        return output

    return run


def _add_rms_norm(op: AddRmsNorm, binding: Binding) -> Kernel:
    weight, eps = _norm_weight(binding, op.weight, op.unit_offset), op.eps
    in_place = binding.reusable[1]

    def run(_step: StepState, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = residual if in_place else residual.clone()
        output = torch.empty_like(x)
        native.add_rms_norm(x, total, weight, eps, output)
        return output, total

    return run


def _head_norm(op: HeadNorm, binding: Binding) -> Kernel:
    query = _norm_weight(binding, op.query_weight, op.unit_offset)
    key = _norm_weight(binding, op.key_weight, op.unit_offset)
    query_heads, kv_heads, eps = op.heads.query_heads, op.heads.kv_heads, op.eps

    def run(_step: StepState, qkv: Tensor) -> Tensor:
        native.head_norm(qkv, query_heads, kv_heads, query, key, eps)
        return qkv

    return run


def _rotary(op: Rotary, binding: Binding) -> Kernel:
    table, query_heads, kv_heads = binding.rope_table(op.rope), op.heads.query_heads, op.heads.kv_heads

    def run(step: StepState, qkv: Tensor) -> Tensor:
        entries = table.reaching(max(step.batch.context_lengths) - 1)
        native.rotary(qkv, query_heads, kv_heads, entries, step.batch.positions)
        return qkv

    return run


def _gated_activation(op: GatedActivation, _binding: Binding) -> Kernel:
    activation = op.activation

    def run(_step: StepState, gate_up: Tensor) -> Tensor:
        output = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        native.gated_activation(gate_up, activation, output)
        return output

    return run


def _native(operation: Any, prepare: Any, supports: Any = _supports) -> Implementation:
    return Implementation("native", operation, True, supports, prepare)


ROWS: tuple[Implementation, ...] = (
    _native(RmsNorm, _rms_norm),
    _native(AddRmsNorm, _add_rms_norm),
    _native(HeadNorm, _head_norm, _supports_in_place),
    _native(Rotary, _rotary, _supports_in_place),
    _native(GatedActivation, _gated_activation),
)
