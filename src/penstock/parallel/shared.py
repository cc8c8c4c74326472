"""Ranks on one machine, which meet in memory that all of them have mapped."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.kernels.cpu.native import native
from penstock.parallel.beating import mapped

# For how long a rank waits for another one. What ends or stops is seen long before, by those that started it.
PATIENCE_SECONDS = 600.0


class SharedRanks:
    """This rank among those of a machine (`kernels.ranks.Ranks`)."""

    def __init__(
        self,
        descriptor: int,
        rank: int,
        size: int,
        patience: float = PATIENCE_SECONDS,
        choices: Callable[[str, int], NDArray[np.int64] | None] = lambda _layer, _experts: None,
    ) -> None:
        """`descriptor`: of `places.create_memory`'s memory, stays the caller's; `choices` is as in `kernels.ranks`."""
        self.choices = choices
        memory, self._done = mapped(descriptor, size)
        self._native = native.Ranks(memory, rank, size, patience)

    @property
    def handle(self) -> "native.Ranks":
        """The object by which native programs know this rank and the memory where all meet."""
        return self._native

    @property
    def written(self) -> int:
        """Bytes that this rank has written for others so far; other threads may ask while it computes."""
        return self._native.written

    @property
    def waited(self) -> float:
        """Seconds that this rank has waited for others so far; other threads may ask, too."""
        return self._native.waited / 1e9

    def sum(self, x: Tensor) -> Tensor:
        """What all ranks have, added in their order in float32; in the type of x."""
        values = x.to(torch.float32, copy=True).contiguous()
        self._native.sum(values.view(-1).numpy())
        return values.to(x.dtype)

    def gather(self, x: Tensor, widths: Sequence[int], *, everywhere: bool) -> Tensor:
        """The columns of all ranks beside each other; not `everywhere`, ranks other than the first have zeros."""
        whole = torch.zeros((len(x), sum(widths)))
        values = x.to(torch.float32).contiguous()
        self._native.gather(values.view(-1).numpy(), len(x), list(widths), everywhere, whole.view(-1).numpy())
        return whole.to(x.dtype)

    def gather_bytes(self, own: NDArray[np.uint8], sizes: Sequence[int]) -> NDArray[np.uint8]:
        """The bytes of all ranks one behind the other, of multiples of four; ranks other than the first have zeros."""
        whole = np.zeros(sum(sizes), np.uint8)
        # They are copied, whatever they are.
        self._native.gather(own.view(np.float32), 1, [size // 4 for size in sizes], False, whole.view(np.float32))
        return whole

    def beats(self, rank: int) -> int:
        """How often a rank has said so."""
        return self._native.beats(rank)

    def done(self, rank: int) -> int:
        """Operations that a rank had computed when it last said so."""
        return int(self._done[rank])

    def at_meeting(self, action: Callable[[], None] | None) -> None:
        """Have this done each time the rank is about to meet the others, or nothing any more."""
        self._native.at_meeting(action)

    def part(self) -> None:
        """Let ranks that wait for this one, or for others, end with an error."""
        self._native.part()
