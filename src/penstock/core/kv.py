"""State of a model's layers: what each stores, which layers are seen alike, and where all of it lies in blocks.

A layer's state is named planes. Layers that see the same positions form a group, and a group has block tables of its
own. All groups take blocks of one size from one pool, whatever their layers store: a block is bytes. What a group's
layers store for `block_size` tokens is one *slot*, of `width` blocks; a group with one record a sequence has slots for
whole records. `core/layout.py` chooses the size of a block so that little of it stays empty.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError, UnsupportedModel
from penstock.core.layout import ALIGNMENT, Item, choose_block_bytes, pack, pack_rows

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1, "uint8": 1}
)
# What keys and values may be kept as instead of numbers: bytes with a scale for each head and token, or two to a byte,
# with a scale and a least value for each 32 of a head's values.
KV_BYTES: Mapping[str, str] = MappingProxyType({"int8": "int8", "fp8": "float8_e4m3fn", "int4": "uint8"})
KV_GROUP = 32
# A head's number of values is a multiple of this for int4: two groups.
_INT4_HEADS = 2 * KV_GROUP
# Tokens from one kept record of a sequence to the next.
RECORD_INTERVAL = 512

Granularity = Literal["token", "block", "sequence"]


class Visibility(msgspec.Struct, frozen=True):
    """Which positions a position attends to: the `first` of its sequence, and the `last` up to itself (None: all).

    With `source`, they are those of another sequence, which its own has as its source, and all of them.
    """

    first: int = 0
    last: int | None = None
    source: bool = False


EVERYTHING = Visibility()


class LayerKV(msgspec.Struct, frozen=True):
    """What one attention layer stores for each token, and how far back it looks (`window` tokens, None: all).

    Where it is `latent`, keys are values, too, and are stored once. Where it has a `source`, it stores that for each
    token of it instead.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None
    latent: bool = False
    source: bool = False


class Plane(msgspec.Struct, frozen=True):
    """A named array stored for each token, block or sequence of a layer; `shape` is that of one entry.

    A sequence's record may be cut along its first axis, where it is larger than a block.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    granularity: Granularity = "token"

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry: its extents times the size of its type."""
        size = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size

    def slot_bytes(self, block_size: int) -> int:
        """Bytes of a slot's entries, of `block_size` tokens or of one record."""
        return self.entry_bytes * (block_size if self.granularity == "token" else 1)


class LayerState(msgspec.Struct, frozen=True):
    """A layer's planes, and which positions it sees; planes for each sequence hold what has come of all of them."""

    planes: tuple[Plane, ...]
    sees: Visibility = EVERYTHING


class Piece(msgspec.Struct, frozen=True):
    """Where a plane of a layer lies: `offset` bytes into block `part` of a slot of `group`.

    Of a record that is cut, it has `rows` rows of its first axis from `first_row` on.
    """

    plane: Plane
    group: int
    part: int
    offset: int
    first_row: int = 0
    rows: int = 0


