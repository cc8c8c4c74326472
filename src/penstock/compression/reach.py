"""How many rows of calibration texts each expert gets, and how many texts it takes until all have enough."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.compression.calibration import BlockRunner
from penstock.compression.projections import matrices
from penstock.kernels.packing import Weight
from penstock.layers.decoder import DecoderBlock
from penstock.layers.experts import MixtureOfExperts

Load = Callable[..., dict[str, Weight]]
"""(weights) → them by name, in the model's own precision."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a number of texts reach.

    Attributes:
        texts: how many of them.
        experts: how many there are in all layers.
        few: how many of these have fewer rows than their projections need.
        least: rows of the one that has fewest.
        gained: rows that the texts that were looked at last had for those few.
    """

    texts: int
    experts: int
    few: int
    least: int
    gained: int

    @property
    def further(self) -> bool:
        """Whether more texts are worth looking at: some experts lack rows, and the last texts had some for them."""
        return self.few > 0 and self.gained > 0


class _Counter:
    """Counts the rows of each expert, by layer."""

    def __init__(self, declared: dict[str, int]) -> None:
        self.rows = {name: torch.zeros(experts, dtype=torch.int64) for name, experts in declared.items()}

    def linear(self, name: str, x: Tensor) -> None:
        """Nothing of other projections is wanted."""

    def experts(self, name: str, x: Tensor, chosen: Tensor) -> None:
        """The experts of some rows."""
        self.rows[name] += torch.bincount(chosen.flatten().long(), minlength=len(self.rows[name]))


def mixtures(blocks: Sequence[DecoderBlock]) -> list[MixtureOfExperts]:
    """The layers that have experts."""
    return [mixture for block in blocks if (mixture := block.mixture) is not None]


def reach(
    runner: BlockRunner, load: Load, needed: Callable[[int], int], texts: Sequence[list[int]], step: int
) -> Iterator[Reached]:
    """How far the first `step` texts reach, then twice as many and so on, until more are not worth it or texts end.

    An expert that the router never chooses would otherwise take all texts there are. The model computes each text once,
    as it was before anything is rounded; one block is in memory at a time.

    Args:
        runner: for the longest text.
        load: reads weights.
        needed: the rows that a number of inputs needs.
        texts: token ids.
        step: how many of them are looked at together.
    """
    decoder = runner.declaration.decoder
    blocks = decoder.blocks
    least = {
        mixture.gate_up.name: max(needed(spec.shape[1]) for spec in matrices(block) if spec.experts > 1)
        for block in blocks
        if (mixture := block.mixture) is not None
    }
    counter = _Counter({mlp.gate_up.name: mlp.routing.experts for mlp in mixtures(blocks)})
    last = max(index for index, block in enumerate(blocks) if block.mixture is not None)
    beside = load(*decoder.input_weights)
    for first in range(0, len(texts), step):
        some = texts[first : first + step]
        before = {name: rows.clone() for name, rows in counter.rows.items()}
        states = runner.embed(load(*decoder.embedding_weights), some)
        for block in blocks[: last + 1]:
            states = list(runner.run(block, beside | load(*block.weights), some, states, counter))
        lacking = {name: rows < least[name] for name, rows in counter.rows.items()}
        reached = Reached(
            texts=first + len(some),
            experts=sum(len(rows) for rows in counter.rows.values()),
            few=sum(int(few.sum()) for few in lacking.values()),
            least=min(int(rows.min()) for rows in counter.rows.values()),
            gained=sum(int((counter.rows[name] - before[name])[few].sum()) for name, few in lacking.items()),
        )
        yield reached
        if not reached.further:
            return
