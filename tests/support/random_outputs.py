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
_OFTEN = [*range(256, EOS), ord("a"), ord("b"), *b'"{}[],:1\\un06']


def adversarial_grammars() -> Grammars:
    """Grammars over that vocabulary."""
    return Grammars(TABLE, len(PIECES), (EOS,))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, none of whose keys is there twice."""
    found = dict(pairs)
    assert len(found) == len(pairs), pairs
    return found


def random_output(grammars: Grammars, grammar: Grammar, chance: random.Random, most: int = 150) -> str | None:
    """Tokens drawn at random, those of few letters and of structure more often; None where it does not end."""
    matcher = grammars.matcher(grammar)
    masks = np.zeros((1, (len(PIECES) + 31) // 32), np.uint32)
    weights = np.ones(len(PIECES))
    weights[_OFTEN] = 40
    text = b""
    for step in range(most):
        grammars.fill([matcher], masks)
        allowed = np.unpackbits(masks[0].view(np.uint8), bitorder="little")[: len(PIECES)].nonzero()[0]
        assert len(allowed), text
        # Strings and objects come to an end some time.
        if step > most // 2:
            weights[[*b'"}]1', EOS]] = 4000
        (token,) = chance.choices(allowed, weights[allowed])
        if token == EOS:
            return text.decode("utf-8", "replace")
        text += PIECES[token]
        if matcher.advance(int(token)):
            return text.decode("utf-8", "replace")
    return None
