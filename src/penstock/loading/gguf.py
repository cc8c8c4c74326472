"""GGUF files: metadata and where each tensor lies, read and checked without touching the tensors.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): a magic number, a version, counts, metadata as
typed values by name, the tensors' names, shapes, types and offsets, padding, and the tensors' bytes. All numbers are
little-endian here; big-endian files are refused.
"""

import math
import mmap
import os.path
import reprlib
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.json_file import check_kind
from penstock.loading.safetensors import TensorEntry
from penstock.quantization.gguf_types import BLOCK_TYPES, BY_CODE, OTHERS

SUFFIX = ".gguf"
MAGIC = b"GGUF"
# How types begin that are not read.
UNKNOWN = "GGUF type"
_VERSIONS = (2, 3)
ALIGNMENT = 32
_MOST_ALIGNMENT = 1 << 16
_MOST_DIMENSIONS = 4
# Far above what models have, since a file can be far longer than what it takes on a disk.
_LONGEST_ARRAY, _LONGEST_METADATA, _MOST_NAMES = 1 << 24, 1 << 30, 1 << 20
_LONGEST_NAME = 1024
_LARGEST = 2**63 - 1
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
# By the number of a value's type; 8 is a string, 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_FLOAT32, _BOOL, _STRING, _ARRAY = 6, 7, 8, 9
# Types that plain tensors of safetensors files have, too.
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file says of its model.

    Attributes:
        metadata: values by name: numbers, texts, and lists of them.
        tensors: by name; shapes are [rows, columns], the last dimension being stored without gaps.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]


