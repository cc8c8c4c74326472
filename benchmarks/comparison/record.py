"""What was measured so far, kept on disk after every child, so that a run that was cut off can go on."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import reporting
from comparison.contenders import MACHINE, Workload

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Machine:
    """Where figures come from; `boot` changes with every start of the machine."""

    cpu: str
    cores: int
    memory_gib: float
    boot: str

    @classmethod
    def here(cls) -> "Machine":
        """This machine."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
        return cls(reporting.cpu_model(), reporting.cores(), round(memory, 1), boot)


@dataclass(frozen=True)
class Run:
    """One child of one round: `figures`, or the `error` in place of them."""

    round: int
    contender: str
    checkpoint: str
    seconds: float
    figures: dict[str, Any] | None = None
    error: str | None = None


@dataclass
class Record:
    """All runs on one machine with one workload, and why contenders have none."""

    machine: Machine
    workload: Workload
    runs: list[Run] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        """Keep a run; it takes the place of an earlier try, which failed."""
        self.runs = [kept for kept in self.runs if _key(kept) != _key(run)] + [run]

    def has(self, round: int, contender: str, checkpoint: str) -> bool:
        """Whether there are figures of that run."""
        return any(_key(run) == (round, contender, checkpoint) and run.figures is not None for run in self.runs)

    def rounds(self) -> int:
        """Rounds in which somebody has figures."""
        return len({run.round for run in self.runs if run.figures is not None and run.contender != MACHINE})

    def figures(self, contender: str, checkpoint: str) -> dict[int, dict[str, Any]]:
        """A contender's figures by round."""
        return {
            run.round: run.figures
            for run in sorted(self.runs, key=lambda run: run.round)
            if (run.contender, run.checkpoint) == (contender, checkpoint) and run.figures is not None
        }

    def values(
        self, contender: str, checkpoint: str, read: Callable[[dict[str, Any]], float | None]
    ) -> dict[int, float]:
        """One of a contender's figures by round."""
        values = {round: read(figures) for round, figures in self.figures(contender, checkpoint).items()}
        return {round: value for round, value in values.items() if value is not None}

    def read_bandwidth(self) -> dict[int, float]:
        """GB/s of memory reads by round."""
        return self.values(MACHINE, "large", lambda figures: figures["read"])

    def save(self, path: Path) -> None:
        """Write it whole, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".part")
        scratch.write_text(json.dumps(asdict(self), indent=1) + "\n")
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """What `save` wrote."""
        value = json.loads(path.read_text())
        workload = {**value["workload"], "batch_sizes": tuple(value["workload"]["batch_sizes"])}
        runs = [Run(**run) for run in value["runs"]]
        return cls(Machine(**value["machine"]), Workload(**workload), runs, value["missing"])

    def check_same(self, machine: Machine, workload: Workload) -> None:
        """Exit with a sentence where new figures would not belong to the old ones."""
        if machine != self.machine:
            raise SystemExit(
                f"--continue: the figures so far are from {self.machine.cpu}, {self.machine.cores} cores, and this is "
                "another machine, or it was started anew since; begin again without --continue."
            )
        if workload != self.workload:
            raise SystemExit(
                f"--continue: the figures so far were measured with {self.workload}, not {workload}; give the same "
                "options, or begin again without --continue."
            )


def _key(run: Run) -> tuple[int, str, str]:
    return run.round, run.contender, run.checkpoint


@dataclass(frozen=True)
class Ratio:
    """Quotients pair by pair within rounds."""

    median: float
    least: float
    greatest: float
    pairs: int


def ratio(ours: dict[int, float], theirs: dict[int, float]) -> Ratio | None:
    """Of the rounds that have both; None where none has."""
    quotients = [ours[round] / theirs[round] for round in ours if round in theirs]
    return Ratio(median(quotients), min(quotients), max(quotients), len(quotients)) if quotients else None


def best(candidates: Sequence[tuple[str, dict[int, float]]]) -> tuple[str, dict[int, float]] | None:
    """The candidate whose median is largest, with its values by round; None where nobody has any."""
    there = [candidate for candidate in candidates if candidate[1]]
    return max(there, key=lambda candidate: median(candidate[1].values()), default=None)
