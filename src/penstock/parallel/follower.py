"""Every rank but the first: it computes what it is told, and meets others, or gives the next stage what it has made."""

from collections.abc import Callable
from typing import NoReturn, Protocol

from penstock.core.faults import Fault
from penstock.parallel.messages import Arm, Begin, Clear, Compute, Copy, Inbox, ProgramName, batch_of
from penstock.parallel.passing import Before, Behind
from penstock.stepping.model import Model
from penstock.stepping.storage import Blocks


class Points(Protocol):
    """Where something can be made to go wrong (`engine/fail_points.py`)."""

    def passed(self, name: str) -> None:
        """The code passes the place of this name."""

    def arm(self, fault: Fault) -> None:
        """Have something go wrong, if it is to be in this process."""


def follow(
    inbox: Inbox,
    storage: Blocks,
    program: Callable[[ProgramName], Model],
    points: Points,
    before: Before | None = None,
    behind: Behind | None = None,
) -> NoReturn:
    """Do what the first rank says until it closes its end, which raises EOFError.

    `program` makes one of the model's programs, and is asked once for each. `before` and `behind` are other stages.
    """
    programs: dict[ProgramName, Model] = {}
    while True:
        points.passed("rank.wait")
        match inbox.to_rank():
            case Clear(blocks):
                storage.clear_blocks(blocks)
            case Copy(pairs):
                storage.copy_blocks(pairs)
            case Compute() as told:
                name = told.program
                if name not in programs:
                    programs[name] = program(name)
                points.passed("rank.step")
                given = () if before is None else before.take(told.number)
                made = programs[name].results(batch_of(told), *given)
                if behind is not None:
                    points.passed("rank.give")
                    behind.give(told.number, made)
            case Arm(fault):
                points.arm(fault)
            case Begin():
                raise ValueError("A rank is told once what it is part of.")