class Texts(Sequence[str]):
    """An array of texts as it lies in the file: far less than they would take one by one."""

    def __init__(self, raw: bytes, starts: "array[int]") -> None:
        self._raw = raw
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        """Raises ModelFileError for what is not UTF-8."""
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        start = self._starts[place]
        length = int.from_bytes(self._raw[start - 8 : start], "little")
        try:
            return self._raw[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(
                f"Text {place} of an array in the GGUF file is not UTF-8; it is damaged: download it again."
            ) from None


_Described = tuple[str, tuple[int, ...], int, int]
"""A tensor's name, shape, type and offset."""


class _Malformed(Exception):
    """The file does not say what it should at this place."""


class _Reader:
    """Takes one value after another out of the file's beginning."""

    def __init__(self, pages: mmap.mmap) -> None:
        self._pages = pages
        self._size = len(pages)
        self.place = 0

    @property
    def left(self) -> int:
        """Bytes behind the place."""
        return self._size - self.place

    def check_length(self) -> None:
        """Whether the metadata are of a length that can be, whatever the file's is."""
        if self.place > _LONGEST_METADATA:
            raise _Malformed(f"has more than {_LONGEST_METADATA} bytes of metadata")

    def number(self, kind: str) -> Any:
        """A number as `struct` names it."""
        width = struct.calcsize("<" + kind)
        if width > self.left:
            raise _Malformed("ends within a number")
        (value,) = struct.unpack_from("<" + kind, self._pages, self.place)
        self.place += width
        return value

    def text(self, longest: int | None = None) -> str:
        """A text; its length comes first."""
        length = self.number("Q")
        if length > self.left or (longest is not None and length > longest):
            raise _Malformed(f"has a text of {length} bytes where only {self.left} are left")
        raw = self._pages[self.place : self.place + length]
        self.place += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _Malformed("has a text that is not UTF-8") from None

    def value(self, kind: int) -> Any:
        """A value of a type."""
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            number = self.number(_NUMBERS[kind])
            if kind == _FLOAT32:
                return _shortest(number)
            return bool(number) if kind == _BOOL else number
        if kind != _ARRAY:
            raise _Malformed(f"has a value of type {kind}, which is unknown")
        inner, count = self.number("I"), self.number("Q")
        if inner == _STRING:
            return self._texts(count)
        if inner not in _NUMBERS:
            raise _Malformed(f"has an array of type {inner}, which is none of numbers or texts")
        return self._numbers(_NUMBERS[inner], count)

    def _numbers(self, kind: str, count: int) -> "array[Any]":
        found = array(kind)
        if count > min(_LONGEST_ARRAY, self.left // found.itemsize):
            raise _Malformed(f"has an array of {count} numbers, for which it is too short")
        end = self.place + count * found.itemsize
        found.frombytes(self._pages[self.place : end])
        self.place = end
        return found

    def _texts(self, count: int) -> "Texts":
        # Each has its length at least.
        if count > min(_LONGEST_ARRAY, self.left // 8):
            raise _Malformed(f"has an array of {count} texts, for which it is too short")
        first, place, starts = self.place, self.place, array("Q")
        # A vocabulary has hundreds of thousands, so that each counts.
        for _ in range(count):
            start = place + 8
            if start > self._size:
                raise _Malformed("ends within a number")
            (length,) = _LENGTH.unpack_from(self._pages, place)
            if length > self._size - start:
                raise _Malformed(f"has a text of {length} bytes where only {self._size - start} are left")
            starts.append(start - first)
            place = start + length
        self.place = place
        self.check_length()
        return Texts(self._pages[first : self.place], starts)


def _shortest(number: float) -> float:
    """The number of the fewest digits that float32 rounds to this one: 1e-05 was written, not 9.99999974738e-06."""
    if not math.isfinite(number):
        return number
    shorter = (float(f"{number:.{digits}g}") for digits in range(6, 10))
    # A number near the largest may be rounded up to one that float32 has not.
    return next((each for each in shorter if abs(each) <= _FLOAT32_MAX and _rounded(each) == number), number)


def _rounded(number: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", number))
    return float(rounded)


def is_gguf(path: str | Path) -> bool:
    """Whether it is the path of such a file; unlike Path's own methods, False where it cannot be a path at all."""
    return os.fspath(path).endswith(SUFFIX) and os.path.isfile(path)


def read_gguf(file: Path) -> GgufFile:
    """Read the beginning of `file`. Raises ModelFileError where it is truncated or malformed."""
    try:
        with file.open("rb") as stream:
            pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{file.name} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise ModelFileError(f"{file.name} is empty; download it again.") from None
    with pages:
        try:
            return _read(file, _Reader(pages), len(pages))
        except _Malformed as error:
            check_kind(file)
            raise ModelFileError(f"{file.name} {error}; it is damaged, or no GGUF file: download it again.") from None


def is_packed(entry: TensorEntry) -> bool:
    """Whether the tensor is one of whole blocks, of a type that can be read."""
    block = BLOCK_TYPES.get(entry.dtype)
    return block is not None and math.prod(entry.shape) * block.nbytes == entry.nbytes * block.elements


def _read(file: Path, reader: _Reader, size: int) -> GgufFile:
    if size < 4 or reader.number("4s") != MAGIC:
        raise _Malformed(f"does not begin with {MAGIC.decode()}")
    version = reader.number("I")
    if version not in _VERSIONS:
        hint = " (its numbers seem to be big-endian)" if version & 0xFFFF == 0 else ""
        raise UnsupportedModel(f"{file.name} is of GGUF version {version}{hint}; versions 2 and 3 are read.")
    tensors, values = reader.number("Q"), reader.number("Q")
    # A name has its length, and something follows it.
    if max(tensors, values) > min(_MOST_NAMES, reader.left // 12):
        raise _Malformed(f"has {tensors} tensors and {values} values, for which it is too short")
    metadata: dict[str, Any] = {}
    for _ in range(values):
        name = reader.text(_LONGEST_NAME)
        if name in metadata:
            raise _Malformed(f"has {name} twice")
        metadata[name] = reader.value(reader.number("I"))
        reader.check_length()
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
        raise _Malformed(
            f"has an alignment of {reprlib.repr(alignment)}, which must be a power of two up to {_MOST_ALIGNMENT}"
        )
    described: list[_Described] = []
    for number in range(1, tensors + 1):
        try:
            described.append(_describe(reader))
        except _Malformed as error:
            check_kind(file)
            behind = f", behind {described[-1][0]}" if described else ""
            raise _Malformed(f"{error}, where it describes tensor {number} of {tensors}{behind}") from None
    base = -(-reader.place // alignment) * alignment
    entries: dict[str, TensorEntry] = {}
    for name, shape, code, offset in described:
        if name in entries:
            raise _Malformed(f"has tensor {name} twice")
        if offset % alignment:
            raise _Malformed(f"has tensor {name} at {offset}, which is no multiple of {alignment}")
        entries[name] = _entry(file, name, shape, code, base + offset, size)
    _check_overlap(entries)
    return GgufFile(file, metadata, entries)


def _describe(reader: _Reader) -> _Described:
    name = reader.text(_LONGEST_NAME)
    dimensions = reader.number("I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise _Malformed(f"has tensor {name} with {dimensions} dimensions")
    # The dimension without gaps comes first in the file.
    shape = tuple(reader.number("Q") for _ in range(dimensions))[::-1]
    return name, shape, reader.number("I"), reader.number("Q")


def _entry(file: Path, name: str, shape: tuple[int, ...], code: int, offset: int, size: int) -> TensorEntry:
    if min(shape) < 1 or math.prod(shape) > _LARGEST:
        raise _Malformed(f"has tensor {name} of shape {list(shape)}")
    block = BY_CODE.get(code)
    if block is None:
        # How long it is, is not known. The code that needs it refuses it by its type.
        nbytes, dtype = 0, f"{UNKNOWN} {OTHERS.get(code, code)}"
    else:
        if shape[-1] % block.elements:
            raise _Malformed(
                f"has tensor {name} with rows of {shape[-1]}, no whole {block.name} blocks of {block.elements}"
            )
        nbytes, dtype = math.prod(shape) // block.elements * block.nbytes, PLAIN.get(block.name, block.name)
    if offset + nbytes > size:
        raise _Malformed(f"has tensor {name} up to byte {offset + nbytes}, but it ends at {size}")
    return TensorEntry(name, dtype, shape, file, offset, nbytes)


def _check_overlap(entries: Mapping[str, TensorEntry]) -> None:
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset < end:
            raise _Malformed(f"has tensor {entry.name} where another one is")
        end = entry.offset + entry.nbytes
