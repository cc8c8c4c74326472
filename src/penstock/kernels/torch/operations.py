"""Faster implementations in torch: packed matrix products, fused norms, and buffers overwritten where they are free."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.dispatch import (
    Binding,
    Implementation,
    Kernel,
    StepState,
    fits_always,
    overwrites_input,
    scale_factor,
)
from penstock.kernels.reference import rows_of_part, takes_plain
from penstock.kernels.signature import (
    AddRmsNorm,
    Embedding,
    GatedActivation,
    HeadNorm,
    Linear,
    RmsNorm,
    Rotary,
    Scale,
    SelectRows,
    SoftCap,
    WriteKV,
)
from penstock.kernels.torch.attention import ATTENTION
from penstock.kernels.torch.packing import PackedLinear, packing_obstacle

# Up to this width, one fused pass over twice the columns costs less than several over them.
_MIRRORED_WIDTH = 1024


def _embedding(op: Embedding, binding: Binding) -> Kernel:
    table = binding.tensor(op.weight)
    if op.ids is not None:
        return lambda step: rows_of_part(table, step.batch.token_ids - op.first)
    return lambda step: table.index_select(0, step.batch.token_ids)


def _packed_linear_supports(op: Linear, binding: Binding) -> str | None:
    weight = binding.weight(op.weight)
    if isinstance(weight, PackedLinear):
        return None
    if not isinstance(weight, Tensor):
        return "the weight is packed for other kernels"
    return packing_obstacle(weight.dtype) or "the weight was loaded without packing"


def _packed_linear(op: Linear, binding: Binding) -> Kernel:
    weight = binding.weight(op.weight)
    assert isinstance(weight, PackedLinear)
    data = weight.data
    bias = None if op.bias is None else binding.tensor(op.bias)
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda _step, x: product(x, data, bias, "none", [], "")


def _normaliser(weight: Tensor, eps: float, unit_offset: bool) -> Callable[[Tensor], Tensor]:
    """A function x → RmsNorm(x) · weight. It rounds once, at the end, and makes fewer passes than torch's own."""
    dtype, width = weight.dtype, weight.shape[0]
    # 1 + w would lose w's last bits in bfloat16, so the weight is float32.
    scale = 1.0 + weight.float() if unit_offset else weight.float()
    if width <= _MIRRORED_WIDTH:
        # The mean of (x, -x) is 0 and its variance the mean of x², so its layer norm is (RmsNorm(x), -RmsNorm(x)).
        twice, shape = torch.cat((scale, scale)), (2 * width,)
        bias = torch.zeros_like(twice)
        return lambda x: F.layer_norm(torch.cat((x, -x), 1), shape, twice, bias, eps)[:, :width]
    if dtype is torch.float32:
        return lambda x: torch.rms_norm(x, scale.shape, scale, eps)
    offset = torch.tensor(eps, dtype=torch.float32)

    def normalise(x: Tensor) -> Tensor:
        wide = x.float()
        squares = torch.linalg.vecdot(wide, wide).unsqueeze_(-1)
        return wide.mul_(torch.add(offset, squares, alpha=1.0 / width).rsqrt_()).mul_(scale).to(dtype)

    return normalise


def _rms_norm(op: RmsNorm, binding: Binding) -> Kernel:
    normalise = _normaliser(binding.tensor(op.weight), op.eps, op.unit_offset)
    return lambda _step, x: normalise(x)


