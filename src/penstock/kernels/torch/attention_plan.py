"""How one step's attention is cut into dense pieces; computed once a step for all layers of a KV group.

Rows with one token are gathered in buckets of similar context, so that little of what is read is padding, and so that a
bucket's keys stay near the processor. Longer rows are computed one by one, in pieces of queries whose mask is bounded.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch

# Up to this many single-token rows, torch's fused kernel costs less than products of all rows together.
FUSED_ROWS = 4
# The most tokens whose keys a bucket reads beyond those that its rows have, and the most of a bucket in all.
_PADDING_TOKENS = 1024
_BUCKET_TOKENS = 32768
# A mask of one piece of queries has at most this many entries.
_MASK_ENTRIES = 1 << 21
_FEWEST_QUERIES = 16
_WINDOW_QUERIES = 256


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBucket:
    """Rows with one token each that are computed together.

    Attributes:
        rows: int64, which tokens of the step; None where it is the first `count`.
        count: how many.
        blocks: int64 or int32 [count · blocks a row], the blocks to gather.
        keep: (first, last) of the gathered positions of every row that are used.
        mask: [count · mask_heads, 1, last - first], 0 or -inf to be added to scores; None where every row uses all.
    """

    rows: Tensor | None
    count: int
    blocks: Tensor
    keep: tuple[int, int]
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class QueryPiece:
    """Some queries of a longer row: `tokens` of the step, and `keys` within what the row gathered.

    `mask` is [queries, keys], 0 or -inf; None where the piece is causal from the first key on.
    """

    tokens: tuple[int, int]
    keys: tuple[int, int]
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class LongRow:
    """A row with several tokens. `blocks` are gathered; None where the row's whole context is in this step.

    `own` are then the tokens of the step that hold its keys.
    """

    blocks: Tensor | None
    own: tuple[int, int]
    pieces: tuple[QueryPiece, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """All of one step's attention for layers of one group and window."""

    tokens: int
    buckets: tuple[DecodeBucket, ...]
    long_rows: tuple[LongRow, ...]


def plan_attention(
    batch: StepBatch, group: int, window: int | None, dtype: torch.dtype, mask_heads: int, score_heads: int = 0
) -> AttentionPlan:
    """Cut the step's attention in group `group` into pieces; masks are of `dtype`.

    Masks of single-token rows are repeated for `mask_heads`. Where scores of `score_heads` heads are kept in memory,
    pieces are smaller and always have a mask.
    """
    tables = batch.block_tables[group]
    contexts = batch.context_lengths
    buckets = tuple(
        _bucket(rows, batch, tables, window, dtype, mask_heads)
        for rows in _similar_rows(contexts[: batch.num_decodes], window)
    )
    long_rows = []
    token = batch.num_decodes
    for row in range(batch.num_decodes, len(contexts)):
        long_rows.append(_long_row(row, token, batch, tables, _Masks(window, dtype, score_heads)))
        token += batch.query_lengths[row]
    return AttentionPlan(token, buckets, tuple(long_rows))


