"""Attention over the paged KV cache, natively."""

import torch
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.dispatch import Binding, Implementation, Kernel, StepState
from penstock.kernels.signature import Attention

_DTYPES = (torch.float32, torch.bfloat16)
# Positions that the kernel takes at once; a block must be a multiple of them.
_STEP = 16


def _supports(op: Attention, binding: Binding) -> str | None:
    if OBSTACLE is not None:
        return OBSTACLE
    if binding.kv.block_size % _STEP:
        return f"blocks of {binding.kv.block_size} tokens are no multiple of {_STEP}"
    stored = binding.kv.planes(op.layer)[0].dtype
    wrong = next((dtype for dtype in (binding.dtype, stored) if dtype not in _DTYPES), None)
    return None if wrong is None else f"there is no native kernel for {wrong}"


def _prepare(op: Attention, binding: Binding) -> Kernel:
    keys, values = binding.kv.planes(op.layer)
    group, heads = binding.kv.group_of(op.layer), op.heads
    scale, window, softcap = op.scale, op.window or 0, op.softcap or 0.0

    def run(step: StepState, qkv: Tensor) -> Tensor:
        batch = step.batch
        if Attention not in step.memo:
            step.memo[Attention] = torch.tensor(batch.query_lengths), torch.tensor(batch.context_lengths)
        added, context = step.memo[Attention]
        output = qkv.new_empty((qkv.shape[0], heads.query_width))
        tables = batch.groups[group].block_tables
        native.attention(
            qkv, heads.query_heads, heads.kv_heads, keys, values, tables, added, context, batch.block_size,
            scale, window, softcap, output,
        )  # fmt: skip
        return output

    return run


ATTENTION: tuple[Implementation, ...] = (Implementation("native", Attention, True, _supports, _prepare),)