def _add_rms_norm(op: AddRmsNorm, binding: Binding) -> Kernel:
    normalise = _normaliser(binding.tensor(op.weight), op.eps, op.unit_offset)
    in_place = binding.reusable[1]

    def run(_step: StepState, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = residual.add_(x) if in_place else residual + x
        return normalise(total), total

    return run


def _by_head(op: HeadNorm, binding: Binding) -> str | None:
    return overwrites_input(op, binding) or ("it normalises single heads" if op.whole or op.values else None)


def _head_norm(op: HeadNorm, binding: Binding) -> Kernel:
    heads = op.heads
    rows = [binding.tensor(op.query_weight)] * heads.query_heads + [binding.tensor(op.key_weight)] * heads.kv_heads
    weight = torch.stack(rows)
    if op.unit_offset:
        weight = 1.0 + weight.float()
    wide = weight.dtype is not binding.dtype
    normed_heads, size, eps = heads.query_heads + heads.kv_heads, (heads.head_dim,), op.eps

    def run(_step: StepState, qkv: Tensor) -> Tensor:
        view = qkv[:, : normed_heads * size[0]].unflatten(1, (normed_heads, size[0]))
        quotient = torch.rms_norm(view.float() if wide else view, size, None, eps)
        view.copy_(quotient.mul_(weight))
        return qkv

    return run


def _rotary(op: Rotary, binding: Binding) -> Kernel:
    heads = op.heads
    turned, size = heads.query_heads + heads.kv_heads, heads.head_dim
    width, half = turned * size, size // 2
    table, memo_key = binding.rope_table(op.rope), (Rotary, op.rope)

    def run(step: StepState, qkv: Tensor) -> Tensor:
        rows = step.memo.get(memo_key)
        if rows is None:
            rows = table.rows(step.batch.positions, max(step.batch.context_lengths, default=1) - 1)
            step.memo[memo_key] = rows
        view = qkv[:, :width].view(-1, turned, size)
        swapped = view.roll(half, 2)
        view.mul_(rows[0]).addcmul_(swapped, rows[1])
        return qkv

    return run


def _write_kv(op: WriteKV, binding: Binding) -> Kernel:
    planes = binding.kv.planes(op.layer)
    keys, values = (planes[name].flatten(2) for name in ("key", "value"))
    table = binding.kv.table_of(op.layer)
    first, middle, last = op.heads.query_width, op.heads.query_width + op.heads.kv_width, op.heads.fused_width

    def run(step: StepState, qkv: Tensor) -> None:
        slots, stored = step.slots(table), step.stored(qkv)
        keys.index_put_(slots, stored[:, first:middle])
        values.index_put_(slots, stored[:, middle:last])

    return run


def _write_kv_supports(op: WriteKV, binding: Binding) -> str | None:
    if op.heads.latent or op.stripe is not None:
        return "it has no latent keys, and whole contexts"
    if binding.kv.layout != "slots":
        return "the cache is laid out for other kernels"
    stored = binding.kv.planes(op.layer)["key"].dtype
    return None if stored is binding.dtype else f"values of {binding.dtype} are stored as {stored}"


def _by_activation(op: GatedActivation, _binding: Binding) -> str | None:
    return None if op.activation in ("silu", "gelu_tanh") else f"there is none for {op.activation}"


def _gated_activation(op: GatedActivation, _binding: Binding) -> Kernel:
    silu = op.activation == "silu"

    def run(_step: StepState, gate_up: Tensor) -> Tensor:
        width = gate_up.shape[1] // 2
        gate, up = gate_up[:, :width], gate_up[:, width:]
        return (F.silu(gate) if silu else F.gelu(gate, approximate="tanh")).mul_(up)

    return run


def _scale(op: Scale, binding: Binding) -> Kernel:
    factor = scale_factor(op, binding)
    in_place = binding.reusable[0]
    return lambda _step, x: x.mul_(factor) if in_place else x * factor


def _soft_cap(op: SoftCap, _binding: Binding) -> Kernel:
    return lambda _step, x: (x / op.cap).tanh_().mul_(op.cap)


def _takes_all_rows(op: SelectRows, _binding: Binding) -> str | None:
    return None if op.stripe is None else "rows are shared out"


def _select_rows(_op: SelectRows, binding: Binding) -> Kernel:
    reusable = binding.reusable[0]

    def run(step: StepState, x: Tensor) -> Tensor:
        wanted = step.batch.logit_rows
        # Rows are wanted at most once and in order, so where all are wanted nothing moves.
        if reusable and wanted.shape[0] == x.shape[0]:
            return x
        return x.index_select(0, wanted)

    return run


def _fast(name: str, operation: Any, prepare: Any, supports: Any = fits_always, row_function: bool = True) -> Any:
    return Implementation(name, operation, row_function, supports, prepare)


TORCH: tuple[Implementation, ...] = (
    _fast("torch", Embedding, _embedding, takes_plain),
    _fast("onednn_packed", Linear, _packed_linear, _packed_linear_supports, row_function=False),
    _fast("torch_fused", RmsNorm, _rms_norm),
    _fast("torch_fused", AddRmsNorm, _add_rms_norm),
    _fast("torch_in_place", HeadNorm, _head_norm, _by_head),
    _fast("torch_in_place", Rotary, _rotary, overwrites_input),
    _fast("torch", WriteKV, _write_kv, _write_kv_supports),
    *ATTENTION,
    _fast("torch", GatedActivation, _gated_activation, _by_activation, row_function=False),
    _fast("torch_in_place", Scale, _scale),
    _fast("torch", SoftCap, _soft_cap),
    _fast("torch", SelectRows, _select_rows, _takes_all_rows),
)
"""The operations that torch has faster than the reference does, on a processor."""
