"""What people say and what the model answers, by purpose, read from `data/wordings.txt`."""

from __future__ import annotations

import functools
import random
import re
from typing import Literal

from penstock.bundled.corpus.lexicon import LexiconError, data_lines

Split = Literal["train", "heldout"]
# People write carelessly now and then, and put something before or behind what they ask.
LOWER_CASE_SHARE, UPPER_CASE_SHARE, NO_STOP_SHARE = 0.08, 0.01, 0.08
OPENER_SHARE, CLOSER_SHARE = 0.12, 0.08
# Nothing is put around what is a greeting, a thank-you or a system message itself.
ALONE = frozenset(("hello", "thanks", "bye", "system", "system.tools"))


@functools.cache
def load_wordings() -> dict[str, tuple[str, ...]]:
    """Wordings by section. Raises LexiconError where one stands before any section."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in data_lines("wordings.txt"):
        if re.fullmatch(r"\[[a-z.]+\]", line):
            current = sections.setdefault(line[1:-1], [])
        elif current is None:
            raise LexiconError(f"wordings.txt: {line!r} stands before the first section.")
        else:
            current.append(line)
    return {name: tuple(lines) for name, lines in sections.items()}


def request(section: str, split: Split, rng: random.Random, **slots: object) -> str:
    """What a person might type. Raises KeyError where the section has no wordings for the split."""
    text = _wording(section, split, rng).format(**slots)
    if section not in ALONE:
        text = _surrounded(text, split, rng)
    manner = rng.random()
    if manner < LOWER_CASE_SHARE:
        return text.lower()
    if manner < LOWER_CASE_SHARE + UPPER_CASE_SHARE and not slots:
        return text.upper()
    if manner > 1 - NO_STOP_SHARE and text.endswith((".", "?")):
        return text[:-1]
    return text


def _wording(section: str, split: Split, rng: random.Random) -> str:
    return rng.choice(load_wordings()[f"{section}.heldout" if split == "heldout" else section])


def _surrounded(text: str, split: Split, rng: random.Random) -> str:
    if rng.random() < OPENER_SHARE:
        text = f"{_wording('opener', split, rng)} {text}"
    # Behind a list or a sum without a full stop, a word more would belong to it.
    if rng.random() < CLOSER_SHARE and text.endswith((".", "!", "?")):
        text = f"{text} {_wording('closer', split, rng)}"
    return text


def answer(section: str, rng: random.Random, **slots: object) -> str:
    """One of the model's ways to say something."""
    return rng.choice(load_wordings()[f"{section}.answer"]).format(**slots)
