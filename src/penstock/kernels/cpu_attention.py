"""Attention over paged keys and values in torch: blocks are gathered, then dense products do the work.

Query heads that share a key head become rows of one product, so keys and values are never repeated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.attention_plan import DecodeBucket, LongRow, plan_attention
from penstock.kernels.dispatch import Binding, Implementation, Kernel, KVStorage, StepState
from penstock.kernels.signature import Attention


def _supports(op: Attention, binding: Binding) -> str | None:
    stored = binding.kv.planes(op.layer)[0].dtype
    return None if stored is binding.dtype else f"keys are stored as {stored}, queries are {binding.dtype}"


def _prepare(op: Attention, binding: Binding) -> Kernel:
    group = binding.kv.group_of(op.layer)
    layer = _LayerAttention(op, binding.kv)
    # Without a fused kernel for soft caps, scores of all heads are in memory at once.
    capped_heads = 0 if op.softcap is None else op.heads.query_heads
    memo_key = (Attention, group, op.window, capped_heads)

    def run(step: StepState, qkv: Tensor) -> Tensor:
        plan = step.memo.get(memo_key)
        if plan is None:
            plan = step.memo[memo_key] = plan_attention(
                step.batch, group, op.window, binding.dtype, op.heads.kv_heads, capped_heads
            )
        buckets = plan.buckets
        if len(buckets) == 1 and buckets[0].count == plan.tokens and buckets[0].rows is None:
            return layer.decode(qkv, buckets[0])
        output = qkv.new_empty((plan.tokens, op.heads.query_width))
        for bucket in buckets:
            if bucket.rows is None:
                output[: bucket.count] = layer.decode(qkv[: bucket.count], bucket)
            else:
                output.index_copy_(0, bucket.rows, layer.decode(qkv.index_select(0, bucket.rows), bucket))
        for row in plan.long_rows:
            layer.extend(qkv, row, output)
        return output

    return run


class _LayerAttention:
    """One layer's attention: its planes as blocks, and the shapes of its heads."""

    def __init__(self, op: Attention, kv: KVStorage) -> None:
        self._keys, self._values = (plane.view(plane.shape[0] // kv.block_size, -1) for plane in kv.planes(op.layer))
        self._heads = op.heads
        self._share = op.heads.query_heads // op.heads.kv_heads
        self._scale, self._softcap = op.scale, op.softcap

    def decode(self, qkv: Tensor, bucket: DecodeBucket) -> Tensor:
        """qkv [rows, fused_width] of the bucket's rows → [rows, query_width]."""
        heads, rows = self._heads, bucket.count
        first, last = bucket.keep
        keys, values = (gathered[:, first:last].transpose(1, 2) for gathered in self._gather(bucket.blocks, rows))
        query = qkv[:, : heads.query_width].view(rows, heads.kv_heads, self._share, heads.head_dim)
        if rows == 1 and self._softcap is None:
            attended = F.scaled_dot_product_attention(query, keys, values, scale=self._scale)
            return attended.reshape(rows, heads.query_width)
        # Products of many small matrices are several times faster where each is contiguous.
        matrices = rows * heads.kv_heads
        query = query.reshape(matrices, self._share, heads.head_dim)
        keys = keys.reshape(matrices, -1, heads.head_dim).transpose(1, 2)
        values = values.reshape(matrices, -1, heads.head_dim)
        scores = self._scores(query, keys, bucket.mask)
        return torch.bmm(scores.softmax(-1), values).view(rows, heads.query_width)

    def extend(self, qkv: Tensor, row: LongRow, output: Tensor) -> None:
        """Compute a row with several tokens into its rows of `output`."""
        heads = self._heads
        if row.blocks is None:
            own = qkv[row.own[0] : row.own[1], heads.query_width :].unflatten(1, (2, heads.kv_heads, heads.head_dim))
            keys, values = own[:, 0], own[:, 1]
        else:
            gathered = self._gather(row.blocks, 1)
            keys, values = gathered[0][0], gathered[1][0]
        grouped = (heads.kv_heads, self._share, -1, -1)
        for piece in row.pieces:
            (first, last), (low, high) = piece.tokens, piece.keys
            query = qkv[first:last, : heads.query_width].unflatten(1, (heads.kv_heads, self._share, heads.head_dim))
            query = query.permute(1, 2, 0, 3)
            key = keys[low:high].transpose(0, 1)[:, None].expand(grouped)
            value = values[low:high].transpose(0, 1)[:, None].expand(grouped)
            if self._softcap is None:
                attended = F.scaled_dot_product_attention(
                    query, key, value, attn_mask=piece.mask, is_causal=piece.mask is None, scale=self._scale
                )
            else:
                scores = self._scores(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), piece.mask)
                attended = torch.bmm(scores.softmax(-1), value.flatten(0, 1)).unflatten(0, grouped[:2])
            target = output[first:last].unflatten(1, (heads.kv_heads, self._share, heads.head_dim))
            target.copy_(attended.permute(2, 0, 1, 3))

    def _gather(self, blocks: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of `blocks`, each [rows, positions, kv_heads, head_dim]."""
        shape = (rows, -1, self._heads.kv_heads, self._heads.head_dim)
        return self._keys.index_select(0, blocks).view(shape), self._values.index_select(0, blocks).view(shape)

    def _scores(self, query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """[matrices, queries, head_dim] · [matrices, head_dim, keys], scaled, capped and masked."""
        shape = (query.shape[0], query.shape[1], keys.shape[2])
        if self._softcap is None and mask is not None:
            return torch.baddbmm(mask.expand(shape), query, keys, alpha=self._scale)
        scores = torch.baddbmm(query.new_empty(shape), query, keys, beta=0, alpha=self._scale)
        if self._softcap is not None:
            scores = scores.div_(self._softcap).tanh_().mul_(self._softcap)
        return scores if mask is None else scores.add_(mask)


ATTENTION: tuple[Implementation, ...] = (
    # Matrix products of torch choose their inner loops by the number of rows.
    Implementation("torch_gathered", Attention, False, _supports, _prepare),
)
