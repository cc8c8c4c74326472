"""How the planes of layers of different sizes share blocks of one size, with little of them empty.

A pool of equal blocks never fragments: any free block serves any group. What it costs is the empty end of each block.
Layers that are seen alike may lie in one block whatever their sizes, so that only the size of a block and the number of
blocks in a slot have to be chosen. Allocators with a size for each kind (Zhang et al., "Jenga: Effective Memory
Management for Serving LLM with Heterogeneity", SOSP 2025) waste nothing within blocks, and strand memory between them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Planes begin at a multiple of this many bytes: kernels read lines, and one that crosses two costs twice.
ALIGNMENT = 64
# What a further table costs, as a share of the memory: each has to be kept for every sequence, and sent.
_TABLE_COST = 0.01
# Waste that a small number of tables may cost.
_TOLERATED = 0.08
# Blocks in a slot that are tried.
_MOST_PARTS = 16


class Item(NamedTuple):
    """What lies in one piece: of layer `owner` of a group the planes for tokens, or one `plane` of `rows` rows.

    A record may be cut between rows. Each row begins at a multiple of ALIGNMENT.
    """

    owner: int
    bytes: int
    plane: int = 0
    rows: int = 1


class Placed(NamedTuple):
    """An item, or some rows of it, `offset` bytes into block `part` of a slot."""

    item: Item
    part: int
    offset: int
    first_row: int = 0
    rows: int = 0


def pack(items: Sequence[Item], block_bytes: int) -> list[Placed]:
    """Items in as few blocks as first fit by decreasing size finds; in the order of the items where all are alike.

    Raises ValueError where one is larger than a block.
    """
    ends: list[int] = []
    placed = []
    for item in sorted(items, key=lambda item: -item.bytes):
        if item.bytes > block_bytes:
            raise ValueError(f"{item.bytes} bytes do not lie in a block of {block_bytes}")
        part = next((part for part, end in enumerate(ends) if end + item.bytes <= block_bytes), len(ends))
        if part == len(ends):
            ends.append(0)
        placed.append(Placed(item, part, ends[part]))
        ends[part] += item.bytes
    return placed


def pack_rows(items: Iterable[Item], block_bytes: int) -> list[Placed]:
    """Records one behind the other, those with the largest rows first, cut between rows where a block ends."""
    part, end = 0, 0
    placed = []
    for item in sorted(items, key=lambda item: -(item.bytes // item.rows)):
        row, first = item.bytes // item.rows, 0
        if row > block_bytes:
            raise ValueError(f"a row of {row} bytes does not lie in a block of {block_bytes}")
        while first < item.rows:
            fitting = min(item.rows - first, (block_bytes - end) // row)
            if fitting == 0:
                part, end = part + 1, 0
                continue
            placed.append(Placed(item, part, end, first, fitting))
            first += fitting
            end += fitting * row
    return placed


def choose_block_bytes(tokens: Sequence[tuple[list[Item], bool]], records: Sequence[list[Item]]) -> int:
    """The size of a block for groups with planes for tokens, each told whether it keeps whole contexts, and records.

    It is the one with the least waste, in short contexts, which all groups keep whole, or in long ones, where only some
    do, whichever is larger.
    """
    least = max((item.bytes for items, _ in tokens for item in items), default=0)
    least = max([least, *(item.bytes // item.rows for items in records for item in items)])
    if not tokens:
        return max(sum(item.bytes for item in items) for items in records)
    sizes = {_capacity(items, parts) for items, _ in tokens for parts in range(1, min(len(items), _MOST_PARTS) + 1)}
    return min(sorted({max(size, least) for size in sizes}), key=lambda size: _cost(tokens, size))


def _capacity(items: Sequence[Item], parts: int) -> int:
    """The size of blocks into which `parts` of them take all items, by longest processing time first."""
    loads = [0] * parts
    for item in sorted(items, key=lambda item: -item.bytes):
        loads[loads.index(min(loads))] += item.bytes
    return max(loads)


def _cost(groups: Sequence[tuple[list[Item], bool]], block_bytes: int) -> tuple[float, float]:
    parts = [1 + max(place.part for place in pack(items, block_bytes)) for items, _ in groups]
    used = [sum(item.bytes for item in items) for items, _ in groups]
    whole = [place for place, (_, keeps) in enumerate(groups) if keeps] or range(len(groups))
    cases = (range(len(groups)), whole)
    waste = max(
        1 - sum(used[place] for place in case) / (block_bytes * sum(parts[place] for place in case)) for case in cases
    )
    return max(0.0, waste - _TOLERATED), waste + _TABLE_COST * sum(parts)
