"""Writes files of SentencePiece: a protocol buffer of a few pieces."""

import struct
from collections.abc import Iterable

UNKNOWN, CONTROL = 2, 3


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def file_of(pieces: Iterable[tuple[str, float, int]], model: int = 1, prefixed: bool = True) -> bytes:
    found = b""
    for text, score, kind in pieces:
        piece = message(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, kind)
        found += message(1, piece)
    # What a trainer was told besides: names of files, and a share.
    trainer = message(1, b"corpus.txt") + number(3, model) + varint(10 << 3 | 5) + struct.pack("<f", 0.9995)
    return found + message(2, trainer) + message(3, message(1, b"identity") + number(3, prefixed) + number(4, 1))
