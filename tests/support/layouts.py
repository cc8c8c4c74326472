"""The layouts of the KV cache in torch: what native/src/kv.hpp says, written another way."""

import torch
from torch import Tensor

from penstock.kernels.dispatch import KVLayout

TILE = 16
# Values of which each two share a byte: the n-th with the n-th behind half of them.
RUN = 64


def stored(slots: Tensor, kind: str, layout: KVLayout, itemsize: int | None = None) -> Tensor:
    """`slots` [slots, heads, size] as a plane of `kind` "key" or "value" has them, [slots, heads, …] as one of scales.

    `itemsize` is that of what attention multiplies, where it is not the slots' own.
    """
    if layout == "slots":
        return slots
    if kind == "scale":
        return slots.reshape(-1, TILE, slots[0].numel()).transpose(1, 2).reshape(slots.shape)
    (_, heads, size), pair = slots.shape, 4 // (itemsize or slots.element_size())
    if kind == "key":
        return slots.reshape(-1, TILE, heads, size // pair, pair).permute(0, 2, 3, 1, 4).reshape(slots.shape)
    return slots.reshape(-1, TILE // pair, pair, heads, size).permute(0, 3, 1, 4, 2).reshape(slots.shape)


def slots_of(plane: Tensor, kind: str, layout: KVLayout, itemsize: int | None = None) -> Tensor:
    """What `stored` made, as `slots` again."""
    if layout == "slots":
        return plane
    if kind == "scale":
        return plane.reshape(-1, plane[0].numel(), TILE).transpose(1, 2).reshape(plane.shape)
    (_, heads, size), pair = plane.shape, 4 // (itemsize or plane.element_size())
    if kind == "key":
        return plane.reshape(-1, heads, size // pair, TILE, pair).permute(0, 3, 1, 2, 4).reshape(plane.shape)
    return plane.reshape(-1, heads, TILE // pair, size, pair).permute(0, 2, 4, 1, 3).reshape(plane.shape)


def stored_nibbles(slots: Tensor, kind: str, layout: KVLayout, itemsize: int) -> Tensor:
    """The same of two values to a byte, uint8 [slots, heads, size / 2], neighbours sharing one."""
    if layout == "slots":
        return slots
    wide = torch.stack((slots & 15, slots >> 4), -1).flatten(-2)
    runs = stored(wide, kind, layout, itemsize).reshape(-1, 2, RUN // 2)
    return (runs[:, 0] | (runs[:, 1] << 4)).reshape(slots.shape)


def nibbles_of(plane: Tensor, kind: str, layout: KVLayout, itemsize: int) -> Tensor:
    """What `stored_nibbles` made, as `slots` again."""
    if layout == "slots":
        return plane
    runs = plane.reshape(-1, RUN // 2)
    wide = torch.stack((runs & 15, runs >> 4), 1).reshape(*plane.shape[:2], -1)
    slots = slots_of(wide, kind, layout, itemsize)
    return slots[..., ::2] | (slots[..., 1::2] << 4)
