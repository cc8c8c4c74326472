"""What computes a step, as those that run it see it."""

from typing import Protocol

from torch import Tensor

from penstock.kernels.batch import StepBatch


class Model(Protocol):
    """A compiled model: a ragged batch in, logits [logit rows, vocabulary] or hidden states [logit rows, width] out."""

    def run(self, batch: StepBatch) -> Tensor:
        """Compute one step; writes this step's keys and values into the KV storage."""

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and makes later steps faster; whether more is left."""

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """The same; all that it makes, where that is more: hidden states behind the logits."""
