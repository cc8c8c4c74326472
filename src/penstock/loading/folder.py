"""Which files of a model's folder hold its weights, and what to say of a folder that has none that can be read."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core.config import Reason
from penstock.core.errors import ModelFileError
from penstock.loading.gguf_parts import models_in
from penstock.loading.json_file import read_json
from penstock.loading.safetensors import TensorEntry, read_header

CONFIG = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SAFETENSORS = ".safetensors"
_ADAPTER = "adapter_config.json"
# Safetensors files that hold something else than a model's weights in this layout.
_APART = ("consolidated", "adapter_model", "optimizer")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
# What a trainer leaves beside weights.
_ARGUMENTS = "training_args.bin"
_OTHERS = (".h5", ".msgpack", ".npz", ".onnx", ".ot", ".pkl")
_LONGEST_SHOWN = 255
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a folder's files by name, and what users should know of the choice of files."""

    tensors: Mapping[str, TensorEntry]
    found: tuple[Reason, ...] = ()


def read_weights(folder: Path) -> Weights:
    """The headers of the files that hold the weights.

    A whole file comes first, as with transformers; then the shards of an index; then, where there is no index or none
    of its shards is there, all safetensors files together. Raises ModelFileError where none can be read.
    """
    files = _safetensors(folder)
    if SINGLE_FILE in files:
        return Weights(read_header(folder / SINGLE_FILE), _unread(folder, files, {SINGLE_FILE}))
    indexed = _indexed(folder) if (folder / INDEX).exists() else {}
    shards = set(indexed.values())
    others = weight_names(folder)
    if shards and (shards & set(files) or not others):
        return Weights(_read_shards(folder, indexed), _unread(folder, files, shards))
    if not others:
        raise ModelFileError(without_weights(folder))
    why = f"none of the shards that {INDEX} names is there" if shards else "there is no index of them"
    _check_complete(folder, others)
    shown = others[0] if len(others) == 1 else f"all {len(others)} safetensors files"
    found = Reason("weight files", shown, why)
    return Weights(_read_together(folder, others), (found, *_unread(folder, files, set(others))))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise ModelFileError(f"{folder} cannot be read ({error.strerror}).") from None


def _safetensors(folder: Path) -> list[str]:
    return [name for name in _names(folder) if name.endswith(_SAFETENSORS) and not os.path.isdir(folder / name)]


def weight_names(folder: Path) -> list[str]:
    """Names the safetensors files in a folder that may hold a model's weights, in order. Raises ModelFileError."""
    return [name for name in _safetensors(folder) if not name.startswith(_APART)]


def _unread(folder: Path, files: Sequence[str], read: set[str]) -> tuple[Reason, ...]:
    """What is in the folder beside what is read."""
    found = []
    adapters = [name for name in files if name.startswith("adapter_model")]
    if adapters or (folder / _ADAPTER).exists():
        why = f"the folder has a LoRA adapter ({(adapters or [_ADAPTER])[0]}), which must be merged to have an effect"
        found.append(Reason("adapter", "not applied", why))
    rest = [name for name in files if name not in read and name not in adapters]
    if rest:
        one = next(iter(read)) if len(read) == 1 else f"{len(read)} files"
        found.append(Reason("weight files", one, f"the folder's other files are not read: {_listed(rest)}"))
    return tuple(found)


def _indexed(folder: Path) -> dict[str, str]:
    """The shard of each tensor, by the index. Raises ModelFileError where the index is none."""
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict):
        raise ModelFileError(f"{INDEX} has no weight_map from tensor names to files.")
    for tensor, shard in names.items():
        if not isinstance(shard, str):
            raise ModelFileError(f"{INDEX} has {shard!r:.80} for {tensor} in its weight_map; it must be a file's name.")
        # A shard is a file of this directory; anything else could read whatever the server can.
        if Path(shard).name != shard:
            raise ModelFileError(f"{INDEX} names {shard!r}, which is not a file of the model's own directory.")
    return names


