"""Processes that compute one model together, as operations in which they meet see them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Ranks(Protocol):
    """This rank among its group. All ranks call the same methods in the same order."""

    @property
    def handle(self) -> Any:
        """The object by which native programs know this rank and the memory where all meet."""

    def sum(self, x: Tensor) -> Tensor:
        """What all ranks have, added up, in the type of x: in their order and in float32, unless libraries choose."""

    def choices(self, layer: str, experts: int) -> "NDArray[np.int64] | None":
        """Where choices of a layer's experts are counted, if they are, [experts + 2].

        It has how often each was chosen, the sum of these, and what the group with most of a step's rows has computed.
        Numbers are added up over steps.
        """

    def gather(self, x: Tensor, widths: Sequence[int], *, everywhere: bool) -> Tensor:
        """The columns of all ranks beside each other: in all of them, or in the first alone."""
