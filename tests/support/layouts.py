"""The layouts of the KV cache in torch: what native/src/kv.hpp says, written another way."""

from torch import Tensor

from penstock.kernels.dispatch import KVLayout

TILE = 16


def stored(slots: Tensor, kind: str, layout: KVLayout, itemsize: int | None = None) -> Tensor:
    """`slots` [slots, heads, size] as a plane of `kind` "key" or "value" has them, [slots, heads] as one of scales.

    `itemsize` is that of what attention multiplies, where it is not the slots' own.
    """
    if layout == "slots":
        return slots
    if slots.dim() == 2:
        return slots.reshape(-1, TILE, slots.shape[1]).transpose(1, 2).reshape(slots.shape)
    (_, heads, size), pair = slots.shape, 4 // (itemsize or slots.element_size())
    if kind == "key":
        return slots.reshape(-1, TILE, heads, size // pair, pair).permute(0, 2, 3, 1, 4).reshape(slots.shape)
    return slots.reshape(-1, TILE // pair, pair, heads, size).permute(0, 3, 1, 4, 2).reshape(slots.shape)


def slots_of(plane: Tensor, kind: str, layout: KVLayout, itemsize: int | None = None) -> Tensor:
    """What `stored` made, as `slots` again."""
    if layout == "slots":
        return plane
    if plane.dim() == 2:
        return plane.reshape(-1, plane.shape[1], TILE).transpose(1, 2).reshape(plane.shape)
    (_, heads, size), pair = plane.shape, 4 // (itemsize or plane.element_size())
    if kind == "key":
        return plane.reshape(-1, heads, size // pair, TILE, pair).permute(0, 3, 1, 2, 4).reshape(plane.shape)
    return plane.reshape(-1, heads, TILE // pair, size, pair).permute(0, 2, 4, 1, 3).reshape(plane.shape)