class GroupSpec(msgspec.Struct, frozen=True):
    """Layers whose slots are held alike.

    Attributes:
        layers: indices into the model.
        sees: which positions they attend to.
        width: blocks of a slot.
        record_interval: tokens from one record that is kept to the next, where a slot is a record of the sequence;
            None where it is `block_size` tokens.
        used_bytes: bytes of a slot that planes take.
    """

    layers: tuple[int, ...]
    sees: Visibility = EVERYTHING
    width: int = 1
    record_interval: int | None = None
    used_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it keeps slots of all tokens of a context."""
        return self.sees == EVERYTHING and self.record_interval is None

    @property
    def grows(self) -> bool:
        """Whether it takes slots for the tokens that come, unlike one of a source, which is there from the start."""
        return not self.sees.source


class KVSpec(msgspec.Struct, frozen=True):
    """The cache's geometry.

    Attributes:
        block_size: tokens of a slot.
        block_bytes: bytes of a block.
        groups: those that see everything first, then one that sees sources, those with windows and those with records.
        pieces: of each layer, where its planes lie.
    """

    block_size: int
    block_bytes: int
    groups: tuple[GroupSpec, ...]
    pieces: tuple[tuple[Piece, ...], ...]

    def slot_bytes(self, group: int) -> int:
        """Bytes of a slot of a group."""
        return self.groups[group].width * self.block_bytes

    @property
    def keeps_nothing(self) -> bool:
        """Whether no layer stores anything, so that a step has to have all tokens of its rows."""
        return not self.groups

    @property
    def num_tables(self) -> int:
        """Block tables that a sequence has at an executor: one for each part of each group."""
        return sum(group.width for group in self.groups)

    @property
    def growth(self) -> int:
        """Blocks that the tokens of a further slot take."""
        return sum(group.width for group in self.groups if group.grows)

    def first_table(self, group: int) -> int:
        """The table of a group's first part; those of its others follow."""
        return sum(each.width for each in self.groups[:group])

    def table_of(self, layer: int) -> int:
        """The table by which a layer's planes for tokens are found, which are all in one block."""
        piece = next(piece for piece in self.pieces[layer] if piece.plane.granularity != "sequence")
        return self.first_table(piece.group) + piece.part

    @property
    def planes(self) -> tuple[Plane, ...]:
        """All kinds of planes that layers have."""
        return tuple(dict.fromkeys(piece.plane for pieces in self.pieces for piece in pieces))

    def token_bytes(self, layer: int) -> int:
        """Bytes that a layer stores for each token."""
        return sum(piece.plane.entry_bytes for piece in self.pieces[layer] if piece.plane.granularity == "token")

    @property
    def source_group(self) -> int | None:
        """The group whose slots are of sources' tokens; None where no layer has a source."""
        return next((index for index, group in enumerate(self.groups) if group.sees.source), None)

    def blocks_for(self, tokens: int, chunk: int, most: int | None = None, source: int = 0) -> int:
        """Most blocks that one sequence of `tokens` tokens holds at a time, computed in chunks of at most `chunk`.

        Of groups that see everything it holds at most `most` tokens. Its source has `source` tokens.
        """
        total = 0
        for group in self.groups:
            if group.sees.source:
                total += -(-source // self.block_size) * group.width
                continue
            if group.record_interval is not None:
                # The one that is written, and the one that it was copied from.
                total += 2 * group.width if tokens else 0
                continue
            held = tokens if most is None else min(tokens, most)
            if group.sees.last is not None:
                window = group.sees.last - 1 + chunk + self.block_size - 1
                # A beginning ends within a slot, too.
                held = min(tokens, window + group.sees.first + (self.block_size - 1 if group.sees.first else 0))
            total += -(-held // self.block_size) * group.width
        return total


def beside(spec: KVSpec, layers: Sequence[LayerKV], dtype: str) -> KVSpec:
    """What a second model keeps in blocks with the ids of the first table of `spec`, all of its layers together.

    Raises UnsupportedModel where that group does not keep whole contexts.
    """
    if not spec.groups[0].is_whole:
        raise UnsupportedModel("A draft model needs a target with a layer whose attention has no window.")
    whole = [msgspec.structs.replace(layer, window=None) for layer in layers]
    return build_kv_spec(whole, dtype, spec.block_size)


def build_kv_spec(layers: Sequence[LayerKV], dtype: str, block_size: int = 16, kept: str = "auto") -> KVSpec:
    """The geometry for layers of attention, whose keys and values are of `dtype`, or `kept` as one of KV_BYTES.

    Raises ConfigurationError where what they are to be kept as does not take such heads.
    """
    states = [LayerState(_planes(layer, dtype, kept), Visibility(0, layer.window, layer.source)) for layer in layers]
    return lay_out(states, block_size)


def lay_out(layers: Sequence[LayerState], block_size: int, record_interval: int = RECORD_INTERVAL) -> KVSpec:
    """Group layers by what they see, choose the size of a block, and place every plane.

    Planes for tokens and planes for sequences of one layer are in different groups. `record_interval` is a multiple of
    `block_size`.
    """
    if not layers:
        return KVSpec(block_size, ALIGNMENT, (), ())
    kinds: dict[tuple[bool, Visibility], list[int]] = {}
    for index, layer in enumerate(layers):
        if any(plane.granularity != "sequence" for plane in layer.planes):
            kinds.setdefault((False, layer.sees), []).append(index)
        if any(plane.granularity == "sequence" for plane in layer.planes):
            kinds.setdefault((True, EVERYTHING), []).append(index)
    ordered = sorted(kinds.items(), key=_place)
    items = [_items(layers, members, record, block_size) for (record, _), members in ordered]
    block_bytes = choose_block_bytes(
        [(sizes, sees.last is None) for ((record, sees), _), sizes in zip(ordered, items, strict=True) if not record],
        [sizes for ((record, _), _), sizes in zip(ordered, items, strict=True) if record],
    )
    groups: list[GroupSpec] = []
    pieces: list[list[Piece]] = [[] for _ in layers]
    for ((record, sees), members), sizes in zip(ordered, items, strict=True):
        placed = pack_rows(sizes, block_bytes) if record else pack(sizes, block_bytes)
        width = 1 + max(place.part for place in placed)
        used = sum(item.bytes for item in sizes)
        groups.append(GroupSpec(tuple(members), sees, width, record_interval if record else None, used))
        for place in placed:
            index, offset = members[place.item.owner], place.offset
            planes = layers[index].planes
            for plane in planes if not record else (planes[place.item.plane],):
                if (plane.granularity == "sequence") != record:
                    continue
                pieces[index].append(Piece(plane, len(groups) - 1, place.part, offset, place.first_row, place.rows))
                offset += _aligned(plane.slot_bytes(block_size))
    return KVSpec(block_size, block_bytes, tuple(groups), tuple(map(tuple, pieces)))


def _place(kind: tuple[tuple[bool, Visibility], list[int]]) -> tuple[bool, int, bool, int]:
    """What groups are ordered by: those that see everything come first."""
    (record, sees), _ = kind
    return record, sees.last or 0, sees.source, sees.first


def _items(layers: Sequence[LayerState], members: Sequence[int], record: bool, block_size: int) -> list[Item]:
    """What has to be placed of a group's layers: each layer's planes together, or each record by itself."""
    items = []
    for owner, index in enumerate(members):
        planes = layers[index].planes
        if record:
            for place, plane in enumerate(planes):
                if plane.granularity == "sequence":
                    rows = plane.shape[0]
                    items.append(Item(owner, _aligned(plane.entry_bytes // rows) * rows, place, rows))
        else:
            sizes = [_aligned(plane.slot_bytes(block_size)) for plane in planes if plane.granularity != "sequence"]
            items.append(Item(owner, sum(sizes)))
    return items


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _planes(layer: LayerKV, dtype: str, kept: str) -> tuple[Plane, ...]:
    heads, head_dim, stored = layer.kv_heads, layer.head_dim, KV_BYTES.get(kept, dtype)
    if layer.latent and kept in ("fp8", "int4"):
        raise ConfigurationError(
            f"--kv-cache-dtype {kept} is not for latent attention, which this model has; take int8."
        )
    width, scales = head_dim, Plane("scale", (heads,), "float32")
    if kept == "int4":
        if head_dim % _INT4_HEADS:
            raise ConfigurationError(
                f"--kv-cache-dtype int4 takes heads of a multiple of {_INT4_HEADS} values, and this model's have "
                f"{head_dim}; take int8."
            )
        width, scales = head_dim // 2, Plane("scale", (heads, 2 * head_dim // KV_GROUP), "bfloat16")
    names = ("key",) if layer.latent else ("key", "value")
    planes = [Plane(name, (heads, width), stored) for name in names]
    if kept in KV_BYTES:
        planes += [msgspec.structs.replace(scales, name=f"{name}_scale") for name in names]
    return tuple(planes)
