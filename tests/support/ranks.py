"""Ranks of a model as threads of one process: each has its own weights and keys, and they meet in shared memory."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from torch import Tensor

from penstock.core.shares import USUAL_UNIT, ExpertPlaces, Stripe, TensorRank
from penstock.core.stages import stages_of
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.models.declaration import ModelDeclaration
from penstock.parallel.choices import Choices
from penstock.parallel.places import create_memory
from penstock.parallel.shared import SharedRanks
from support.stepping import Stepper, make_stepper

Found = TypeVar("Found")


@contextmanager
def shared_ranks(size: int) -> Iterator[list[SharedRanks]]:
    """Ranks that share memory."""
    memory = create_memory(size)
    try:
        yield [SharedRanks(memory, rank, size) for rank in range(size)]
    finally:
        os.close(memory)


def together(ranks: list[SharedRanks], work: Callable[[int], Found]) -> list[Found]:
    """What each rank makes, all at the same time; if one fails, the others do not wait for it."""

    def one(rank: int) -> Found:
        try:
            return work(rank)
        except BaseException:
            ranks[rank].part()
            raise

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, range(len(ranks))))


def group_of(server: int) -> list[psutil.Process]:
    """The processes that compute a server's model: the engine's, then the other ranks'. Of one that starts, some."""
    found: list[psutil.Process] = []
    for engine in psutil.Process(server).children():
        # It may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            ranks = [each for each in engine.children(recursive=True) if "penstock.assembly.rank" in command_of(each)]
            found += [engine, *sorted(ranks, key=lambda each: each.pid)]
    return found


def command_of(process: psutil.Process) -> list[str]:
    """Its arguments; none where it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


class RanksStepper:
    """Steppers that compute one model together, in stages or all layers at once; what the first has is the result."""

    def __init__(
        self,
        path: Path,
        size: int,
        *,
        unit: int = USUAL_UNIT,
        experts: int = 1,
        stages: int = 1,
        places: tuple[ExpertPlaces, ...] = (),
        stripes: bool = False,
        **settings: Any,
    ) -> None:
        """Each has a part of every layer or, where they are `stripes`, of every context.

        `places` are as in `TensorRank`; what is chosen is counted in `choices` of each rank.
        """
        whole = model_of(open_checkpoint(path))
        if stripes:
            parts = [whole.of_stripe(Stripe(rank, size)) for rank in range(size)]
        else:
            parts = [whole.of_rank(TensorRank(rank, size, unit, experts, places)) for rank in range(size)]
        memory = create_memory(size)
        self.choices = [Choices(experts) for _ in range(size)]
        self._ranks = [SharedRanks(memory, rank, size, choices=self.choices[rank].of) for rank in range(size)]
        os.close(memory)
        self.steppers: list[Stepper | StagesStepper] = [
            make_stepper(path, declaration=part, ranks=ranks, **settings)
            if stages == 1
            else StagesStepper(path, stages, declaration=part, ranks=ranks, **settings)
            for part, ranks in zip(parts, self._ranks, strict=True)
        ]

    @property
    def written(self) -> list[int]:
        """Bytes that each rank has written for others."""
        return [each.written for each in self._ranks]

    def step(self, added: dict[int, list[int]], wanted: str = "all") -> dict[int, Tensor]:
        """See `Stepper.step`."""
        return together(self._ranks, lambda rank: self.steppers[rank].step(added, wanted))[0]


class StagesStepper:
    """Steppers that each compute some layers of a model, one after another; what the last has is the result."""

    def __init__(
        self, path: Path, stages: int, *, declaration: ModelDeclaration | None = None, **settings: Any
    ) -> None:
        whole = declaration or model_of(open_checkpoint(path))
        self.stages = stages_of(whole.stage_ends(stages))
        self.steppers = [make_stepper(path, declaration=whole.of_stage(stage), **settings) for stage in self.stages]
        # Bytes that a stage has given the next one for the newest step.
        self.passed: list[int] = []

    def step(self, added: dict[int, list[int]], wanted: str = "all") -> dict[int, Tensor]:
        """See `Stepper.step`."""
        found: tuple[Tensor, ...] = ()
        rows = sorted(added, key=lambda row: (len(added[row]) > 1, row))
        counts: list[int] = []
        self.passed = []
        for stepper in self.steppers:
            stepper.lengths += [0] * (max(rows) + 1 - len(stepper.lengths))
            batch, counts = stepper.batch(added, rows, wanted)
            found = stepper.program.results(batch, *found)
            self.passed.append(sum(each.nbytes for each in found))
            for row in rows:
                stepper.lengths[row] += len(added[row])
        return dict(zip(rows, found[0].split(counts), strict=True))
