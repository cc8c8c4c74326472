"""Operations in which ranks meet, in torch."""

from penstock.kernels.collective import AllReduce, Gather
from penstock.kernels.dispatch import Binding, Kernel


def in_ranks(_op: AllReduce | Gather, binding: Binding) -> str | None:
    """`supports` of these operations."""
    return None if binding.ranks is not None else "this process computes alone"


def all_reduce(_op: AllReduce, binding: Binding) -> Kernel:
    """The sum of what all ranks have."""
    ranks = binding.ranks
    assert ranks is not None
    return lambda _step, x: ranks.sum(x)


def gather(op: Gather, binding: Binding) -> Kernel:
    """The columns of all ranks beside each other."""
    ranks = binding.ranks
    assert ranks is not None
    return lambda _step, x: ranks.gather(x, op.widths, everywhere=op.everywhere)
