"""What people say and what the model answers, by purpose, read from `data/wordings.txt`."""

from __future__ import annotations

import functools
import random
import re
from typing import Literal

from penstock.bundled.corpus.lexicon import LexiconError, data_lines

Split = Literal["train", "heldout"]
# People write carelessly now and then.
LOWER_CASE_SHARE, UPPER_CASE_SHARE, NO_STOP_SHARE = 0.08, 0.01, 0.08


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
    """What a person might type; held-out wordings where `split` says so and the section has some."""
    sections = load_wordings()
    held_out = f"{section}.heldout"
    text = rng.choice(sections[held_out if split == "heldout" and held_out in sections else section]).format(**slots)
    manner = rng.random()
    if manner < LOWER_CASE_SHARE:
        return text.lower()
    if manner < LOWER_CASE_SHARE + UPPER_CASE_SHARE and not slots:
        return text.upper()
    if manner > 1 - NO_STOP_SHARE and text.endswith((".", "?")):
        return text[:-1]
    return text


def answer(section: str, rng: random.Random, **slots: object) -> str:
    """One of the model's ways to say something."""
    return rng.choice(load_wordings()[f"{section}.answer"]).format(**slots)
