"""How attention's kernels are launched: the sizes of tiles, and into how many pieces a context is cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.kernels.cuda.attention import attend_kernel, merge_kernel
from penstock.kernels.cuda.place import TYPES, Place, padded
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.cuda.step import DeviceStep, DeviceWeighing, Tiles
from penstock.kernels.cuda.weighing import weigh_kernel
from penstock.kernels.dispatch import Binding
from penstock.kernels.kv_bytes import kind_of, raw
from penstock.kernels.signature import Attention, HeadLayout

# Rows of a tile: the least that a multiplication takes, and enough for chunks of prompts that keys are read rarely.
LEAST_ROWS = 16
CHUNK_ROWS = 64
# Positions of a segment where all have the same; multiples of every BLOCK_N.
SEGMENT = 512
# Tiles that each processor should have of, positions that are worth a piece of their own, and the most pieces.
_PIECES_PER_PROCESSOR = 4
_LEAST_PIECE = 128
_MOST_PIECES = 32
# Places that a program weighs where each row asks of one query: few, so that there are many programs.
_WEIGHED_PLACES = 16
# Numbers of the heads that a program merges, up to which parts are read ahead: these stay in registers.
_MERGED_AHEAD = 4096
# Shared memory for a tile of 128 rows of heads of 128, with 128 positions read ahead, and one more.
_LARGE_TILE_BYTES = 200 << 10
# The same for the least tile of float32 heads of more than 512, whatever they are kept as.
_WIDE_TILE_BYTES = 148 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """A layer's planes as kernels take them: bytes as uint8; where there are no scales, the planes stand for them.

    From one block to the next it is `block_stride` values, and `scale_stride` scales.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    kept: str
    table: int
    block_size: int
    block_stride: int
    scale_stride: int


def cache_of(binding: Binding, layer: int) -> Cache:
    """The planes of one layer."""
    planes = binding.kv.planes(layer)
    # Latent keys are values, too.
    keys = raw(planes["key"])
    values, key_scales = raw(planes.get("value", keys)), planes.get("key_scale", keys)
    value_scales = planes.get("value_scale", values if "value" in planes else key_scales)
    return Cache(
        keys,
        values,
        key_scales,
        value_scales,
        kind_of(planes),
        binding.kv.table_of(layer),
        keys.shape[1],
        keys.stride(0),
        key_scales.stride(0),
    )


