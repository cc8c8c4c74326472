"""Files of SentencePiece, read without its library: pieces with scores, and how texts are normalised before.

A file is a protocol buffer (sentencepiece_model.proto of that project). What is read here are fields 1 to 3 of a
ModelProto: its pieces, what its trainer was told, and what its normaliser does.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import TokenizerError

# Kinds of pieces.
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
_NORMAL = 1
_KINDS = (_NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
_UNIGRAM, _BPE = 1, 2
# Far above any piece; ways to put one together grow with the square of its length.
_LONGEST_PIECE = 1024


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """The content of a file.

    Attributes:
        texts, scores, kinds: of all pieces by their ids.
        merges: whether pieces are merged of characters in the order of their scores, instead of chosen together so that
            their scores add up to the most.
        charsmap: what characters are replaced by, as the tokenizers library takes it; empty: nothing is.
        squeezes: whether spaces at both ends, and all but one between words, are removed.
    """

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    merges: bool
    charsmap: bytes
    squeezes: bool


def read_sentence_pieces(path: Path) -> SentencePieces:
    """What is in the file. Raises TokenizerError where it cannot be read, or has what is not implemented."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}).") from error
    texts, scores, kinds = [], [], []
    model, prefixed, squeezes, charsmap = _UNIGRAM, True, True, b""
    try:
        for field, value in _fields(content):
            if field == 1:
                text, score, kind = _piece(_bytes(value))
                texts.append(text)
                scores.append(score)
                kinds.append(kind)
            elif field == 2:
                told = dict(_fields(_bytes(value)))
                model = _integer(told.get(3, model))
            elif field == 3:
                for key, part in _fields(_bytes(value)):
                    charsmap = _bytes(part) if key == 2 else charsmap
                    prefixed = bool(_integer(part)) if key == 3 else prefixed
                    squeezes = bool(_integer(part)) if key == 4 else squeezes
    except (ValueError, IndexError, struct.error) as error:
        raise TokenizerError(f"{path} is no file of SentencePiece, or is damaged.") from error
    if model not in (_UNIGRAM, _BPE) or not prefixed:
        raise TokenizerError(
            f"{path} is of a kind of SentencePiece model that is not implemented; unigram and BPE are."
        )
    if not texts or len(set(texts)) != len(texts) or UNKNOWN not in kinds:
        raise TokenizerError(f"{path} has no pieces, one twice, or none for what is unknown; it is damaged.")
    return SentencePieces(tuple(texts), tuple(scores), tuple(kinds), model == _BPE, charsmap, squeezes)


def _piece(message: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, _NORMAL
    for field, value in _fields(message):
        if field == 1:
            text = _bytes(value).decode()
        elif field == 2:
            (score,) = struct.unpack("<f", _bytes(value))
        elif field == 3:
            kind = _integer(value)
    if kind not in _KINDS or not 0 < len(text) <= _LONGEST_PIECE:
        raise ValueError("a piece is damaged")
    return text, score, kind


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes should be")
    return value


def _integer(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number should be")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers of fields and their values: integers, or bytes of texts, of messages within and of floats."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind, len(message) + 1)
        if at + size > len(message):
            raise ValueError("a field goes on beyond its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")
