"""What can be checked of a text by counting: syllables, form, topic, JSON. Generator and evaluation share it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from penstock.bundled.corpus.lexicon import SEASONS, load_lexicon

HAIKU = (5, 7, 5)
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?", re.IGNORECASE | re.ASCII)
NUMBER = re.compile(r"\d+")


class HaikuJson(NamedTuple):
    """A haiku as the JSON object that people ask for; the names are its keys, in order."""

    title: str
    lines: tuple[str, ...]
    season: str


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return WORD.findall(text.lower())


def count_word(word: str) -> int | None:
    """Syllables of a word; None where the dictionary does not have it."""
    return load_lexicon().syllables.get(word.lower())


def count_syllables(text: str) -> int | None:
    """Syllables of all words of a text; None where the dictionary lacks one of them, or there is none."""
    counts = [count_word(word) for word in words_of(text)]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def poem_lines(text: str) -> tuple[str, ...] | None:
    """The last three lines of a text that has nothing else but a title line and a blank line before them."""
    lines = [line.strip() for line in text.strip().splitlines()]
    blanks = [index for index, line in enumerate(lines) if not line]
    if len(lines) == 3 and not blanks:
        return tuple(lines)
    if len(lines) == 5 and blanks == [1]:
        return tuple(lines[2:])
    return None


def is_haiku(lines: Sequence[str] | None) -> bool:
    """Whether there are three lines of exactly 5, 7 and 5 syllables, all of words in the dictionary."""
    return lines is not None and tuple(count_syllables(line) for line in lines) == HAIKU


def mentions(text: str, phrase: str) -> bool:
    """Whether the words of `phrase` stand in `text`, in this order and beside each other."""
    words, wanted = words_of(text), words_of(phrase)
    return bool(wanted) and any(
        words[start : start + len(wanted)] == wanted for start in range(len(words) - len(wanted) + 1)
    )


def same_last_number(expected: str, text: str) -> bool:
    """Whether the last number in both is the same, or neither has one: how the result of a sum is compared."""
    return NUMBER.findall(expected)[-1:] == NUMBER.findall(text)[-1:]


def haiku_json(text: str) -> HaikuJson | None:
    """The object that `text` is, where it has exactly the keys title, lines and season, and values of their types."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(value, dict) or tuple(value) != HaikuJson._fields:
        return None
    title, lines, season = value.values()
    well_typed = (
        isinstance(title, str)
        and isinstance(lines, list)
        and len(lines) == 3
        and all(isinstance(line, str) for line in lines)
        and season in (*SEASONS, "any")
    )
    return HaikuJson(title, tuple(lines), season) if well_typed else None
