"""A checkpoint in Hugging Face's layout, or in a GGUF file, opened by reading headers only."""

import fnmatch
import math
import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from penstock.core.config import Reason
from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.vectors import VectorModules
from penstock.layers.weights import WeightPart, WeightSpec
from penstock.loading.experts import of_each_expert
from penstock.loading.folder import CONFIG, Weights, read_weights, without_config
from penstock.loading.gguf import UNKNOWN, is_gguf, is_packed
from penstock.loading.gguf_encoders import modules_in, told
from penstock.loading.gguf_model import config_of, entries_of
from penstock.loading.gguf_parts import read_model
from penstock.loading.json_file import read_json
from penstock.loading.quantization_config import plain_config, read_quantization
from penstock.loading.quantized import INERT, Entry, QuantizedEntry, combined
from penstock.loading.safetensors import TensorEntry
from penstock.quantization.gguf_types import BLOCK_TYPES

GENERATION_CONFIG = "generation_config.json"

# Tables that old releases stored and every implementation computes.
_ALWAYS_UNUSED = ("*rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias")
WEIGHT_DTYPES = ("float32", "bfloat16", "float16")
# Most bytes of a tensor that is read while a checkpoint is opened: shapes, states, biases.
_MOST_READ = 1 << 20


class Declared(Protocol):
    """What is said of the tensors in a checkpoint."""

    @property
    def architecture(self) -> str:
        """What users know it by."""
        ...

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Every weight that is made of them."""
        ...

    @property
    def tensor_prefixes(self) -> tuple[tuple[str, str], ...]:
        """(ours, checkpoint's) beginnings of tensor names that may stand for each other."""
        ...

    @property
    def inert_tensors(self) -> tuple[str, ...]:
        """Patterns of tensors that may be there and are not needed."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a model directory holds.

    Attributes:
        config, generation_config: contents of the JSON files; the latter is empty where there is none.
        tensors: every tensor by its name in the files, and weights that several of them are by the name of the plain
            one; empty where only the configuration was opened.
        quantization: what config.json says of the latter, which `config` then lacks.
        found: what users should know of the files.
        vectors: what a GGUF file says of them; None: nothing.

    What a GGUF file says of itself is said here as such a directory would say it.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    quantization: Mapping[str, Any] = field(default_factory=dict)
    found: tuple[Reason, ...] = ()
    vectors: VectorModules | None = None

    @property
    def stored(self) -> list[TensorEntry]:
        """Every tensor of the files that one of `tensors` is made of."""
        found: list[TensorEntry] = []
        for entry in self.tensors.values():
            found.extend(entry.parts.values() if isinstance(entry, QuantizedEntry) else (entry,))
        return found

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors in the files."""
        return sum(entry.nbytes for entry in self.tensors.values())

    def locate(self, declaration: Declared) -> dict[str, Entry]:
        """The entry of every tensor that `declaration` needs, by the name of the part of a weight that it is.

        Raises ModelFileError where one is missing or has another shape or type, and where the files hold tensors that
        the model does not know: the model would then not be what its files say.
        """
        found: dict[str, Entry] = {}
        for weight in declaration.weights:
            for part in weight.parts:
                entry = self._entry_for(part, declaration)
                rows = part.rows or entry.rows
                found[part.name] = replace(entry, rows=rows, cut=part.cut, share=part.share, over=part.over)
        used = {entry.name for entry in found.values()}
        inert = (*_ALWAYS_UNUSED, *declaration.inert_tensors, *(INERT if self.quantization else ()))
        # Other ranks may have thousands.
        named = {pattern for pattern in inert if not any(sign in pattern for sign in "*?[")}
        patterns = [pattern for pattern in inert if pattern not in named]
        extra = [
            name
            for name in self.tensors
            if name not in used
            and name not in named
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            and not self._is_empty_bias(name)
        ]
        if extra:
            shown = ", ".join(sorted(extra)[:3]) + (" …" if len(extra) > 3 else "")
            raise ModelFileError(
                f"The checkpoint has {len(extra)} tensors that {declaration.architecture} does not use ({shown}); "
                "its configuration describes another model."
            )
        return found

    def find(self, tensor: str, declaration: Declared) -> Entry | None:
        """The entry of one of the model's tensors, by its canonical name; None where the files have none."""
        names = [tensor]
        for ours, theirs in declaration.tensor_prefixes:
            if tensor.startswith(ours):
                names.append(theirs + tensor.removeprefix(ours))
        return next((self.tensors[name] for name in names if name in self.tensors), None)

    def is_zero(self, entry: Entry) -> bool:
        """Whether it is a vector of zeros alone, such as quantizers write for layers that have no bias."""
        if not isinstance(entry, TensorEntry) or max(entry.shape, default=1) != math.prod(entry.shape):
            return False
        return not any(read_bytes(entry))

    def _is_empty_bias(self, name: str) -> bool:
        return (
            name.endswith(".bias")
            and f"{name.removesuffix('.bias')}.weight" in self.tensors
            and self.is_zero(self.tensors[name])
        )

    def _entry_for(self, part: WeightPart, declaration: Declared) -> Entry:
        entry = self.find(part.tensor, declaration)
        if entry is None:
            raise ModelFileError(
                f"The checkpoint lacks tensor {part.tensor}, which {declaration.architecture} needs"
                f"{self._instead_of(part.tensor)}."
            )
        if entry.shape != part.stored:
            said = self.path.name if is_gguf(self.path) else CONFIG
            raise ModelFileError(
                f"Tensor {entry.name} has shape {list(entry.shape)}, but by {said} it must be {list(part.stored)}."
            )
        if isinstance(entry, QuantizedEntry):
            return entry
        if entry.dtype not in WEIGHT_DTYPES and not is_packed(entry):
            kinds = BLOCK_TYPES if entry.dtype.startswith(UNKNOWN) else WEIGHT_DTYPES
            raise UnsupportedModel(f"Tensor {entry.name} is stored as {entry.dtype}; implemented: {', '.join(kinds)}.")
        return entry

    def _instead_of(self, tensor: str) -> str:
        """What to add to a message about a tensor that is not there."""
        if tensor.endswith("lm_head.weight"):
            return "; where the head is the embedding's matrix, config.json must have tie_word_embeddings = true"
        if not self.tensors or any(name.startswith("model.") for name in self.tensors):
            return ""
        return f"; the names in the files are like {min(self.tensors)}"


def open_checkpoint(path: str | Path, *, weights: bool = True) -> Checkpoint:
    """Open the model directory or GGUF file `path`; with `weights` off, only its configuration, for dummy weights.

    Raises ModelFileError where it is no directory, or a file is missing, truncated or malformed, and UnsupportedModel
    where its weights are quantized in a way that is not read.
    """
    folder = Path(path)
    if is_gguf(folder):
        file = read_model(folder)
        entries = entries_of(file) if weights else {}
        return Checkpoint(file.path, config_of(file), {}, entries, found=told(file), vectors=modules_in(file))
    if not folder.is_dir():
        kind = "is a file, not a directory" if folder.exists() else "does not exist"
        raise ModelFileError(f"{folder} {kind}; pass a directory with {CONFIG} and safetensors files, or a .gguf file.")
    if not os.path.exists(folder / CONFIG):
        raise ModelFileError(without_config(folder))
    config = read_json(folder / CONFIG)
    generation = read_json(folder / GENERATION_CONFIG) if os.path.exists(folder / GENERATION_CONFIG) else {}
    # What is declared in a way that is not read says more than the files of weights.
    read_quantization(folder, config, ())
    read = read_weights(folder) if weights else Weights({})
    quantization = read_quantization(folder, config, read.tensors)
    found, tensors = (*read.found, *quantization.found), of_each_expert(read.tensors)
    if quantization.method is None:
        return Checkpoint(folder, config, generation, tensors, found=found)
    together = combined(tensors, quantization.method, quantization.said, read_bytes)
    return Checkpoint(folder, plain_config(config), generation, together, quantization.said, found)


def read_bytes(entry: TensorEntry) -> bytes:
    """The bytes of a small tensor; raises ModelFileError where it is none."""
    if entry.nbytes > _MOST_READ:
        raise ModelFileError(f"Tensor {entry.name} has {entry.nbytes} bytes, far more than one of its name has.")
    with entry.file.open("rb") as stream:
        stream.seek(entry.offset)
        return stream.read(entry.nbytes)
