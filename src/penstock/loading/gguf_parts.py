"""GGUF models in several files: which of them there are, and the one model that they hold together.

`llama-gguf-split` names them NAME-00001-of-00003.gguf. The first has all metadata, each has its own tensors.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.loading.gguf import SUFFIX, GgufFile, is_gguf, read_gguf
from penstock.loading.safetensors import TensorEntry

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


def first_part(file: Path) -> Path:
    """The file that has the metadata of the model that `file` is a part of; itself where it is a whole one."""
    parts = _PART.fullmatch(file.name)
    return file if parts is None else file.with_name(f"{parts[1]}-00001-of-{parts[3]}{SUFFIX}")


def models_in(folder: Path) -> list[Path]:
    """The GGUF files of a folder that begin a model, without those for its images."""
    files = (folder / name for name in sorted(os.listdir(folder)) if not name.startswith("mmproj"))
    return list(dict.fromkeys(first_part(file) for file in files if is_gguf(file)))


def read_model(file: Path) -> GgufFile:
    """The model in `file` and in the parts beside it. Raises ModelFileError where one is missing or another's."""
    first = _read_part(first_part(file))
    count = first.metadata.get(_COUNT, 1)
    if not isinstance(count, int) or count <= 1:
        return first
    parts = _PART.fullmatch(first.path.name)
    if parts is None or int(parts[3]) != count:
        raise ModelFileError(
            f"{first.path.name} is one of {count} parts, which are found by names like model-00001-of-{count:05d}"
            f"{SUFFIX}; rename them, or join them with `llama-gguf-split --merge`."
        )
    tensors: dict[str, TensorEntry] = {}
    for number in range(count):
        name = f"{parts[1]}-{number + 1:05d}-of-{parts[3]}{SUFFIX}"
        part = first if number == 0 else _read_part(first.path.with_name(name))
        if part.metadata.get(_NUMBER) != number or part.metadata.get(_COUNT) != count:
            raise ModelFileError(f"{name} is not part {number + 1} of {count}, as its name says; download it again.")
        if twice := sorted(tensors.keys() & part.tensors.keys()):
            other = tensors[twice[0]].file.name
            raise ModelFileError(f"{name} has tensor {twice[0]}, and so has {other}; download both again.")
        tensors |= part.tensors
    wanted: Any = first.metadata.get(_TENSORS, len(tensors))
    if wanted != len(tensors):
        raise ModelFileError(f"The {count} parts of {first.path.name} have {len(tensors)} tensors instead of {wanted}.")
    return replace(first, tensors=tensors)


def _read_part(file: Path) -> GgufFile:
    if not file.exists():
        raise ModelFileError(f"{file.name} is missing, which is a part of the model; download it.")
    return read_gguf(file)
