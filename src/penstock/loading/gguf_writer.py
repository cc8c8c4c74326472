"""Writes GGUF files, version 3; `loading.gguf` reads them."""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

from penstock.loading.gguf import ALIGNMENT, MAGIC
from penstock.quantization.gguf_types import BLOCK_TYPES

Value = bool | int | float | str | Sequence[str] | Sequence[int] | Sequence[float]

_VERSION = 3
# Numbers of types of values, with how `struct` writes them.
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor that is to be written.

    Attributes:
        kind: of its numbers, one of BLOCK_TYPES.
        shape: [rows, columns], or one dimension.
        read: its bytes as the file has them, in a tensor of any type.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        kind = BLOCK_TYPES[self.kind]
        return math.prod(self.shape) // kind.elements * kind.nbytes


def write_gguf(stream: BinaryIO, metadata: Mapping[str, Value], tensors: Sequence[NamedTensor]) -> None:
    """Write a file from its first byte on, one tensor in memory at a time. Raises OSError where that fails."""
    head = MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    head += b"".join(_text(name) + _value(value) for name, value in metadata.items())
    head += b"".join(_infos(tensors))
    stream.write(head + _padding(len(head)))
    for tensor in tensors:
        raw = tensor.read().contiguous().view(torch.uint8).flatten()
        if len(raw) != tensor.nbytes:
            raise ValueError(f"{tensor.name} has {len(raw)} bytes, of {tensor.nbytes}.")
        stream.write(raw.numpy().data)
        stream.write(_padding(len(raw)))


def _infos(tensors: Sequence[NamedTensor]) -> Iterator[bytes]:
    """Of each its name, its dimensions, the innermost first, its type, and where it begins."""
    offset = 0
    for tensor in tensors:
        dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        yield _text(tensor.name) + dimensions + struct.pack("<IQ", BLOCK_TYPES[tensor.kind].code, offset)
        offset += tensor.nbytes + len(_padding(tensor.nbytes))


def _padding(length: int) -> bytes:
    return bytes(-length % ALIGNMENT)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    """A value behind the number of its type."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    first = value[0] if value else ""
    kind = _STRING if isinstance(first, str) else _INT32 if isinstance(first, int) else _FLOAT32
    head = struct.pack("<IIQ", _ARRAY, kind, len(value))
    if kind == _STRING:
        return head + b"".join(_text(str(each)) for each in value)
    return head + struct.pack(f"<{len(value)}{'i' if kind == _INT32 else 'f'}", *value)
