"""Keys of JSON objects, held to be unique: what llguidance's grammars of JSON leave open.

A grammar allows any name for a property that its schema does not declare: the same one twice, or a declared one that is
spelled with escapes. So each output that is held to a JSON schema is followed byte by byte, and the tokens that would
complete a key of its object a second time, or escape what needs no escape, are taken out of the mask. A name that can
always be continued leaves something to write instead, which is why patterns of names that cannot be are not accepted
(`text/schema`).

Objects are found wherever the output reads like one: before them may stand a model's reasoning, and the marks of calls.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_SPACE = frozenset(b" \t\r\n")
# Numbers, true, false and null.
_SCALAR = frozenset(b"+-.0123456789Eaeflnrstu")
_QUOTE, _BACKSLASH, _COMMA, _COLON, _U = b'"\\,:u'
_OPENING = {ord("{"): True, ord("["): False}
_CLOSING = {ord("}"): True, ord("]"): False}
# What a control character without an escape of its own is written with, as JSON's writers do.
_CANONICAL = frozenset(f"{code:04x}".encode() for code in range(0x20) if code not in (0x08, 0x09, 0x0A, 0x0C, 0x0D))
_BEGINNINGS = frozenset(digits[:length] for digits in _CANONICAL for length in range(5))
_IN_ESCAPE = frozenset(b"u0123456789abcdefABCDEF")

# What may come next.
_TEXT = "text, or the beginning of a list or object"
_VALUE = "a value"
_AFTER = "a comma, or the end of a list or object"
_KEY = "a key"
_AFTER_KEY = ":"
_IN_KEY = "in a key"
_IN_STRING = "in a string"
_IN_SCALAR = "in a number or a word"

# At each place, how many quotation marks a token has at least that completes a whole key which it has not only ended,
# and how many stand at least before an escape that is in a key.
_LEAST_QUOTES = {
    _TEXT: (4, 1),
    _VALUE: (2, 1),
    _AFTER: (2, 1),
    _KEY: (2, 1),
    _AFTER_KEY: (2, 1),
    _IN_KEY: (3, 0),
    _IN_STRING: (3, 2),
    _IN_SCALAR: (2, 1),
}


class _Reading:
    """A list or object from its beginning on, as far as it has come.

    Attributes:
        place: what may come next; `_TEXT` once it is complete.
        broken: it was no JSON after all.
        repeats: it has a key twice, or one that is escaped needlessly.
    """

    __slots__ = ("_digits", "_escaped", "_key", "_levels", "broken", "place", "repeats")

    def __init__(self, opening: int) -> None:
        self.place = _TEXT
        self.broken = False
        self.repeats = False
        # The keys of each object that is open; None for a list.
        self._levels: list[set[bytes] | None] = []
        self._key = bytearray()
        # Whether the last byte of a string was a backslash, and the digits of an escape that has some.
        self._escaped = False
        self._digits: bytearray | None = None
        self._open(opening)

    def copy(self) -> "_Reading":
        """The same, to go on by itself."""
        other = _Reading.__new__(_Reading)
        other.place, other.broken, other.repeats = self.place, self.broken, self.repeats
        other._levels = [None if level is None else set(level) for level in self._levels]
        other._key = bytearray(self._key)
        other._escaped = self._escaped
        other._digits = None if self._digits is None else bytearray(self._digits)
        return other

    @property
    def escaping(self) -> bool:
        """Whether an escape in a key is being written."""
        return self.place is _IN_KEY and (self._escaped or self._digits is not None)

    @property
    def in_string(self) -> bool:
        """Whether a key or a string is being written."""
        return self.place is _IN_KEY or self.place is _IN_STRING

    def endings(self) -> Iterator[bytes]:
        """What would make the key that is being written one that its object has."""
        taken = self._levels[-1] if self.place is _IN_KEY else None
        begun = bytes(self._key)
        return (key[len(begun) :] + b'"' for key in taken or () if key.startswith(begun))

    def take(self, byte: int) -> None:
        """Take the next byte."""
        if self.in_string:
            self._take_in_string(byte)
            return
        if self.place is _IN_SCALAR:
            if byte in _SCALAR:
                return
            self.place = _AFTER
        if byte in _SPACE:
            return
        if self.place is _VALUE and byte in _SCALAR:
            self.place = _IN_SCALAR
        elif self.place is _VALUE and byte in _OPENING:
            self._open(byte)
        else:
            self._take_between(byte)

    def _open(self, byte: int) -> None:
        is_object = _OPENING[byte]
        self._levels.append(set() if is_object else None)
        self.place = _KEY if is_object else _VALUE

    def _take_between(self, byte: int) -> None:
        """A byte of what stands between keys and scalars."""
        place, is_object = self.place, self._levels[-1] is not None
        if byte == _QUOTE and place in (_KEY, _VALUE):
            self.place = _IN_KEY if place is _KEY else _IN_STRING
            self._key.clear()
        elif byte in _CLOSING and _CLOSING[byte] == is_object and place is not _AFTER_KEY:
            self._levels.pop()
            self.place = _AFTER if self._levels else _TEXT
        elif place is _AFTER and byte == _COMMA:
            self.place = _KEY if is_object else _VALUE
        elif place is _AFTER_KEY and byte == _COLON:
            self.place = _VALUE
        else:
            self.broken = True

    def _take_in_string(self, byte: int) -> None:
        in_key = self.place is _IN_KEY
        if self._digits is not None:
            self._digits.append(byte)
            self.repeats |= in_key and bytes(self._digits) not in _BEGINNINGS
            if len(self._digits) == 4:
                self._digits = None
        elif self._escaped:
            self._escaped = False
            if byte == _U:
                self._digits = bytearray()
        elif byte == _QUOTE:
            self._end_string(in_key)
            return
        elif byte == _BACKSLASH:
            self._escaped = True
        if in_key:
            self._key.append(byte)

    def _end_string(self, in_key: bool) -> None:
        self.place = _AFTER_KEY if in_key else _AFTER
        taken = self._levels[-1]
        if in_key and taken is not None:
            self.repeats |= bytes(self._key) in taken
            taken.add(bytes(self._key))


class Keys:
    """One output's lists and objects, as far as it has come.

    What looks like the beginning of one inside of another's string is followed too: if the other turns out to be none,
    as in text that mentions a brace, it counts in its stead.
    """

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        # The one that counts comes first.
        self._readings: list[_Reading] = []

    def copy(self) -> "Keys":
        """The same, to go on by itself."""
        other = Keys()
        other._readings = [reading.copy() for reading in self._readings]
        return other

    @property
    def place(self) -> str:
        """What may come next, in words."""
        return self._readings[0].place if self._readings else _TEXT

    @property
    def escaping(self) -> bool:
        """Whether an escape in a key is being written."""
        return bool(self._readings) and self._readings[0].escaping

    def endings(self) -> Iterator[bytes]:
        """What would make the key that is being written one that its object has."""
        return self._readings[0].endings() if self._readings else iter(())

    def feed(self, text: bytes) -> bool:
        """Take more of the output; False where that completes a key twice, or escapes a key's character needlessly."""
        return all(map(self._take, text))

    def _take(self, byte: int) -> bool:
        readings = self._readings
        for reading in readings:
            reading.take(byte)
        left = [reading for reading in readings if not reading.broken]
        if left and left[0].place is _TEXT:
            left.clear()
        readings = self._readings = [reading for reading in left if reading.place is not _TEXT]
        if byte in _OPENING and all(reading.in_string for reading in readings):
            readings.append(_Reading(byte))
        return not (readings and readings[0].repeats)