def pieces_of(place: Place, tiles: int, longest: int) -> int:
    """Into how many pieces each tile's context is cut: in equal parts, or one for each segment."""
    wanted = max(1, _PIECES_PER_PROCESSOR * place.processors // max(1, tiles))
    if place.deterministic:
        return -(-longest // SEGMENT) if wanted > 1 else 1
    return min(wanted, _MOST_PIECES, max(1, longest // _LEAST_PIECE))


def chunk_rows(size: int, dtype: torch.dtype) -> int:
    """Rows of a tile for chunks.

    In float32 full tiles would take 113 KB of shared memory with heads of 128, and 140 with those of 256. Some GPUs
    have 99.
    """
    if size > 256:
        return CHUNK_ROWS // 2 if size == 512 and dtype is not torch.float32 else LEAST_ROWS
    if dtype is not torch.float32 or size < 128:
        return CHUNK_ROWS
    return CHUNK_ROWS // 2 if size == 128 else LEAST_ROWS


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """Rows of a tile of chunks, positions that it takes at a time, its warps, and the stages of reading ahead."""

    rows: int
    positions: int
    warps: int = 4
    stages: int = 3


def chunk_tile(size: int, dtype: torch.dtype, place: Place, kept: str) -> ChunkTile:
    """The larger tiles, the rarer keys and values are read, where a GPU has the shared memory for it."""
    large = size <= 128 and dtype is not torch.float32 and kept == "plain" and place.shared >= _LARGE_TILE_BYTES
    if large:
        return ChunkTile(128, 128, warps=8)
    if size <= 256:
        return ChunkTile(chunk_rows(size, dtype), _positions(size))
    wide = size > 512 and dtype is not torch.float32 and kept == "plain" and place.shared >= _LARGE_TILE_BYTES
    return ChunkTile(32, 32, 8, 2) if wide else ChunkTile(chunk_rows(size, dtype), _positions(size), 8, 2)


def lacks_memory(op: Attention, binding: Binding, place: Place) -> str | None:
    """Why a GPU cannot compute attention: a tile of such heads does not fit into its shared memory."""
    if padded(op.heads.head_dim) <= 512 or binding.dtype is not torch.float32 or place.shared >= _WIDE_TILE_BYTES:
        return None
    return (
        f"heads of {op.heads.head_dim} in float32 take {_WIDE_TILE_BYTES >> 10} KiB of shared memory, and this GPU has "
        f"{place.shared >> 10}; bfloat16 takes less"
    )


def shared_heads(heads: HeadLayout, size: int) -> tuple[int, int]:
    """Query heads that are computed together, and how many such groups share a key head.

    All that share one, but for heads of more than 256: then at most the rows of the least tile.
    """
    whole = heads.query_heads // heads.kv_heads
    if size <= 256:
        return whole, 1
    share = next(count for count in range(min(whole, LEAST_ROWS), 0, -1) if whole % count == 0)
    return share, whole // share


def _positions(size: int) -> int:
    return 64 if size <= 128 else 32 if size <= 256 else 16


def attention(op: Attention, binding: Binding, place: Place) -> DevicePart:
    """Attention of a step: its single tokens in pieces of their contexts, its chunks in tiles of queries."""
    cache, heads = cache_of(binding, op.layer), op.heads
    size = padded(heads.head_dim, 16)
    share, groups = shared_heads(heads, size)
    least = padded(share, LEAST_ROWS)
    # With one size of tiles a query's sums are the same, whether it comes alone or in a chunk.
    tile = chunk_tile(size, binding.dtype, place, cache.kept)
    if place.deterministic:
        tile = ChunkTile(least, _positions(size))
    chunk = max(least, tile.rows)
    constants = {
        "QUERY_HEADS": heads.query_heads,
        "KV_HEADS": heads.kv_heads,
        "WIDTH": op.row_width,
        "SIZE": heads.head_dim,
        "PADDED": size,
        "BLOCK_SIZE": cache.block_size,
        "BLOCK_STRIDE": cache.block_stride,
        "SCALE_STRIDE": cache.scale_stride,
        "GROUPS": groups,
        "KEPT": cache.kept,
        "CAPPED": op.softcap is not None,
        "WINDOWED": op.window is not None,
        "TYPE": TYPES[binding.dtype],
        "WIDE": place.wide(binding.dtype),
    }
    weigh = _weighs(op, cache, constants, max(least, chunk_rows(size, binding.dtype)), least)
    constants = constants | {"BLOCK_N": _positions(size), "LATENT": heads.latent, "SUNK": op.sinks is not None}
    sinks = cache.keys if op.sinks is None else binding.tensor(op.sinks)
    launch = _Launch(op, cache, sinks, constants, place, size)
    of_chunks = {"BLOCK_N": tile.positions, "num_warps": tile.warps, "num_stages": tile.stages}
    launch_chunks = _Launch(op, cache, sinks, constants | of_chunks, place, size)

    def run(step: DeviceStep, qkv: Tensor) -> Tensor:
        output = qkv.new_empty((qkv.shape[0], heads.query_width))
        totals = None
        if step.weighing is not None and not binding.selected:
            totals = qkv.new_empty((qkv.shape[0], heads.query_heads, 2), dtype=torch.float32)
        if len(step.decodes):
            launch.decodes(step, qkv, output, totals, least)
        chunks = step.chunks.get(chunk // share)
        if chunks is not None and len(chunks):
            launch_chunks(step, chunks, qkv, output, totals, chunk)
        if totals is not None and step.weighing is not None:
            weigh(step, step.weighing, qkv, totals)
        return output

    return DevicePart(place, run, queries=chunk // share)


def _weighs(
    op: Attention, cache: Cache, constants: Mapping[str, Any], rows: int, least: int
) -> Callable[[DeviceStep, DeviceWeighing, Tensor, Tensor], None]:
    """Adds what a layer's queries that are asked give to the places of their contexts; called behind its attention.

    Tiles have `rows` rows, and the `least` where each row of the step asks of one query.
    """
    size = constants["PADDED"]

    def run(step: DeviceStep, weighing: DeviceWeighing, qkv: Tensor, totals: Tensor) -> None:
        table, masses, single = step.tables[cache.table], weighing.masses[cache.table], weighing.most == 1
        places = _WEIGHED_PLACES if single else _positions(size)
        weigh_kernel[(len(weighing.rows), -(-masses.shape[1] // places))](
            qkv,
            totals,
            masses,
            cache.keys,
            cache.key_scales,
            table,
            step.contexts,
            step.dropped[cache.table],
            step.starts,
            step.added,
            weighing.rows,
            weighing.queries,
            table.stride(0),
            masses.stride(0),
            op.scale,
            op.softcap or 0.0,
            op.window or 0,
            BLOCK_M=least if single else rows,
            BLOCK_N=places,
            num_warps=8 if size > 256 else 4,
            num_stages=2,
            **constants,
        )

    return run


class _Launch:
    """One layer's attention, ready to be launched."""

    def __init__(
        self, op: Attention, cache: Cache, sinks: Tensor, constants: dict[str, Any], place: Place, size: int
    ) -> None:
        self._op, self._cache, self._sinks, self._constants = op, cache, sinks, constants
        self._place, self._size = place, size
        self._segment = SEGMENT if place.deterministic else 0

    def decodes(self, step: DeviceStep, qkv: Tensor, output: Tensor, totals: Tensor | None, rows: int) -> None:
        """Tiles of one query each, in pieces where that gives more processors something to do.

        `totals`, where they are asked for, are as the kernel has them.
        """
        heads, tiles = self._op.heads, len(step.decodes)
        longest = step.longest if self._op.window is None else min(step.longest, self._op.window + SEGMENT)
        groups = heads.kv_heads * self._constants["GROUPS"]
        pieces = pieces_of(self._place, tiles * groups, longest)
        if pieces == 1:
            self(step, step.decodes, qkv, output, totals, rows)
            return
        mixed = qkv.new_empty((pieces, tiles, heads.query_heads, self._size), dtype=torch.float32)
        states = qkv.new_empty((pieces, tiles, heads.query_heads, 2), dtype=torch.float32)
        self(step, step.decodes, qkv, output, totals, rows, (mixed, states), pieces)
        together = padded(heads.query_heads // groups)
        large = together * self._size > _MERGED_AHEAD
        merge_kernel[(tiles, groups)](
            output,
            mixed,
            states,
            states if totals is None else totals,
            self._sinks,
            step.contexts,
            step.dropped[self._cache.table],
            step.starts,
            step.decodes.rows,
            pieces,
            self._op.window or 0,
            QUERY_HEADS=heads.query_heads,
            KV_HEADS=heads.kv_heads,
            SIZE=heads.head_dim,
            PADDED=self._size,
            HEADS=together,
            BLOCK_N=self._constants["BLOCK_N"],
            WINDOWED=self._constants["WINDOWED"],
            SUNK=self._constants["SUNK"],
            SEGMENT=self._segment,
            GROUPS=self._constants["GROUPS"],
            AHEAD=1 if large else 3,
            NOTED=totals is not None,
            TYPE=self._constants["TYPE"],
            num_warps=8 if large else 4,
            enable_fp_fusion=not self._place.deterministic,
        )

    def __call__(
        self,
        step: DeviceStep,
        tiles: Tiles,
        qkv: Tensor,
        output: Tensor,
        totals: Tensor | None,
        rows: int,
        partial: tuple[Tensor, Tensor] | None = None,
        pieces: int = 1,
    ) -> None:
        cache, op = self._cache, self._op
        table = step.tables[cache.table]
        mixed, states = partial or (output, output)
        attend_kernel[(len(tiles), op.heads.kv_heads * self._constants["GROUPS"], pieces)](
            qkv,
            output,
            mixed,
            states,
            output if totals is None else totals,
            cache.keys,
            cache.values,
            cache.key_scales,
            cache.value_scales,
            self._sinks,
            table,
            step.contexts,
            step.dropped[cache.table],
            step.starts,
            step.added,
            tiles.rows,
            tiles.firsts,
            table.stride(0),
            op.scale,
            op.softcap or 0.0,
            op.window or 0,
            BLOCK_M=rows,
            CHUNKS=tiles is not step.decodes,
            SPLIT=partial is not None,
            SEGMENT=self._segment,
            NOTED=totals is not None,
            # Pieces are merged by either kernel: of products and sums, neither may make one rounding where the other
            # makes two.
            enable_fp_fusion=not self._place.deterministic,
            **self._constants,
        )
