"""Which operations of a native program go together for some rows after others: native/src/row_wise.hpp does them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.kernels.dispatch import FusedStep
from penstock.kernels.tape import Value

# Each thread reads all weights of a run for each of its parts of rows. Up to this, they come from a cache that threads
# share, or from memory as fast as they are multiplied. Of larger ones, threads share what one has read.
MOST_WEIGHT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One operation, or several that go together.

    Attributes:
        inputs: what they read that others made.
        outputs: what they make that others read.
    """

    steps: tuple[FusedStep, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def pieces_of(steps: Sequence[FusedStep], wanted: Sequence[Value]) -> list[Piece]:
    """The steps of a program whose results are `wanted`, in their order: those that can go together do."""
    pieces: list[Piece] = []
    later = set(wanted)
    for run in reversed(list(_runs(steps))):
        if len(run) == 1:
            pieces.append(Piece(run, run[0].inputs, run[0].outputs))
        else:
            made = [value for step in run for value in step.outputs]
            read = dict.fromkeys(value for step in run for value in step.inputs if value not in made)
            pieces.append(Piece(run, tuple(read), tuple(value for value in made if value in later)))
        later.update(pieces[-1].inputs)
    pieces.reverse()
    return pieces


def _runs(steps: Sequence[FusedStep]) -> Iterator[tuple[FusedStep, ...]]:
    for (by_row, _), group in groupby(steps, lambda step: (_is_by_row(step), step.outputs and step.outputs[0].stripe)):
        run = tuple(group)
        if by_row and _is_worth_it(run):
            yield run
        else:
            yield from ((step,) for step in run)


def _is_worth_it(run: tuple[FusedStep, ...]) -> bool:
    """Whether reading all of its weights for each part of the rows takes less than rows take through memory.

    Weights that are made larger first would be made so for each part.
    """
    parts = [step.part for step in run]
    return sum(part.weight_bytes for part in parts) <= MOST_WEIGHT_BYTES and not any(part.unpacks for part in parts)


def _is_by_row(step: FusedStep) -> bool:
    return step.part.by_row and not any(value.selected for value in (*step.inputs, *step.outputs))