def _read_shards(folder: Path, indexed: Mapping[str, str]) -> dict[str, TensorEntry]:
    headers: dict[str, dict[str, TensorEntry]] = {}
    for shard in sorted(set(indexed.values())):
        # Unlike Path.exists, false for a name that no file can have.
        if not os.path.exists(folder / shard):
            raise ModelFileError(f"The shard {shard[:_LONGEST_SHOWN]}, which {INDEX} names, is missing; download it.")
        headers[shard] = read_header(folder / shard)
    for tensor, shard in indexed.items():
        if tensor not in headers[shard]:
            raise ModelFileError(f"{INDEX} says that {shard} holds {tensor}, but it does not; download both again.")
    return {tensor: entry for header in headers.values() for tensor, entry in header.items()}


def _check_complete(folder: Path, files: Sequence[str]) -> None:
    """Raise ModelFileError where a file is one of several by its name, and another of them is missing."""
    for name in files:
        if (parts := _SHARD.fullmatch(name)) is None:
            continue
        for number in range(1, int(parts[3]) + 1):
            wanted = f"{parts[1]}-{number:05d}-of-{parts[3]}{_SAFETENSORS}"
            if wanted not in files:
                raise ModelFileError(f"{folder} has {name}, but {wanted} is missing; download it.")


def _read_together(folder: Path, files: Sequence[str]) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for name in files:
        for tensor, entry in read_header(folder / name).items():
            if tensor in tensors:
                raise ModelFileError(
                    f"{folder} has no {INDEX}, and {tensor} is both in {tensors[tensor].file.name} and in {name}; "
                    "leave the files of one model in the folder."
                )
            tensors[tensor] = entry
    return tensors


def without_weights(folder: Path) -> str:
    """A sentence on a folder without weights that can be read: what is there instead, and what would work."""
    names = _names(folder)
    if _ADAPTER in names or any(name.startswith("adapter_model") for name in names):
        return (
            f"{folder} has a LoRA adapter{_base_of(folder)}, not a model; merge it into its model with PEFT "
            "(merge_and_unload, then save_pretrained), and pass the folder that this makes."
        )
    if models := [file.name for file in models_in(folder)]:
        return f"{folder} has weights in GGUF files ({_listed(models)}); pass the path of one."
    pickled = [name for name in names if name.endswith(PICKLED) and name != _ARGUMENTS]
    if pickled:
        return (
            f"{folder} has weights only as PyTorch pickles them ({_listed(pickled)}), which is not read, since it can "
            "run code; load them with transformers, whose save_pretrained writes safetensors."
        )
    if others := [name for name in names if name.endswith(_OTHERS)]:
        return f"{folder} has weights only in a format that is not read ({_listed(others)}); take them as safetensors."
    if any(name.startswith("consolidated") for name in names):
        return (
            f"{folder} has its weights in Mistral's own layout only (consolidated.safetensors), which is not read; "
            f"take the model in Hugging Face's layout, with {CONFIG} and {SINGLE_FILE} or shards of it."
        )
    if inner := [name for name in names if os.path.isfile(folder / name / CONFIG)]:
        return f"{folder} has no weights, but folders with models ({_listed(inner)}); pass the path of one."
    lacks = f"neither {SINGLE_FILE} nor {INDEX}" if CONFIG in names else f"no {CONFIG}"
    return f"{folder} has {lacks}; pass a directory with a complete model."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_SHOWN]) + (" …" if len(names) > _MOST_SHOWN else "")


def without_config(folder: Path) -> str:
    """A sentence on a folder without config.json, which says what a model is."""
    files = weight_names(folder)
    if not files:
        return without_weights(folder)
    return f"{folder} has {files[0]}, but no {CONFIG}, which says what model it is; download that too."


def _base_of(folder: Path) -> str:
    try:
        base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
    except ModelFileError:
        return ""
    return f" for {base}" if isinstance(base, str) and base else ""


def gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder that has one model in GGUF files, and no weights as safetensors; else None."""
    if weight_names(folder):
        return None
    models = models_in(folder)
    return models[0] if len(models) == 1 else None
