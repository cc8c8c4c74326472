"""The files of a model that is written block by block: an interrupted run goes on behind the last that was finished."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from penstock.compression.inputs import Rare
from penstock.core.errors import ConfigurationError
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.folder import CONFIG, INDEX
from penstock.loading.quantization_config import OLDER_FILES
from penstock.loading.safetensors import read_header
from penstock.loading.vector_modules import module_folders
from penstock.quantization.recipe import Recipe
from penstock.quantization.widths import Sensitivity

STATE = "quantize.json"
PARTIAL = ".partial"
# Endings of the other files that are copied: tokenizers and templates are in them.
_COPIED = (".json", ".jinja", ".metadata", ".model", ".txt")
_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class Output:
    """A directory that becomes a checkpoint of `count` files of tensors.

    While it is not one, a file says what run it is of, and what that run has found out.
    """

    path: Path
    count: int

    def begin(self, checkpoint: Checkpoint, recipe: Recipe, texts: Sequence[list[int]]) -> None:
        """Make the directory, or find in it what an interrupted run left; else raise ConfigurationError."""
        digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
        files = sorted({entry.file for entry in checkpoint.stored})
        identity = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        run = {"model": str(checkpoint.path.resolve()), "files": identity, "recipe": asdict(recipe), "texts": digest}
        out = self.path
        if (out / STATE).exists():
            if self._state()["run"] != run:
                raise ConfigurationError(
                    f"{out} has another run's blocks; give an empty directory, or its own settings."
                )
            return
        if out.exists() and (not out.is_dir() or any(each.name != STATE + PARTIAL for each in out.iterdir())):
            raise ConfigurationError(f"{out} is there already, and not empty; give a directory that can be made.")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{out} cannot be made: {error.strerror}.") from None
        self._write_state({"run": run})

    @property
    def measured(self) -> dict[str, Sensitivity]:
        """What `remember` was told, by projection."""
        found: dict[str, dict[str, Any]] = self._state().get("measured", {})
        return {
            name: Sensitivity(each["size"], {int(bits): loss for bits, loss in each["loss"].items()})
            for name, each in found.items()
        }

    def remember(self, name: str, found: Sensitivity) -> None:
        """Keep what a projection costs."""
        state = self._state()
        self._write_state({**state, "measured": {**state.get("measured", {}), name: asdict(found)}})

    @property
    def texts(self) -> int | None:
        """What `remember_texts` was told; None: nothing."""
        found: int | None = self._state().get("texts")
        return found

    def remember_texts(self, count: int) -> None:
        """Keep how many texts are calibrated on."""
        self._write_state({**self._state(), "texts": count})

    def rare(self, block: int) -> tuple[Rare, ...]:
        """What `remember_rare` was told of a block."""
        found: list[dict[str, Any]] = self._state().get("rare", {}).get(str(block), [])
        return tuple(Rare(**{**each, "experts": tuple(each["experts"])}) for each in found)

    def remember_rare(self, block: int, rare: Sequence[Rare]) -> None:
        """Keep which experts of a block too few rows were for."""
        state = self._state()
        self._write_state({**state, "rare": {**state.get("rare", {}), str(block): [asdict(each) for each in rare]}})

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / STATE).read_text())
        return found

    def _write_state(self, state: dict[str, Any]) -> None:
        partial = self.path / (STATE + PARTIAL)
        try:
            partial.write_text(json.dumps(state, indent=1))
            replace_file(partial, self.path / STATE)
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be written to: {error.strerror}.") from None

    def shard(self, index: int) -> Path:
        """The file of a block, or the last one, of all else."""
        return self.path / f"model-{index + 1:05d}-of-{self.count:05d}.safetensors"

    def save(self, tensors: dict[str, Tensor], index: int) -> None:
        """Write a file of tensors. Raises ConfigurationError where that fails."""
        file = self.shard(index)
        partial = file.with_name(file.name + PARTIAL)
        try:
            save_file(tensors, partial, metadata={"format": "pt"})
            # The library writes files that only the user can read.
            shutil.copymode(file.parent / STATE, partial)
            replace_file(partial, file)
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(
                f"{file} cannot be written: {error}. What is finished stays for another try."
            ) from None

    def finish(self, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
        """Make it a checkpoint with this configuration, and the other files of `checkpoint`; the note on the run goes
        last.
        """
        headers = [(self.shard(index).name, read_header(self.shard(index))) for index in range(self.count)]
        places = {name: shard for shard, header in headers for name in header}
        size = sum(entry.nbytes for _, header in headers for entry in header.values())
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (self.path / INDEX).write_text(json.dumps(index, indent=1))
        for file in checkpoint.path.iterdir():
            if file.is_file() and file.suffix in _COPIED and file.name not in (CONFIG, INDEX, *OLDER_FILES):
                shutil.copyfile(file, self.path / file.name)
        for module in module_folders(checkpoint.path):
            shutil.copytree(checkpoint.path / module, self.path / module, dirs_exist_ok=True)
        if (checkpoint.path / _TEMPLATES).is_dir():
            shutil.copytree(checkpoint.path / _TEMPLATES, self.path / _TEMPLATES, dirs_exist_ok=True)
        (self.path / CONFIG).write_text(json.dumps(config, indent=1))
        (self.path / STATE).unlink()


def replace_file(partial: Path, file: Path) -> None:
    """Give a file its name when all of it is on the disk."""
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(partial, file)
