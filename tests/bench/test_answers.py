"""Answers that can be checked by counting."""

from collections.abc import Sequence

from penstock.bench.answers import is_worse, judged_answers
from penstock.bundled.corpus.turns import Turn


def test_the_corpus_answers_its_own_questions() -> None:
    found = judged_answers(lambda turns: [turn.expected for turn in turns], 20)
    assert found == dict.fromkeys(("5-7-5", "JSON", "sums"), (True,) * 20)


def test_wrong_answers_are_seen() -> None:
    asked: list[str] = []

    def answer(turns: Sequence[Turn]) -> list[str]:
        asked.extend(turn.before[-1]["content"] for turn in turns)
        return ["The sum is -1."] * len(turns)

    assert not any(any(right) for right in judged_answers(answer, 10).values())
    assert len(asked) == 30 and len(set(asked)) > 20


def test_a_loss_is_told_from_chance() -> None:
    base = [True] * 40 + [False] * 8
    assert not is_worse(base, base)
    assert not is_worse(base, [False] * 3 + base[3:])
    assert is_worse(base, [False] * 5 + base[5:])
    # As many won as lost.
    assert not is_worse(base, [False] * 5 + [True] * 43)
