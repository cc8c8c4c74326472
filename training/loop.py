"""The training loop, for the target and for the draft: phases of rows, checkpoints to resume from, a log of losses."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training.data import Corpus, Encoded, Packer
from training.export import fingerprint, write_json
from training.model import document_lengths
from training.optimizer import Optimizer, rate_scale
from training.recipe import SEED, WORK, Phase, Recipe

SAVE_SECONDS = 120
LOG_EVERY = 10


class Batch(NamedTuple):
    """Rows to learn from, each [rows, positions + 1]: tokens, whether each is learned, hints (see Corpus)."""

    tokens: Tensor
    learned: Tensor
    syllables: Tensor
    topics: Tensor

    @property
    def inputs(self) -> Tensor:
        """Tokens that are read, [rows, positions]."""
        return self.tokens[:, :-1]

    @property
    def mask(self) -> Tensor:
        """Where what comes next is learned, [rows, positions]."""
        return self.learned[:, 1:]

    @property
    def wanted(self) -> Tensor:
        """The learned tokens, [n]."""
        return self.tokens[:, 1:][self.mask]


# The sum of the losses of a batch's learned tokens; gets the lengths of its conversations too (see document_lengths).
Loss = Callable[[Batch, list[int]], Tensor]


COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@dataclass(frozen=True)
class Schedule:
    """Which phase each step belongs to."""

    phases: tuple[tuple[Phase, int], ...]

    @classmethod
    def of(cls, recipe: Recipe) -> Schedule:
        """Steps of each phase from its share of the tokens."""
        return cls(
            tuple(
                (phase, round(recipe.tokens * phase.share / (phase.positions * phase.rows))) for phase in recipe.phases
            )
        )

    @property
    def steps(self) -> int:
        return sum(steps for _, steps in self.phases)


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Exits with a sentence where CUDA is asked for and missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("This torch sees no CUDA device; use --device cpu.")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """What a reader of the model card wants to know of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    text = described.read_text() if described.exists() else ""
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{torch.get_num_threads()} threads of {names[0] if names else 'a CPU'}"


def _batches(corpus: Corpus, recipe: Recipe, number: int, skip: int) -> Iterator[Batch]:
    """The batches of a phase, from its step `skip` on."""
    phase = recipe.phases[number]
    # Phases of the same shape see the conversations in other orders.
    rows = Packer(corpus, phase.positions, SEED + number, phase.short).rows()
    for _ in range(skip * phase.rows):
        next(rows)
    while True:
        tokens, learned, *hints = map(np.stack, zip(*itertools.islice(rows, phase.rows), strict=True))
        ids, syllables, topics = (torch.from_numpy(array.astype(np.int64)) for array in (tokens, *hints))
        yield Batch(ids, torch.from_numpy(learned), syllables, topics)


class Run:
    """A training run that can be interrupted at any time and started again."""

    def __init__(self, recipe: Recipe, model: nn.Module, loss: Loss, corpus: Corpus, device: torch.device) -> None:
        self.recipe, self.model, self.loss, self.device = recipe, model.to(device), loss, device
        self.corpus = corpus
        text = (getattr(corpus, name) for name in Encoded._fields)
        self.fingerprint = fingerprint(repr(recipe).encode(), *(array.tobytes() for array in text))
        self.directory = WORK / recipe.name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.optimizer = Optimizer(model, recipe)
        self.schedule = Schedule.of(recipe)
        self.step = 0
        self.seconds = 0.0

    @property
    def state_file(self) -> Path:
        return self.directory / "state.safetensors"

    @property
    def log_file(self) -> Path:
        return self.directory / "log.jsonl"

    def resume(self) -> None:
        """Go on from the last saved state, where there is one.

        Exits with a sentence where it is of another recipe or another text.
        """
        if self.state_file.exists():
            with safe_open(self.state_file, "pt") as file:
                meta = file.metadata()
            if meta["fingerprint"] != self.fingerprint:
                raise SystemExit(
                    f"{self.state_file} is of another recipe or another text; remove {self.directory} to train anew."
                )
            self.step, self.seconds = int(meta["step"]), float(meta["seconds"])
            tensors = load_file(self.state_file)
            self.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model/")})
            self.optimizer.load({k[10:]: v for k, v in tensors.items() if k.startswith("optimizer/")})
            print(f"Going on from step {self.step} of {self.schedule.steps}.")
        # What was logged behind the last saved state happens again.
        lines = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= self.step]
        self.log_file.write_text("".join(f"{line}\n" for line in kept))

    def save(self) -> None:
        """Write the state beside the old one, then put it in its place."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimizer/{name}": value for name, value in self.optimizer.tensors().items()}
        scratch = self.state_file.with_suffix(".new")
        meta = {"step": str(self.step), "seconds": str(self.seconds), "fingerprint": self.fingerprint}
        save_file({k: v.contiguous() for k, v in tensors.items()}, scratch, metadata=meta)
        scratch.replace(self.state_file)

    def train_step(self, batch: Batch) -> float:
        """One optimizer step over all rows; returns the mean loss in nats a learned token."""
        batch = Batch(*(part.to(self.device) for part in batch))
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.loss(batch, document_lengths(batch.inputs, self.corpus.begin)) / batch.mask.sum()
        loss.backward()
        self.optimizer.step(rate_scale(self.step, self.schedule.steps, self.recipe))
        return float(loss.detach())

    def train(self) -> None:
        """All steps that are left, saving now and then; run.json tells at the end what it took."""
        saved, first = time.monotonic(), 0
        recent: list[float] = []
        with Progress(*COLUMNS) as progress, self.log_file.open("a") as log:
            task = progress.add_task(self.recipe.name, total=self.schedule.steps, completed=self.step)
            for number, (_, steps) in enumerate(self.schedule.phases):
                if self.step < first + steps:
                    batches = _batches(self.corpus, self.recipe, number, self.step - first)
                first += steps
                while self.step < first:
                    began = time.monotonic()
                    recent.append(self.train_step(next(batches)))
                    self.step += 1
                    self.seconds += time.monotonic() - began
                    progress.update(task, completed=self.step, description=f"{self.recipe.name} loss {recent[-1]:.3f}")
                    if self.step % LOG_EVERY == 0:
                        log.write(json.dumps({"step": self.step, "loss": sum(recent) / len(recent)}) + "\n")
                        log.flush()
                        recent.clear()
                    if time.monotonic() - saved > SAVE_SECONDS:
                        self.save()
                        saved = time.monotonic()
        self.save()
        facts = {"steps": self.step, "tokens": self.recipe.tokens, "seconds": round(self.seconds)}
        write_json(
            self.directory / "run.json", {**facts, "device": device_name(self.device), "torch": torch.__version__}
        )
