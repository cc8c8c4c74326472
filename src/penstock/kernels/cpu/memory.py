"""Memory for packed weights: in large pages where the system has them, since a step reads all of it in order."""

import mmap

import torch
from torch import Tensor

# Processors read lines of this many bytes, and the kernels load them aligned.
ALIGNMENT = 64
# Bytes that are asked of the system at a time: many large pages; the last one is seldom full.
_PIECE = 64 << 20
# Shared memory, which is what one gets otherwise, is given large pages by hardly any system.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class PageArena:
    """Hands out memory piece after piece. A piece goes back to the system when no tensor holds any of it."""

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """uint8 [size] that begins at a multiple of `ALIGNMENT`; its values are zero."""
        start = -self._piece.data_ptr() % ALIGNMENT
        if start + size > len(self._piece):
            pages = mmap.mmap(-1, max(size, _PIECE), **_PRIVATE)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                pages.madvise(mmap.MADV_HUGEPAGE)
            self._piece, start = torch.frombuffer(pages, dtype=torch.uint8), 0
        taken, self._piece = self._piece[start : start + size], self._piece[start + size :]
        return taken
