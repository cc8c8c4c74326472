"""Operations in which ranks meet, in torch."""

from torch import Tensor

from penstock.core.shares import Stripe
from penstock.kernels.collective import AllReduce, Gather, GatherRows, ShareRows
from penstock.kernels.dispatch import Binding, Kernel, StepState


def in_ranks(_op: AllReduce | Gather | GatherRows, binding: Binding) -> str | None:
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
    if op.stripe is None:
        return lambda _step, x: ranks.gather(x, op.widths, everywhere=op.everywhere)
    stripe = op.stripe
    return lambda _step, x: ranks.gather(x, op.widths, everywhere=True)[stripe.rows(len(x))]


def share_rows(op: ShareRows, _binding: Binding) -> Kernel:
    """The rows of this rank's share."""
    return lambda _step, x: x[op.stripe.rows(len(x))].clone()


def gather_rows(op: GatherRows, binding: Binding) -> Kernel:
    """The rows of all ranks: each rank's are its columns of a single row."""
    ranks, size = binding.ranks, op.stripe.size
    assert ranks is not None

    def run(step: StepState, x: Tensor) -> Tensor:
        tokens, width = len(step.batch.token_ids), x.shape[1]
        shares = [Stripe(rank, size).rows(tokens) for rank in range(size)]
        widths = [(share.stop - share.start) * width for share in shares]
        return ranks.gather(x.reshape(1, -1), widths, everywhere=True).view(tokens, width)

    return run
