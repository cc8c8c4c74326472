"""Whether a model still says what it was made to say: poems, objects and sums, which can be checked by counting.

What is asked are the bundled models' own tasks, on topics and in wordings that they were not trained on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.bundled.corpus.checks import haiku_json, is_haiku, poem_lines, same_last_number
from penstock.bundled.corpus.generator import Stratum, held_out
from penstock.bundled.corpus.turns import POEM_TASKS, Turn, first_turns

Answer = Callable[[Sequence[Turn]], list[str]]
"""The texts that a model says in these turns."""

_DEVIATIONS = 1.96
# With fewer, hardly any loss can be told from chance.
FEWEST_ANSWERS = 16


@dataclass(frozen=True, slots=True)
class _Task:
    """Where its turns are, and what is right."""

    stratum: Stratum
    turns: frozenset[str]
    right: Callable[[Turn, str], bool]


def _is_poem(_turn: Turn, text: str) -> bool:
    return is_haiku(poem_lines(text))


def _is_object(_turn: Turn, text: str) -> bool:
    return haiku_json(text) is not None


def _is_sum(turn: Turn, text: str) -> bool:
    return same_last_number(turn.expected, text)


_TASKS: Mapping[str, _Task] = {
    "5-7-5": _Task("medium", POEM_TASKS, _is_poem),
    "JSON": _Task("medium", frozenset(("json",)), _is_object),
    "sums": _Task("easy", frozenset(("sum",)), _is_sum),
}


def judged_answers(answer: Answer, count: int) -> dict[str, tuple[bool, ...]]:
    """By task, which of `count` answers are right; always to the same questions."""
    found: dict[str, tuple[bool, ...]] = {}
    for name, task in _TASKS.items():
        turns = first_turns(partial(held_out, task.stratum), task.turns, count)
        texts = answer(turns)
        found[name] = tuple(task.right(turn, text) for turn, text in zip(turns, texts, strict=True))
    return found


def is_worse(base: Sequence[bool], candidate: Sequence[bool]) -> bool:
    """Whether more right answers were lost than chance takes 19 times of 20 (McNemar, 1947), of the same questions."""
    lost = sum(right and not other for right, other in zip(base, candidate, strict=True))
    won = sum(other and not right for right, other in zip(base, candidate, strict=True))
    return lost - won > _DEVIATIONS * math.sqrt(lost + won)
