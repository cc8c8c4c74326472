"""A checkpoint in Hugging Face's layout, or in a GGUF file, opened by reading headers only."""

import fnmatch
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.layers.weights import WeightPart, WeightSpec
from penstock.loading.gguf import SUFFIX, UNKNOWN, is_gguf, is_packed, read_gguf
from penstock.loading.gguf_model import config_of, entries_of
from penstock.loading.quantized import CONFIG_KEY, INERT, Entry, QuantizedEntry, checked_method, combined
from penstock.loading.safetensors import TensorEntry, read_header
from penstock.quantization.gguf_types import BLOCK_TYPES

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Tables that old releases stored and every implementation computes.
_ALWAYS_UNUSED = ("*rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias")
_LONGEST_SHOWN = 255
WEIGHT_DTYPES = ("float32", "bfloat16", "float16")
# Of what is read while a checkpoint is opened: shapes, states, biases.
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

    What a GGUF file says of itself is said here as such a directory would say it.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> list[TensorEntry]:
        """Every tensor of the files that one of `tensors` is made of."""
        found: list[TensorEntry] = []
        for entry in self.tensors.values():
            found.extend(entry.parts.values() if isinstance(entry, QuantizedEntry) else (entry,))
        return found

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors.values())

    def locate(self, declaration: Declared) -> dict[str, Entry]:
        """The entry of every tensor that `declaration` needs, by its canonical name.

        Raises ModelFileError where one is missing or has another shape or type, and where the files hold tensors that
        the model does not know: the model would then not be what its files say.
        """
        found: dict[str, Entry] = {}
        for weight in declaration.weights:
            for part in weight.parts:
                found[part.tensor] = self._entry_for(part, declaration)
        used = {entry.name for entry in found.values()}
        inert = (*_ALWAYS_UNUSED, *declaration.inert_tensors, *(INERT if self.quantization else ()))
        extra = [
            name
            for name in self.tensors
            if name not in used
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in inert)
            and not self._is_empty_bias(name)
        ]
        if extra:
            shown = ", ".join(sorted(extra)[:3]) + (" …" if len(extra) > 3 else "")
            raise ModelFileError(
                f"The checkpoint has {len(extra)} tensors that {declaration.architecture} does not use ({shown}); "
                "its config.json describes another model."
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
        return isinstance(entry, TensorEntry) and len(entry.shape) == 1 and not any(read_bytes(entry))

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
        if entry.shape != part.shape:
            raise ModelFileError(
                f"Tensor {entry.name} has shape {list(entry.shape)}, but by config.json it must be {list(part.shape)}."
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
        file = read_gguf(folder)
        return Checkpoint(folder, config_of(file), {}, entries_of(file) if weights else {})
    if not folder.is_dir():
        kind = "is a file, not a directory" if folder.exists() else "does not exist"
        raise ModelFileError(f"{folder} {kind}; pass a directory with {CONFIG} and safetensors files, or a .gguf file.")
    config = read_json(folder / CONFIG)
    generation = read_json(folder / GENERATION_CONFIG) if (folder / GENERATION_CONFIG).exists() else {}
    declared = checked_method(config)
    tensors = _read_tensors(folder) if weights else {}
    if declared is None:
        return Checkpoint(folder, config, generation, tensors)
    method, said = declared
    together = combined(tensors, method, said, read_bytes)
    plain = {key: value for key, value in config.items() if key != CONFIG_KEY}
    return Checkpoint(folder, plain, generation, together, said)


def read_bytes(entry: TensorEntry) -> bytes:
    """The bytes of a small tensor; raises ModelFileError where it is none."""
    if entry.nbytes > _MOST_READ:
        raise ModelFileError(f"Tensor {entry.name} has {entry.nbytes} bytes, far more than one of its name has.")
    with entry.file.open("rb") as stream:
        stream.seek(entry.offset)
        return stream.read(entry.nbytes)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; raises ModelFileError where it is missing or is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        # JSON can spell half of a surrogate pair, which is no text: a message that shows it could not be written.
        json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise ModelFileError(f"{file.parent} has no {file.name}; pass a directory with a complete model.") from None
    except OSError as error:
        raise ModelFileError(f"{file.name} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file.name} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ModelFileError(f"{file.name} must hold a JSON object.")
    return content


def _read_tensors(folder: Path) -> dict[str, TensorEntry]:
    if (folder / INDEX).exists():
        return _read_shards(folder)
    if (folder / SINGLE_FILE).exists():
        return read_header(folder / SINGLE_FILE)
    files = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", SUFFIX))
    instead = f"; {files[0]} is in a format that is not loaded" if files else ""
    if files and files[0].endswith(SUFFIX):
        instead = f"; pass the path of {files[0]} itself"
    raise ModelFileError(f"{folder} has neither {SINGLE_FILE} nor {INDEX}{instead}.")


def _read_shards(folder: Path) -> dict[str, TensorEntry]:
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ModelFileError(f"{INDEX} has no weight_map from tensor names to files.")
    headers: dict[str, dict[str, TensorEntry]] = {}
    for shard in sorted(set(names.values())):
        # A shard is a file of this directory; anything else could read whatever the server can.
        if Path(shard).name != shard:
            raise ModelFileError(f"{INDEX} names {shard!r}, which is not a file of the model's own directory.")
        # Unlike Path.exists, false for a name that no file can have.
        if not os.path.exists(folder / shard):
            raise ModelFileError(f"The shard {shard[:_LONGEST_SHOWN]}, which {INDEX} names, is missing; download it.")
        headers[shard] = read_header(folder / shard)
    for tensor, shard in names.items():
        if tensor not in headers[shard]:
            raise ModelFileError(f"{INDEX} says that {shard} holds {tensor}, but it does not; download both again.")
    return {tensor: entry for header in headers.values() for tensor, entry in header.items()}
