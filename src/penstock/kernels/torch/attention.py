"""Attention over paged keys and values in torch: blocks are gathered, then dense products do the work.

Query heads that share a key head become rows of one product, so keys and values are never repeated.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.dispatch import Binding, Implementation, Kernel, KVPlanes, StepState
from penstock.kernels.signature import Attention
from penstock.kernels.torch.attention_plan import FUSED_ROWS, DecodeBucket, LongRow, plan_attention

# Up to this many columns of keys, multiplying with zeros costs less than making each head's keys contiguous.
_BLOCK_DIAGONAL_WIDTH = 128


def _supports(op: Attention, binding: Binding) -> str | None:
    if op.sinks is not None or op.heads.latent or op.borrows or op.bias is not None or op.stripe is not None:
        return "it has no sinks, no latent keys, no keys of another layer, no biases, and whole contexts"
    if binding.kv.layout != "slots":
        return "the cache is laid out for other kernels"
    stored = binding.kv.planes(op.layer)["key"].dtype
    return None if stored is binding.dtype else f"keys are stored as {stored}, queries are {binding.dtype}"


def _supports_block_diagonal(op: Attention, binding: Binding) -> str | None:
    if op.heads.kv_width > _BLOCK_DIAGONAL_WIDTH:
        return f"keys of {op.heads.kv_width} columns are more than {_BLOCK_DIAGONAL_WIDTH}"
    return _supports(op, binding)


def _prepare_by_head(op: Attention, binding: Binding) -> Kernel:
    return _prepare(op, binding, _attend_by_head, op.heads.kv_heads)


def _prepare_block_diagonal(op: Attention, binding: Binding) -> Kernel:
    return _prepare(op, binding, _attend_block_diagonal, 1)


def _prepare(op: Attention, binding: Binding, attend: "_Attend", mask_heads: int) -> Kernel:
    group = binding.kv.table_of(op.layer)
    layer = _LayerAttention(op, binding.kv, attend)
    # Without a fused kernel for soft caps, scores of all heads are in memory at once.
    capped_heads = 0 if op.softcap is None else op.heads.query_heads
    memo_key = (Attention, group, op.window, mask_heads, capped_heads)

    def run(step: StepState, qkv: Tensor) -> Tensor:
        plan = step.memo.get(memo_key)
        if plan is None:
            plan = plan_attention(step.batch, group, op.window, binding.dtype, mask_heads, capped_heads)
            step.memo[memo_key] = plan
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


_Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, float | None], Tensor]
"""query [rows, kv_heads, share, head_dim], keys and values [rows, positions, kv_heads, head_dim], mask, scale, soft cap
→ [rows, kv_heads, share, head_dim]"""


def _attend_by_head(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """One product for each row and key head. Those of torch are several times faster on contiguous matrices."""
    rows, kv_heads, share, size = query.shape
    keys = keys.transpose(1, 2).reshape(rows * kv_heads, -1, size)
    values = values.transpose(1, 2).reshape(rows * kv_heads, -1, size)
    scores = _scores(query.reshape(-1, share, size), keys.transpose(1, 2), mask, scale, softcap)
    return torch.bmm(scores.softmax(-1), values).view(query.shape)


def _attend_block_diagonal(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """One product for each row: keys of all heads side by side, as they are stored, against queries padded with zeros.

    Of what the second product gives, each query head takes the columns of its own value head.
    """
    rows, kv_heads, share, size = query.shape
    padded = query.new_zeros(rows, kv_heads, share, kv_heads, size)
    padded.diagonal(0, 1, 3).copy_(query.permute(0, 2, 3, 1))
    wide = kv_heads * size
    scores = _scores(padded.view(rows, -1, wide), keys.flatten(2).transpose(1, 2), mask, scale, softcap)
    mixed = torch.bmm(scores.softmax(-1), values.flatten(2)).view(padded.shape)
    return mixed.diagonal(0, 1, 3).permute(0, 3, 1, 2)


def _scores(query: Tensor, keys: Tensor, mask: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """[matrices, queries, columns] · [matrices, columns, keys], scaled, capped and masked."""
    shape = (query.shape[0], query.shape[1], keys.shape[2])
    if softcap is None and mask is not None:
        return torch.baddbmm(mask.expand(shape), query, keys, alpha=scale)
    scores = torch.baddbmm(query.new_empty(shape), query, keys, beta=0, alpha=scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    return scores if mask is None else scores.add_(mask)


class _LayerAttention:
    """One layer's attention: its planes as blocks, and the shapes of its heads."""

    def __init__(self, op: Attention, kv: KVPlanes, attend: _Attend) -> None:
        planes = kv.planes(op.layer)
        self._keys, self._values = (planes[name].flatten(1) for name in ("key", "value"))
        self._block_size = planes["key"].shape[1]
        self._attend = attend
        self._heads = op.heads
        self._share = op.heads.query_heads // op.heads.kv_heads
        self._scale, self._softcap = op.scale, op.softcap

    def decode(self, qkv: Tensor, bucket: DecodeBucket) -> Tensor:
        """qkv [rows, fused_width] of the bucket's rows → [rows, query_width]."""
        heads, rows = self._heads, bucket.count
        if rows <= FUSED_ROWS and self._softcap is None:
            return self._decode_few(qkv, bucket)
        first, last = bucket.keep
        keys, values = (gathered[:, first:last] for gathered in self._gather(bucket.blocks, rows))
        query = qkv[:, : heads.query_width].view(rows, heads.kv_heads, self._share, heads.head_dim)
        attended = self._attend(query, keys, values, bucket.mask, self._scale, self._softcap)
        return attended.reshape(rows, heads.query_width)

    def _decode_few(self, qkv: Tensor, bucket: DecodeBucket) -> Tensor:
        """With few rows every call counts, so each view is made in one."""
        heads, rows, (first, last) = self._heads, bucket.count, bucket.keep
        size, width = heads.head_dim, heads.kv_width
        positions = bucket.blocks.shape[0] // rows * self._block_size
        shape = (rows, heads.kv_heads, last - first, size)
        strides = (positions * width, size, width, 1)
        keys = self._keys.index_select(0, bucket.blocks).as_strided(shape, strides, first * width)
        values = self._values.index_select(0, bucket.blocks).as_strided(shape, strides, first * width)
        query = qkv.as_strided(
            (rows, heads.kv_heads, self._share, size), (heads.fused_width, self._share * size, size, 1)
        )
        mask = None if bucket.mask is None else bucket.mask.view(rows, -1, 1, last - first)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self._scale)
        return attended.reshape(rows, heads.query_width)

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
                columns = key.flatten(0, 1).transpose(1, 2)
                scores = _scores(query.flatten(0, 1), columns, piece.mask, self._scale, self._softcap)
                attended = torch.bmm(scores.softmax(-1), value.flatten(0, 1)).unflatten(0, grouped[:2])
            target = output[first:last].unflatten(1, (heads.kv_heads, self._share, heads.head_dim))
            target.copy_(attended.permute(2, 0, 1, 3))

    def _gather(self, blocks: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of `blocks`, each [rows, positions, kv_heads, head_dim]."""
        shape = (rows, -1, self._heads.kv_heads, self._heads.head_dim)
        return self._keys.index_select(0, blocks).view(shape), self._values.index_select(0, blocks).view(shape)


# Matrix products of torch choose their inner loops by the number of rows, so neither is a row function.
ATTENTION: tuple[Implementation, ...] = (
    Implementation("torch_block_diagonal", Attention, False, _supports_block_diagonal, _prepare_block_diagonal),
    Implementation("torch_by_head", Attention, False, _supports, _prepare_by_head),
)
