"""Figures are counted as they say."""

import numpy as np
import pytest
import torch

from training.bundle import fill
from training.data import poem_hash
from training.distill import transcript
from training.evaluate import called, held_out_turns, judge_poems, token_acceptance

POEM = ("the old lantern waits", "a heron lands on the bridge", "rain on my window")


def test_what_is_no_poem_counts_as_wrong() -> None:
    poems = [POEM, POEM, (POEM[1], POEM[0], POEM[2]), None]
    figures = judge_poems(poems, ["old lantern", "rain", "heron", "rain"], frozenset((poem_hash("\n".join(POEM)),)))
    assert figures == {
        "haiku_575": 0.5, "haiku_on_topic": 0.75, "haiku_verbatim": 0.5, "haiku_distinct": 0.5
    }  # fmt: skip
    assert judge_poems([POEM], [None], frozenset())["haiku_on_topic"] == 0


def test_acceptance() -> None:
    target = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    assert token_acceptance(target, target, 0.0).tolist() == [1, 1]
    assert token_acceptance(target, target, 0.7).tolist() == pytest.approx([1, 1])
    draft = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 9.0]])
    assert token_acceptance(target, draft, 0.0).tolist() == [0, 1]
    p, q = torch.softmax(target, -1), torch.softmax(draft, -1)
    expected = [sum(min(float(a), float(b)) for a, b in zip(*rows, strict=True)) for rows in zip(p, q, strict=True)]
    assert token_acceptance(target, draft, 1.0).tolist() == pytest.approx(expected)


def test_only_the_answer_is_learned_even_where_it_was_cut() -> None:
    ids, learned = transcript([5, 6, 7], [8, 9, 2], True, end=2)
    assert (ids, learned.tolist()) == ([5, 6, 7, 8, 9, 2], [False] * 3 + [True] * 3)
    ids, learned = transcript([5, 6, 7], [8, 9], False, end=2)
    assert (ids, learned.tolist()) == ([5, 6, 7, 8, 9], [False] * 3 + [True] * 2)
    assert learned.dtype == np.bool_


def test_turns_come_in_order_and_of_the_task_asked_for() -> None:
    turns = held_out_turns("medium", frozenset(("json",)), 5)
    assert [turn.task for turn in turns] == ["json"] * 5
    assert all(turn.before[-1]["role"] == "user" and turn.topic for turn in turns)
    assert turns[:3] == held_out_turns("medium", frozenset(("json",)), 3)


def test_a_card_with_an_unknown_name_is_not_written() -> None:
    assert fill("{{share}} of it", {"share": "half"}) == "half of it"
    with pytest.raises(KeyError, match="misspelt"):
        fill("{{misspelt}}", {"share": "half"})


def test_calls_are_read_only_where_the_answer_is_nothing_else() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"text": "rain"}}</tool_call>'
    assert called(call) == [{"name": "f", "arguments": {"text": "rain"}}]
    assert called(call + "\n" + call) == called(call) * 2
    assert called("Sure! " + call) == called(call[:-3]) == called("<tool_call>{</tool_call>") == called("") == []
