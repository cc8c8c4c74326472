"""Which implementation chooses tokens: the compiled one, or its reference where nothing was compiled."""

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.sampling.choice import Choose
from penstock.sampling.reference import Reference


def chooser(vocab_size: int) -> Choose:
    """What chooses tokens from rows of up to `vocab_size` logits here; one step at a time."""
    return native.choose if OBSTACLE is None else Reference(vocab_size).choose