class _Ids:
    """Ids of tokens, to be looked up in masks."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = np.asarray(ids, np.int64)
        self._words = self._ids >> 5
        self._shifts = (self._ids & 31).astype(np.uint32)

    def allowed(self, mask: NDArray[np.uint32]) -> list[int]:
        """Those that a mask allows."""
        found: list[int] = self._ids[(mask[self._words] >> self._shifts & 1).astype(bool)].tolist()
        return found


class KeyTokens:
    """The tokens of a vocabulary that can complete a key, or escape a character of one."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """`pieces`: the bytes of each token; empty for those that are no text."""
        self._pieces = pieces
        quoted = sorted((piece, token) for token, piece in enumerate(pieces) if b'"' in piece)
        self._quoted = [piece for piece, _ in quoted]
        self._quoted_ids = [token for _, token in quoted]
        harmful = [token for token, piece in enumerate(pieces) if piece.count(b'"') > 1 or b"\\u" in piece]
        self._tried = {
            place: _Ids([token for token in harmful if _may_harm(pieces[token], *least)])
            for place, least in _LEAST_QUOTES.items()
        }
        self._in_escape = _Ids([token for token, piece in enumerate(pieces) if piece and piece[0] in _IN_ESCAPE])

    def forbid(self, keys: Keys, mask: NDArray[np.uint32]) -> None:
        """Take those tokens out of a mask behind which a key would be there twice, or be escaped needlessly."""
        for ending in keys.endings():
            place = bisect_left(self._quoted, ending)
            while place < len(self._quoted) and self._quoted[place].startswith(ending):
                _clear(mask, self._quoted_ids[place])
                place += 1
        tried = self._tried[keys.place].allowed(mask)
        if keys.escaping:
            tried += self._in_escape.allowed(mask)
        for token in tried:
            if not keys.copy().feed(self._pieces[token]):
                _clear(mask, token)


def _may_harm(piece: bytes, quotes: int, quotes_before_escape: int) -> bool:
    before_escape, escape, _ = piece.rpartition(b"\\u")
    return piece.count(b'"') >= quotes or (bool(escape) and before_escape.count(b'"') >= quotes_before_escape)


def _clear(mask: NDArray[np.uint32], token: int) -> None:
    mask[token >> 5] &= ~np.uint32(1 << (token & 31))
