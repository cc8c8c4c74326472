"""Geometry of the KV cache: what a model's layers need to store, and how it is cut into blocks.

Layers that see the same positions form a group (all of them: full attention; the last `window`: sliding window), and
each group has a block table of its own. All groups take blocks from one pool, so every group holds the same number of
layers; where the counts do not divide, the last group of a kind leaves a slot of its blocks unused.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError, UnsupportedModel

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1, "uint8": 1}
)
# What keys and values may be kept as instead of numbers: bytes with a scale for each head and token, or two to a byte,
# with a scale and a least value for each 32 of a head's values.
KV_BYTES: Mapping[str, str] = MappingProxyType({"int8": "int8", "fp8": "float8_e4m3fn", "int4": "uint8"})
KV_GROUP = 32
# A head's number of values is a multiple of this for int4: two groups.
_INT4_HEADS = 2 * KV_GROUP


class LayerKV(msgspec.Struct, frozen=True):
    """What one attention layer stores for each token, and how far back it looks (`window` tokens, None: all)."""

    kv_heads: int
    head_dim: int
    window: int | None = None


class Plane(msgspec.Struct, frozen=True):
    """A named array stored for each token, block or sequence of a layer; `shape` is that of one entry."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    granularity: Literal["token", "block", "sequence"] = "token"

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry: its extents times the size of its type."""
        size = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size


class GroupSpec(msgspec.Struct, frozen=True):
    """Layers that share a block table; `layers` are indices into the model, `window` is None for full attention."""

    layers: tuple[int, ...]
    window: int | None = None


class KVSpec(msgspec.Struct, frozen=True):
    """The cache's geometry; a block holds `block_size` tokens of `layers_per_block` layers."""

    block_size: int
    planes: tuple[Plane, ...]
    groups: tuple[GroupSpec, ...]
    layers_per_block: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all planes."""
        per_layer = sum(
            plane.entry_bytes * (self.block_size if plane.granularity == "token" else 1)
            for plane in self.planes
            if plane.granularity != "sequence"
        )
        return per_layer * self.layers_per_block

    def blocks_for(self, tokens: int, chunk: int) -> int:
        """Most blocks that one sequence of `tokens` tokens holds at a time, computed in chunks of at most `chunk`."""
        total = 0
        for group in self.groups:
            held = tokens if group.window is None else min(tokens, group.window - 1 + chunk + self.block_size - 1)
            total += -(-held // self.block_size)
        return total


def beside(spec: KVSpec, layers: Sequence[LayerKV], dtype: str) -> KVSpec:
    """What a second model keeps in the blocks of the first group of `spec`, all of its layers together.

    Raises UnsupportedModel where that group does not keep whole contexts, or the layers differ in their heads.
    """
    if spec.groups[0].window is not None:
        raise UnsupportedModel("A draft model needs a target with a layer whose attention has no window.")
    whole = [LayerKV(layer.kv_heads, layer.head_dim, None) for layer in layers]
    return build_kv_spec(whole, dtype, spec.block_size)


def build_kv_spec(layers: Sequence[LayerKV], dtype: str, block_size: int = 16, kept: str = "auto") -> KVSpec:
    """Group `layers` by window and choose how many layers share a block.

    Keys and values are of `dtype`, or bytes with scales where they are `kept` as one of KV_BYTES.

    A group has as many layers as the rarest kind, since hybrid models have few layers of full attention and each group
    costs a block table. Raises UnsupportedModel where layers differ in their heads, and ConfigurationError where what
    they are to be kept as does not take such heads.
    """
    if len({(layer.kv_heads, layer.head_dim) for layer in layers}) != 1:
        raise UnsupportedModel("Layers with different numbers or sizes of KV heads are not supported.")
    kinds: dict[int | None, list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(layer.window, []).append(index)
    size = min(len(members) for members in kinds.values())
    groups = tuple(
        GroupSpec(layers=tuple(members[first : first + size]), window=window)
        for window, members in sorted(kinds.items(), key=lambda kind: kind[0] or 0)
        for first in range(0, len(members), size)
    )
    planes = _planes(layers[0].kv_heads, layers[0].head_dim, dtype, kept)
    return KVSpec(block_size=block_size, planes=planes, groups=groups, layers_per_block=size)


def _planes(heads: int, head_dim: int, dtype: str, kept: str) -> tuple[Plane, ...]:
    stored = KV_BYTES.get(kept, dtype)
    width, scales = head_dim, Plane("scale", (heads,), "float32")
    if kept == "int4":
        if head_dim % _INT4_HEADS:
            raise ConfigurationError(
                f"--kv-cache-dtype int4 takes heads of a multiple of {_INT4_HEADS} values, and this model's have "
                f"{head_dim}; take int8."
            )
        width, scales = head_dim // 2, Plane("scale", (heads, 2 * head_dim // KV_GROUP), "bfloat16")
    planes = [Plane(name, (heads, width), stored) for name in ("key", "value")]
    if kept in KV_BYTES:
        planes += [msgspec.structs.replace(scales, name=name) for name in ("key_scale", "value_scale")]
    return tuple(planes)