def _similar_rows(contexts: list[int], window: int | None) -> list[list[int] | None]:
    """Partition decode rows so that reading each part padded to its longest costs little more than reading each row.

    None stands for all rows in order.
    """
    if not contexts:
        return []
    seen = contexts if window is None else [min(context, window) for context in contexts]
    longest, total = max(seen), sum(seen)
    if longest * len(seen) <= min(_BUCKET_TOKENS, total + max(_PADDING_TOKENS, total // 4)):
        return [None]
    parts: list[list[int] | None] = []
    current: list[int] = []
    padding = width = 0
    for row in sorted(range(len(seen)), key=lambda row: -seen[row]):
        padding += width - seen[row]
        if not current or padding > _PADDING_TOKENS or (len(current) + 1) * width > _BUCKET_TOKENS:
            current = []
            parts.append(current)
            padding, width = 0, seen[row]
        current.append(row)
    return parts


def _bucket(
    rows: list[int] | None, batch: StepBatch, tables: Tensor, window: int | None, dtype: torch.dtype, mask_heads: int
) -> DecodeBucket:
    size = batch.block_size
    if rows is None:
        chosen, count = None, batch.num_decodes
        lengths, positions, tables = batch.context_lengths[:count], batch.positions[:count], tables[:count]
    else:
        chosen, count = torch.tensor(rows), len(rows)
        lengths = [batch.context_lengths[row] for row in rows]
        positions, tables = batch.positions.index_select(0, chosen), tables.index_select(0, chosen)
    shortest, longest = min(lengths), max(lengths)
    # What a row skips grows with its length, so the two ends tell whether all rows use the same columns.
    first, last = (0, 0) if window is None else (max(0, shortest - window), max(0, longest - window))
    start, end = first // size, -(-longest // size)
    if shortest == longest and count <= FUSED_ROWS:
        blocks = tables[:, start:end].reshape(-1)
        return DecodeBucket(chosen, count, blocks, (first - start * size, longest - start * size), None)
    highs = positions + 1
    lows = None if window is None else (highs - window).clamp_(min=0)
    if start == last // size and end == -(-shortest // size):
        blocks, wide = tables[:, start:end].reshape(-1), end - start
        shift: int | Tensor = start * size
    else:
        # Past its end a row repeats its last block: masked or not, it must not read what another sequence wrote,
        # since 0 · NaN is NaN.
        ends = positions // size
        starts = torch.zeros_like(ends) if lows is None else lows // size
        wide = int((ends - starts).max()) + 1
        columns = torch.minimum(starts[:, None] + torch.arange(wide), ends[:, None])
        blocks = tables.gather(1, columns).reshape(-1)
        shift = starts * size
    # Whole blocks, since products of several rows are four times slower where what is gathered has gaps between rows.
    places = torch.arange(wide * size)
    hidden = places >= (highs - shift)[:, None]
    if lows is not None:
        hidden |= places < (lows - shift)[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
    mask = mask.repeat_interleave(mask_heads, dim=0)[:, None]
    return DecodeBucket(chosen, count, blocks, (0, wide * size), mask)


@dataclass(frozen=True, slots=True)
class _Masks:
    window: int | None
    dtype: torch.dtype
    score_heads: int

    def build(self, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor:
        """[queries, keys] for the positions given, 0 where a key is visible and -inf elsewhere."""
        query, key = torch.arange(*queries)[:, None], torch.arange(*keys)
        hidden = key > query
        if self.window is not None:
            hidden |= key <= query - self.window
        return torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, -math.inf)

    def lowest_key(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


def _long_row(row: int, token: int, batch: StepBatch, tables: Tensor, masks: _Masks) -> LongRow:
    size, added, context = batch.block_size, batch.query_lengths[row], batch.context_lengths[row]
    start = context - added
    blocks, base = None, 0
    if start > 0:
        first_block = masks.lowest_key(start) // size
        blocks, base = tables[row, first_block : -(-context // size)], first_block * size
    pieces = []
    first = start
    while first < context:
        last = _piece_end(first, context, masks)
        low = masks.lowest_key(first)
        # A piece from position 0 that no window cuts is causal from its first key on.
        plain = first == 0 and masks.score_heads == 0 and (masks.window is None or last <= masks.window)
        mask = None if plain else masks.build((first, last), (low, last))
        tokens = (token + first - start, token + last - start)
        pieces.append(QueryPiece(tokens, (low - base, last - base), mask))
        first = last
    return LongRow(blocks, (token, token + added), tuple(pieces))


def _piece_end(first: int, context: int, masks: _Masks) -> int:
    """Where the piece of a row's queries that begins at position `first` ends."""
    window, end = masks.window, context
    if window is not None:
        # Pieces much longer than the window would mostly compute what the mask hides.
        end = min(end, first + max(window, _WINDOW_QUERIES))
    elif first == 0 and masks.score_heads == 0:
        return context
    entries = _MASK_ENTRIES // max(1, masks.score_heads)
    return min(end, first + max(_FEWEST_QUERIES, entries // (end - masks.lowest_key(first))))
