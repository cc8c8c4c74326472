"""Every rank but the first: it computes what it is told, and meets others, or gives the next stage what it has made."""

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TypeVar

from penstock.core.faults import Fault
from penstock.parallel.messages import (
    Arm,
    Begin,
    Clear,
    Compute,
    Copy,
    Give,
    Inbox,
    Pool,
    Prepare,
    ProgramName,
    Put,
    batch_of,
)
from penstock.parallel.passing import Before, Behind
from penstock.stepping.model import Model
from penstock.stepping.storage import Blocks


class Points(Protocol):
    """Where something can be made to go wrong (`engine/fail_points.py`)."""

    def passed(self, name: str) -> None:
        """The code passes the place of this name."""

    def arm(self, fault: Fault) -> None:
        """Have something go wrong, if it is to be in this process."""


class Parts(Protocol):
    """A rank's part of slots (`parallel/slots.py`)."""

    def meet(self, blocks: Sequence[int]) -> object:
        """Meet the others with what blocks have here."""

    def put(self, blocks: Sequence[int], content: bytes) -> None:
        """Put the own part of a slot into blocks."""


Pooled = TypeVar("Pooled", bound=Blocks)


def follow(
    inbox: Inbox,
    storage: Pooled,
    pool: Callable[[int], Pooled],
    program: Callable[[ProgramName, Pooled], Model],
    slots: Callable[[Pooled], Parts],
    points: Points,
    before: Before | None = None,
    behind: Behind | None = None,
) -> NoReturn:
    """Do what the first rank says until it closes its end, which raises EOFError.

    `pool` makes a KV pool of a number of blocks, instead of that in `storage`, and tells so. `program` makes one of the
    model's programs over a pool, and is asked once for each; `slots` makes what copies slots of one. `before` and
    `behind` are other stages.
    """
    programs: dict[ProgramName, Model] = {}
    parts: list[Parts] = []

    def part() -> Parts:
        if not parts:
            parts.append(slots(storage))
        return parts[0]

    def named(name: ProgramName) -> Model:
        if name not in programs:
            programs[name] = program(name, storage)
        return programs[name]

    while True:
        points.passed("rank.wait")
        match inbox.to_rank():
            case Clear(blocks):
                storage.clear_blocks(blocks)
            case Copy(pairs):
                storage.copy_blocks(pairs)
            case Give(blocks):
                part().meet(blocks)
            case Put(blocks, content):
                part().put(blocks, content)
            case Compute() as told:
                own = named(told.program)
                points.passed("rank.step")
                given = () if before is None else before.take(told.number)
                made = own.results(batch_of(told), *given)
                if behind is not None:
                    points.passed("rank.give")
                    behind.give(told.number, made)
            case Prepare(name):
                named(name).use_idle_time()
            case Pool(blocks):
                programs.clear()
                parts.clear()
                storage = pool(blocks)
            case Arm(fault):
                points.arm(fault)
            case Begin():
                raise ValueError("A rank is told once what it is part of.")
