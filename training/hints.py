"""What the maker of a conversation knows and its text hardly shows: hints that training gives beside the next token.

A poem's form shows only where a line ends, and its topic only where it is named, each once in a dozen tokens or two;
from that alone a model learns slowly what a word counts and which words of a request matter. So training also asks, at
every word that the model says, how many syllables the line has by then, and now and then, what the turn is about. The
heads that answer read the middle of the layers and are left behind when the model is exported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from penstock.bundled.corpus.checks import WORD, count_word

# A count starts anew at the end of a line, at a quotation mark (the lines of a poem in JSON) and at each turn.
_BREAK = re.compile(r'[\n"]|<\|[a-z]+\|>')
MOST_SYLLABLES = 8
# What a turn is about is asked at every so many of its tokens: asking costs as much as saying one.
TOPIC_STRIDE = 3


def _counts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """For each word of a line the character that it ends before and the line's syllables up to there."""
    total = 0
    for word in WORD.finditer(text, start, end):
        count = count_word(word.group())
        total += count or 0
        if count is None or total > MOST_SYLLABLES:
            return
        yield word.end(), total


def running_syllables(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.uint8]:
    """Syllables of the line up to and with each token, [tokens], from the tokens' places in the text.

    0 where no word ends with the token, behind a word that the dictionary does not have, and beyond MOST_SYLLABLES.
    """
    at: dict[int, int] = {}
    start = 0
    for found in _BREAK.finditer(text):
        at |= dict(_counts(text, start, found.start()))
        start = found.end()
    at |= dict(_counts(text, start, len(text)))
    return np.array([at.get(end, 0) if end > first else 0 for first, end in offsets], dtype=np.uint8)


def topic_tokens(tokenizer: Tokenizer, learned: NDArray[np.bool_], topics: Sequence[str | None]) -> NDArray[np.uint16]:
    """At every TOPIC_STRIDE-th token of a turn a token of its topic, in turn; 0 elsewhere, [tokens].

    `learned` marks the turns of one conversation, `topics` has the topic of each.
    """
    hints = np.zeros(len(learned), dtype=np.uint16)
    edges = np.flatnonzero(np.diff(learned, prepend=False, append=False)).reshape(-1, 2)
    for (start, end), topic in zip(edges, topics, strict=True):
        if topic is not None:
            ids = tokenizer.encode(f" {topic}", add_special_tokens=False).ids
            places = np.arange(start, end, TOPIC_STRIDE)
            hints[places] = np.resize(ids, len(places))
    return hints
