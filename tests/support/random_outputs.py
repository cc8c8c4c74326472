"""Outputs of random tokens that a grammar allows, of a vocabulary made to write what it leaves open."""

import random
from typing import Any

import numpy as np

from penstock.core.grammar import Grammar
from penstock.sampling.grammar import Grammars
from penstock.text.table import TokenTable

# Tokens that end a key and go on, or have whole keys in them.
WORDS = [
    'a"',
    'a":',
    'b":1',
    '"a',
    '"a"',
    '"a":',
    ' "b": ',
    '{"',
    '{"a":1,"a":',
    '{"b": 2, "',
    ',"a":1',
    '","a":',
    '", "',
    '":"',
    '":"","b":',
    '1,"a":2',
    '},"b":',
    "\\u0061",
    "\\u",
    '{"\\u0061":',
    "u006",
    "\\u00",
    "\\n",
    'n"',
    "u000",
    '""',
    '":{"',
    '],"a":[',
    '[{"a":',
    "ü",
    '":',
    '"}',
]
PIECES = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS] + [b"<end>"]
EOS = len(PIECES) - 1
TABLE = TokenTable(PIECES, PIECES, 0, [index == EOS for index in range(len(PIECES))])
# What is drawn more often: structure, keys of few letters, and in the end what ends a string or an object.
_OFTEN, _ENDING = frozenset(b'ab"{}[],:1\\un06'), frozenset(b'"}]1')


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, none of whose keys is there twice."""
    found = dict(pairs)
    assert len(found) == len(pairs), pairs
    return found


class RandomOutputs:
    """Outputs of one vocabulary.

    Attributes:
        grammars: over it.
    """

    def __init__(self, table: TokenTable = TABLE, eos: int = EOS) -> None:
        self._table, self._eos, self._size = table, eos, len(table)
        self.grammars = Grammars(table, self._size, (eos,))
        self._weights = np.ones(self._size)
        self._weights[[set(table.piece(token)) <= _OFTEN for token in range(self._size)]] = 40
        self._ending = self._weights.copy()
        self._ending[[set(table.piece(token)) <= _ENDING for token in range(self._size)]] = 4000
        self._ending[eos] = 4000

    def draw(self, grammar: Grammar, chance: random.Random, most: int = 150) -> str | None:
        """An output of a grammar; None where it does not end. There is always something that may come next."""
        matcher = self.grammars.matcher(grammar)
        masks = np.zeros((1, (self._size + 31) // 32), np.uint32)
        text = b""
        for step in range(most):
            self.grammars.fill([matcher], masks)
            allowed = np.unpackbits(masks[0].view(np.uint8), bitorder="little")[: self._size].nonzero()[0]
            assert len(allowed), text
            weights = self._ending if step > most // 2 else self._weights
            (token,) = chance.choices(allowed, weights[allowed])
            if token == self._eos:
                return text.decode("utf-8", "replace")
            text += self._table.piece(token)
            if matcher.advance(int(token)):
                return text.decode("utf-8", "replace")
        return None
