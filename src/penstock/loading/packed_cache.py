"""Packed weights on disk: written at a model's first start, mapped at every later one.

A file is a safetensors file whose metadata say what it was made from. Its whole header follows from that, and its name
from the header, so a file is sound where it begins with the very header that would be written now, and has the length
that it describes. The weights behind it are as trusted as a checkpoint's: they are not read to be checked.
"""

import hashlib
import json
import mmap
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from penstock.kernels.cpu.form import Form
from penstock.kernels.cpu.weights import PACKED_LAYOUT, NativeLinear, packed_in
from penstock.kernels.packing import Weight
from penstock.layers.weights import WeightSpec
from penstock.loading.cache_folder import (
    SUFFIX,
    NoRoom,
    in_words,
    make_room,
    mark_used,
    remove_abandoned,
    written_whole,
)
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.packing import PackedWeights, stored_in
from penstock.loading.weights import Progress, load_weights, stream_weights
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.rounding import ROUNDING

# Raise it where the same header begins to mean something else.
_VERSION = 1
_LINE = 64
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
# Linux maps pages that are in its cache, and reads those that are not; older kernels than 5.14 do not know it.
_POPULATE_READ = 22
_POPULATED_AT_ONCE = 64 << 20


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights by name.

    Attributes:
        mapped: whether an earlier start had left them on disk.
        notes: what the user should know, in sentences.
    """

    weights: dict[str, Weight]
    mapped: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """A weight's place behind the header; `form` is None for a plain tensor."""

    spec: WeightSpec
    form: Form | None
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PackedFile:
    """What the file of a model's packed weights has to be.

    Attributes:
        header: its first bytes.
        entries: by the name of every weight; a tied head has its embedding's.
        size: of the whole file.
    """

    name: str
    header: bytes
    entries: Mapping[str, PackedEntry]
    size: int
    dtype: torch.dtype


class _Unsound(Exception):
    """The file is not what was written."""


def load_cached(
    folder: Path,
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    dtype: torch.dtype,
    packing: PackedWeights,
    progress: Progress,
) -> LoadedWeights:
    """What `load_weights` gives, mapped from `folder`, where the first start with this model leaves it.

    Needs the native kernels. The first start maps what it has written, too, so that every start takes the same memory.
    What is wrong with the folder is a note and does not stop the start.
    """
    expected = expected_file(checkpoint, declaration, dtype, packing)
    file = folder / expected.name
    notes: list[str] = []
    try:
        remove_abandoned(folder)
        weights = _weights_in(_map_sound(file, expected), expected, progress)
        mark_used(file)
        return LoadedWeights(weights, mapped=True)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except _Unsound as error:
        notes.append(f"{file} {error}, so the weights were packed anew.")
    except OSError as error:
        notes.append(f"{file} cannot be mapped ({error.strerror}), so the weights were packed anew.")
    removed: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        removed = make_room(folder, expected.size)
        pages = _write(file, expected, stream_weights(checkpoint, declaration, dtype, progress, packing))
        weights = _weights_in(pages, expected)
        notes.append(
            f"The packed weights were written to {file} ({in_words(expected.size)}), and the next start maps them; "
            "--packed-cache off keeps none."
        )
    except (OSError, NoRoom) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        notes.append(
            f"The packed weights could not be kept in {folder} for the next start ({cause}); --packed-cache DIR takes "
            "another folder, and --packed-cache off none."
        )
        weights = load_weights(checkpoint, declaration, dtype, progress, packing=packing)
    if removed:
        names = ", ".join(each.name for each in removed)
        notes.append(f"To make room for them, packed weights that were not used for longest were removed: {names}.")
    return LoadedWeights(weights, notes=tuple(notes))


def expected_file(
    checkpoint: Checkpoint, declaration: ModelDeclaration, dtype: torch.dtype, packing: PackedWeights
) -> PackedFile:
    """The file that these weights are kept in. Raises ModelFileError where the checkpoint does not fit the model."""
    forms = native_forms(checkpoint, declaration, dtype, packing)
    embeddings = {spec.parts: spec for spec in declaration.weights if spec.role == "embedding" and forms[spec.name]}
    kept = {
        spec.name: embeddings.get(spec.parts, spec) if spec.role == "head" else spec for spec in declaration.weights
    }

    # Packed weights take whole lines, so with them in front each begins at one, as the kernels need it.
    # Of the others, wider numbers come first, so that each begins at a multiple of its size.
    def turn(spec: WeightSpec) -> tuple[bool, int]:
        return forms[spec.name] is None, -stored_in(spec, dtype).itemsize

    order = sorted({spec.name: spec for spec in kept.values()}.values(), key=turn)
    places: dict[str, PackedEntry] = {}
    end = 0
    for spec in order:
        form = forms[spec.name]
        size = (
            spec.size * stored_in(spec, dtype).itemsize if form is None else form.nbytes(spec.shape[0], spec.shape[1])
        )
        places[spec.name] = PackedEntry(spec, form, end, size)
        end += size
    header = _header(_metadata(checkpoint, declaration, dtype, packing, places), places, dtype)
    kind = packing.body if packing.body != "none" else str(dtype).removeprefix("torch.")
    model = re.sub(r"[^\w.-]", "_", checkpoint.path.name, flags=re.ASCII) or "model"
    name = f"{model[:64]}-{kind}-{hashlib.sha256(header).hexdigest()[:16]}{SUFFIX}"
    entries = {weight: places[spec.name] for weight, spec in kept.items()}
    return PackedFile(name, header, entries, len(header) + end, dtype)


