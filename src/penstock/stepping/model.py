"""What computes a step, as those that run it see it."""

import functools
from collections.abc import Callable
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class Begins(Protocol):
    """A model whose other parts are computed elsewhere, so that several steps can be under way."""

    def begin(self, batch: StepBatch) -> Callable[[], tuple[Tensor, ...]]:
        """Begin a step behind all before it; what is returned waits for its results, and is asked in the same order."""


def begin(model: Model, batch: StepBatch) -> Callable[[], tuple[Tensor, ...]]:
    """Begin a step where that can be done before its results are asked for; what is returned gives these."""
    return model.begin(batch) if isinstance(model, Begins) else functools.partial(model.results, batch)
