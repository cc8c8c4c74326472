"""Where a GGUF file's numbers stand that say how long something is, what it is, or where it lies."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
# What breaks readers: nothing, one, what has no place in a smaller type, what products overflow with.
_POWERS = (2**16, 2**31, 2**32, 2**61, 2**63, 2**64)
_NUMBERS = (0, 1, 2, 3, 7, 8, 31, 33, 255, *_POWERS, *(power - 1 for power in _POWERS))


@dataclass(frozen=True, slots=True)
class Field:
    """A number in the file.

    Attributes:
        kind: "count", "length", "type", "value", or of a tensor "dimensions", "side", "block", "offset".
        start, width: its bytes.
        tensor: whom it describes; empty for what describes no tensor.
    """

    kind: str
    start: int
    width: int
    tensor: str = ""

    def with_number(self, content: bytes, number: int) -> bytes:
        """The file with another number there, of which only so many bytes count."""
        raw = (number & (256**self.width - 1)).to_bytes(self.width, "little")
        return content[: self.start] + raw + content[self.start + self.width :]

    def numbers(self, content: bytes) -> list[int]:
        """What to put there: what breaks readers, and neighbours of what is there."""
        there = int.from_bytes(content[self.start : self.start + self.width], "little")
        near = (there - 1, there + 1, there * 2, there + 32)
        return sorted({number % 256**self.width for number in (*_NUMBERS, *near)} - {there})


class _Walker:
    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 24

    def number(self, width: int) -> int:
        found = int.from_bytes(self.content[self.place : self.place + width], "little")
        self.place += width
        return found

    def name(self, tensor: str = "") -> Iterator[Field]:
        yield Field("length", self.place, 8, tensor)
        self.place += 8 + struct.unpack_from("<Q", self.content, self.place)[0]

    def value(self, kind: int) -> Iterator[Field]:
        if kind == _STRING:
            yield from self.name()
        elif kind != _ARRAY:
            yield Field("value", self.place, _WIDTHS[kind])
            self.place += _WIDTHS[kind]
        else:
            yield Field("type", self.place, 4)
            inner = self.number(4)
            yield Field("count", self.place, 8)
            count = self.number(8)
            if inner == _STRING:
                for _ in range(count):
                    yield from self.name()
            else:
                self.place += count * _WIDTHS[inner]


def fields(content: bytes) -> list[Field]:
    """All of them in a sound file, but for numbers within arrays."""
    tensors, values = struct.unpack_from("<QQ", content, 8)
    walker = _Walker(content)
    found = [Field("value", 4, 4), Field("count", 8, 8), Field("count", 16, 8)]
    for _ in range(values):
        found += walker.name()
        found.append(Field("type", walker.place, 4))
        found += walker.value(walker.number(4))
    for _ in range(tensors):
        length = struct.unpack_from("<Q", content, walker.place)[0]
        name = content[walker.place + 8 : walker.place + 8 + length].decode()
        found += walker.name(name)
        found.append(Field("dimensions", walker.place, 4, name))
        for _ in range(walker.number(4)):
            found.append(Field("side", walker.place, 8, name))
            walker.place += 8
        found.append(Field("block", walker.place, 4, name))
        found.append(Field("offset", walker.place + 4, 8, name))
        walker.place += 12
    return found