def native_forms(
    checkpoint: Checkpoint, declaration: ModelDeclaration, dtype: torch.dtype, packing: PackedWeights
) -> dict[str, Form | None]:
    """By name, how each weight is packed. Raises ModelFileError where the checkpoint does not fit the model."""
    located = checkpoint.locate(declaration)
    return {
        spec.name: packing.native_form(spec, dtype, [located[part.name] for part in spec.parts])
        for spec in declaration.weights
    }


def _metadata(
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    dtype: torch.dtype,
    packing: PackedWeights,
    places: Mapping[str, PackedEntry],
) -> dict[str, str]:
    """Everything that the packed bytes depend on, for a person to read: whatever changes, it becomes another file."""
    files = []
    stored = checkpoint.stored
    for file in sorted({entry.file for entry in stored}):
        state = file.stat()
        tensors = sorted((entry.name, entry.dtype, entry.shape, entry.offset) for entry in stored if entry.file == file)
        identity = {"size": state.st_size, "modified_ns": state.st_mtime_ns, "inode": state.st_ino}
        files.append({"name": file.name, **identity, "tensors": _digest(tensors)})
    forms = {name: f"{entry.form} {list(entry.spec.shape)}" for name, entry in places.items() if entry.form is not None}
    return {
        "content": "packed weights of Penstock",
        "version": str(_VERSION),
        "model": str(checkpoint.path.resolve()),
        "architecture": declaration.architecture,
        "dtype": str(dtype).removeprefix("torch."),
        "quantization": packing.body,
        "quantize_head": packing.head,
        "packed_layout": str(PACKED_LAYOUT),
        "rounding": str(ROUNDING),
        "byte_order": sys.byteorder,
        "config": _digest([checkpoint.config, checkpoint.quantization]),
        "made_of": _digest(
            [(spec.name, spec.role, [str(part) for part in spec.parts]) for spec in declaration.weights]
        ),
        "files": json.dumps(files),
        "packed": json.dumps(forms),
    }


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _header(metadata: Mapping[str, str], places: Mapping[str, PackedEntry], dtype: torch.dtype) -> bytes:
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    for name, entry in places.items():
        plain = entry.form is None
        described[name] = {
            "dtype": _DTYPE_NAMES[stored_in(entry.spec, dtype)] if plain else "U8",
            "shape": list(entry.spec.shape) if plain else [entry.nbytes],
            "data_offsets": [entry.offset, entry.offset + entry.nbytes],
        }
    text = json.dumps(described).encode()
    text += b" " * (-(8 + len(text)) % _LINE)
    return len(text).to_bytes(8, "little") + text


def _map_sound(file: Path, expected: PackedFile) -> mmap.mmap:
    """The file's pages. Raises OSError where it cannot be mapped, _Unsound where it is not what was written."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size != expected.size:
            raise _Unsound(f"has {size} bytes instead of {expected.size}")
        if stream.read(len(expected.header)) != expected.header:
            raise _Unsound("has a header that its name does not stand for")
        return _private_pages(stream.fileno(), expected.size)


def _private_pages(descriptor: int, size: int) -> mmap.mmap:
    # Pages are shared with the file, and with other processes, until a process writes to them, which copies them.
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)


def _write(file: Path, expected: PackedFile, weights: Iterator[tuple[WeightSpec, Weight]]) -> mmap.mmap:
    """Write the file under another name, weight by weight, give it its own, and return its pages.

    A process that opens the file finds a whole one or none. Raises OSError where it cannot be written, and then leaves
    nothing behind.
    """
    with written_whole(file) as stream:
        # A disk that is too full shows here, before anything is packed.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, expected.size)
        stream.write(expected.header)
        for spec, weight in weights:
            entry = expected.entries[spec.name]
            if entry.spec.name == spec.name:
                stream.seek(len(expected.header) + entry.offset)
                stream.write(_bytes_of(weight))
        stream.flush()
        return _private_pages(stream.fileno(), expected.size)


def _bytes_of(weight: Weight) -> memoryview:
    if isinstance(weight, NativeLinear):
        return weight.memory.numpy().data
    assert isinstance(weight, torch.Tensor)
    return weight.contiguous().view(-1).view(torch.uint8).numpy().data


def _weights_in(pages: mmap.mmap, expected: PackedFile, progress: Progress | None = None) -> dict[str, Weight]:
    _populate(pages, progress)
    made: dict[str, Weight] = {}
    for entry in expected.entries.values():
        if entry.spec.name not in made:
            made[entry.spec.name] = _weight(entry, pages, len(expected.header) + entry.offset, expected.dtype)
    return {name: made[entry.spec.name] for name, entry in expected.entries.items()}


def _weight(entry: PackedEntry, pages: mmap.mmap, offset: int, dtype: torch.dtype) -> Weight:
    if entry.form is None:
        own = stored_in(entry.spec, dtype)
        tensor = torch.frombuffer(pages, dtype=own, count=entry.spec.size, offset=offset).view(entry.spec.shape)
        # What is small has memory of its own, wherever in a line it lies in the file.
        return tensor.clone() if entry.spec.neutral is not None else tensor
    memory = torch.frombuffer(pages, dtype=torch.uint8, count=entry.nbytes, offset=offset)
    outputs, inputs = entry.spec.shape
    return packed_in(memory, entry.form, (outputs, inputs))


def _populate(pages: mmap.mmap, progress: Progress | None) -> None:
    """Map all pages now: one by one, as the first step would, takes longer."""
    for first in range(0, len(pages), _POPULATED_AT_ONCE):
        last = min(first + _POPULATED_AT_ONCE, len(pages))
        try:
            pages.madvise(_POPULATE_READ, first, last - first)
        except OSError:
            pages.madvise(mmap.MADV_WILLNEED, first, last - first)
        if progress is not None:
            progress(last, len(pages))
