"""How the next token is chosen: random numbers, the logits pipeline, log probabilities, and each row's own state.

A row's result depends on its logits and its own state alone, bit for bit, never on the rows beside it.
"""

from penstock.sampling.row import RowState
from penstock.sampling.sampler import Sampler

__all__ = ["RowState", "Sampler"]
