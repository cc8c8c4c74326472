"""Operations in which the devices of ranks meet."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from penstock.kernels.collective import AllReduce, Gather
from penstock.kernels.cuda.place import Place
from penstock.kernels.cuda.program import DevicePart
from penstock.kernels.dispatch import Binding
from penstock.kernels.meeting import in_ranks
from penstock.kernels.ranks import Ranks


@runtime_checkable
class SharesTokens(Ranks, Protocol):
    """Ranks whose first one alone knows some of a step's tokens, since its device has chosen them."""

    def share(self, x: Tensor) -> None:
        """Have the first rank's x in all of them, in its place."""


def takes_meeting(op: AllReduce | Gather, binding: Binding) -> str | None:
    """`supports` of these operations."""
    if (why := in_ranks(op, binding)) is not None:
        return why
    return None if isinstance(binding.ranks, SharesTokens) else "these ranks meet in the processor's memory"


def all_reduce(_op: AllReduce, binding: Binding, place: Place) -> DevicePart:
    """The sum of what all ranks have."""
    ranks = binding.ranks
    assert isinstance(ranks, SharesTokens)
    return DevicePart(place, lambda _step, x: ranks.sum(x), share=ranks.share)


def gather(op: Gather, binding: Binding, place: Place) -> DevicePart:
    """The columns of all ranks beside each other."""
    ranks = binding.ranks
    assert isinstance(ranks, SharesTokens)
    return DevicePart(place, lambda _step, x: ranks.gather(x, op.widths, everywhere=op.everywhere), share=ranks.share)
