"""Obviously right attention in torch: over a paged cache, over sources, over rows, and over stripes of contexts."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.shares import Stripe
from penstock.kernels.batch import StepBatch
from penstock.kernels.bias import bias_table
from penstock.kernels.collective import MergeStripes
from penstock.kernels.dispatch import Binding, Kernel, Planes, StepState
from penstock.kernels.kv_bytes import from_bytes, kind_of, raw, to_bytes
from penstock.kernels.signature import Attention, HeadLayout, RowAttention, SourceAttention, WriteKV


def split_heads(qkv: Tensor, heads: HeadLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Views of the query, key and value heads, each [tokens, heads, head_dim]; latent values are the keys."""
    query, key = qkv[:, : heads.query_width], qkv[:, heads.query_width : heads.query_width + heads.kv_width]
    value = key if heads.latent else qkv[:, heads.query_width + heads.kv_width :]
    return (
        query.unflatten(1, (heads.query_heads, heads.head_dim)),
        key.unflatten(1, (heads.kv_heads, heads.head_dim)),
        value.unflatten(1, (heads.kv_heads, heads.head_dim)),
    )


def scores_of(
    query: Tensor, keys: Tensor, places: Tensor, position: int, op: Attention, bias: Tensor | None = None
) -> Tensor:
    """One token's scores [query_heads, keys] in float32, −inf of keys that it does not see.

    The query [query_heads, head_dim] is at `position`, and the keys [keys, kv_heads, head_dim] at `places`; `bias` is
    as `bias_table` has it.
    """
    keys = keys.float().repeat_interleave(op.heads.query_heads // op.heads.kv_heads, dim=1)
    scores = torch.einsum("hd,lhd->hl", query.float(), keys) * op.scale
    if bias is not None:
        scores = scores + biases_of(bias, places - position)
    if op.softcap is not None:
        scores = op.softcap * torch.tanh(scores / op.softcap)
    visible = places <= position
    if op.window is not None:
        visible &= places > position - op.window
    return scores.masked_fill(~visible, -math.inf)


def mix_values(weights: Tensor, values: Tensor) -> Tensor:
    """Weights [query_heads, keys] times values [keys, kv_heads, head_dim], in float32: [query_heads, head_dim]."""
    share = len(weights) // values.shape[1]
    return torch.einsum("hl,lhd->hd", weights, values.float().repeat_interleave(share, dim=1))


def softmax_of(scores: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Weights of all scores, beside which `sinks` [query_heads] are scores of values that are 0."""
    whole = scores if sinks is None else torch.cat((scores, sinks[:, None]), dim=1)
    return torch.softmax(whole, dim=-1)[:, : scores.shape[1]]


def begun_softmax(scores: Tensor, values: Tensor) -> Tensor:
    """A softmax that is not ended, as `MergeStripes` takes it; 0, −inf and 0 where there are no scores."""
    if not scores.shape[1]:
        heads = scores.new_zeros(len(scores))
        return torch.cat((scores.new_zeros(len(scores) * values.shape[2]), heads - math.inf, heads))
    most = scores.amax(dim=1)
    weights = torch.exp(scores - most[:, None])
    return torch.cat((mix_values(weights, values).flatten(), most, weights.sum(dim=1)))


def merge_stripes(op: MergeStripes, binding: Binding) -> Kernel:
    """All ranks' softmaxes as one."""
    sinks = None if op.sinks is None else binding.tensor(op.sinks).float()
    width = op.query_heads * op.head_dim

    def run(_step: StepState, parts: Tensor) -> Tensor:
        each = parts.float().unflatten(1, (op.ranks, -1))
        most, totals = each[:, :, width:].unflatten(2, (2, -1)).unbind(2)
        largest = most.amax(dim=1) if sinks is None else torch.maximum(most.amax(dim=1), sinks)
        factors = torch.exp(most - largest[:, None])
        total = torch.zeros_like(largest) if sinks is None else torch.exp(sinks - largest)
        mixed = torch.zeros((len(parts), op.query_heads, op.head_dim))
        for rank in range(op.ranks):
            total += totals[:, rank] * factors[:, rank]
            mixed += each[:, rank, :width].unflatten(1, (op.query_heads, -1)) * factors[:, rank, :, None]
        return (mixed / total[:, :, None]).flatten(1).to(binding.dtype)

    return run


def takes_slots(_op: WriteKV | Attention | SourceAttention, binding: Binding) -> str | None:
    """`supports` of what reads or writes the cache."""
    return None if binding.kv.layout == "slots" else "the cache is laid out for other kernels"


def write_kv(op: WriteKV, binding: Binding) -> Kernel:
    """Keys and values of a step's tokens in their slots."""
    planes = binding.kv.planes(op.layer)
    table = binding.kv.table_of(op.layer)
    stored = planes["key"].dtype

    def run(step: StepState, qkv: Tensor) -> None:
        _, key, value = split_heads(step.stored(qkv), op.heads)
        slots = step.slots(table)
        if op.stripe is not None:
            own, slots = own_slots(slots, op.stripe, step.batch.block_size)
            key, value = key[own], value[own]
        for name, heads in (("key", key), *(() if op.heads.latent else (("value", value),))):
            if kind_of(planes) == "plain":
                planes[name][slots] = heads.to(stored)
                continue
            found, planes[f"{name}_scale"][slots] = to_bytes(heads, stored)
            raw(planes[name])[slots] = raw(found)

    return run


def own_slots(slots: tuple[Tensor, Tensor], stripe: Stripe, block_size: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Which slots of whole blocks are this rank's, and where these are in its own, smaller blocks."""
    (blocks, places), part = slots, block_size // stripe.size
    own = places // part == stripe.rank
    return own, (blocks[own], places[own] % part)


def context_slots(
    batch: StepBatch, table: int, row: int, stripe: Stripe | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The places of a row's context that this cache has, ascending, and the slot of each: block, and place there.

    All are int64. A place is a position less those that were dropped.
    """
    end, size = batch.context_lengths[row] - dropped_of(batch, table, row), batch.block_size
    places = torch.arange(end) if stripe is None else torch.tensor(stripe.places(end, size), dtype=torch.int64)
    slots = batch.block_tables[table][row].long()[places // size], places % size
    return places, slots if stripe is None else own_slots(slots, stripe, size)[1]


def dropped_of(batch: StepBatch, table: int, row: int) -> int:
    """How many of a row's positions have no slots any more."""
    return int(batch.dropped[table][row]) if batch.dropped else 0


def attention(op: Attention, binding: Binding) -> Kernel:
    """Each token's attention to what the cache has of its row."""
    planes = binding.kv.planes(op.layer)
    table = binding.kv.table_of(op.layer)
    sinks = None if op.sinks is None else binding.tensor(op.sinks).float()
    bias = bias_table(op, binding)

    def run(step: StepState, qkv: Tensor) -> Tensor:
        batch = step.batch
        query = qkv[:, : op.heads.query_width].unflatten(1, (op.heads.query_heads, op.heads.head_dim))
        dtype = query.dtype if op.stripe is None else torch.float32
        output = torch.empty((len(query), op.made_width), dtype=dtype)
        token = 0
        for row, added in enumerate(batch.query_lengths):
            places, slots = context_slots(batch, table, row, op.stripe)
            end = batch.context_lengths[row] - dropped_of(batch, table, row)
            for place in range(end - added, end):
                # Released blocks before the window must not even be read: they may hold another sequence's NaN.
                first = 0 if op.window is None else max(0, place - op.window + 1)
                low, high = torch.searchsorted(places, torch.tensor([first, place + 1])).tolist()
                seen = slots[0][low:high], slots[1][low:high]
                keys = _seen(planes, "key", seen, binding.dtype)
                values = keys if op.heads.latent else _seen(planes, "value", seen, binding.dtype)
                scores = scores_of(query[token], keys, places[low:high], place, op, bias)
                if op.stripe is not None:
                    output[token] = begun_softmax(scores, values)
                else:
                    weights = softmax_of(scores, sinks)
                    output[token] = mix_values(weights, values).flatten()
                    if batch.weighing is not None and place >= end - batch.weighing.queries[row]:
                        add_masses(batch.weighing.masses[table][row], weights, first, batch.block_size)
                token += 1
        return output

    return run


def _seen(planes: Planes, name: str, seen: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Keys or values in some slots, [slots, kv_heads, head_dim], in `dtype` where they are kept as bytes."""
    if kind_of(planes) == "plain":
        return planes[name][seen]
    return from_bytes(raw(planes[name])[seen].view(planes[name].dtype), planes[f"{name}_scale"][seen], dtype)


def source_attention(op: SourceAttention, binding: Binding) -> Kernel:
    """Each token's attention to all of its row's source."""
    planes, table, heads = binding.kv.planes(op.layer), binding.kv.table_of(op.layer), op.heads
    whole = Attention(heads, op.layer, op.scale)

    def run(step: StepState, query: Tensor) -> Tensor:
        batch = step.batch
        each = query.unflatten(1, (heads.query_heads, heads.head_dim)).split(batch.query_lengths)
        output: list[Tensor] = []
        for row, (queries, source) in enumerate(zip(each, batch.sources, strict=True)):
            places = torch.arange(source)
            seen = batch.block_tables[table][row].long()[places // batch.block_size], places % batch.block_size
            keys, values = (_seen(planes, name, seen, binding.dtype) for name in ("key", "value"))
            # Each sees the source as the last position of a context sees that.
            for each_query in queries:
                weights = softmax_of(scores_of(each_query, keys, places, source - 1, whole))
                output.append(mix_values(weights, values).flatten().to(query.dtype))
        return torch.stack(output) if output else query

    return run


def biases_of(table: Tensor, distances: Tensor) -> Tensor:
    """What keys so far from a query get, [query heads, …]; `table` is as `bias_table` has it."""
    reach = table.shape[1] // 2
    return table[:, distances.clamp(-reach, reach) + reach]


def attend_row(qkv: Tensor, op: RowAttention, table: Tensor | None, seen: int) -> Tensor:
    """All tokens of one row: qkv [tokens, fused_width] → [tokens, query_width], with sums in float32.

    `table` is what is added to scores, as `bias_table` has it. The first `seen` tokens are seen; whose window is behind
    these sees the last of them.
    """
    share = op.heads.query_heads // op.heads.kv_heads
    query, key, value = (part.float() for part in split_heads(qkv, op.heads))
    key, value = key.repeat_interleave(share, dim=1), value.repeat_interleave(share, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * op.scale
    places = torch.arange(len(qkv))
    distances = places - places[:, None]
    if table is not None:
        scores = scores + biases_of(table, distances)
    if op.window is not None:
        # Of a query, the first of those that its window has on its own side.
        first = (places - op.window + 1).clamp(max=seen - 1)[:, None]
        scores = scores.masked_fill((places < first) | (distances >= op.window), -math.inf)
    scores = scores.masked_fill(places >= seen, -math.inf)
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), value).flatten(1).to(qkv.dtype)


def row_attention(op: RowAttention, binding: Binding) -> Kernel:
    """Each token's attention to all of its row, within the step."""
    table = bias_table(op, binding)

    def run(step: StepState, qkv: Tensor) -> Tensor:
        lengths = step.batch.query_lengths
        seen = lengths if step.batch.seen is None else step.batch.seen.tolist()
        parts = zip(qkv.split(lengths), seen, strict=True)
        return torch.cat([attend_row(row, op, table, count) for row, count in parts])

    return run


def add_masses(masses: NDArray[np.float32], weights: Tensor, first: int, block_size: int) -> None:
    """Add the weights [query_heads, places] of places from `first` on to what their blocks have."""
    blocks = (first + np.arange(weights.shape[1])) // block_size
    np.add.at(masses, blocks, weights.sum(dim=0).numpy())
