"""Budgets of reasoning: counted between the marks, and its end forced where they are used up."""

import pytest

from penstock.core.errors import InvalidParameter
from penstock.core.sampling import ReasoningBudget, SamplingParams
from penstock.text.reasoning_limit import ReasoningLimit
from penstock.text.table import TokenStream, TokenTable

# The bytes, and tokens of more: marks, and one that has a mark and what follows it.
PIECES = [bytes([byte]) for byte in range(256)] + [b"<think>", b"</think>", b"\n\n", b"<th", b"ink>a", b"\n</think>\n"]
OPEN, CLOSE, BREAK, OPE, N_A, LINE = range(256, 262)
CLOSING = (10, CLOSE, BREAK)


def limit(tokens: int, *, opened: bool = False, special: bool = False) -> ReasoningLimit:
    marks = {OPEN, CLOSE} if special else set()
    table = TokenTable(PIECES, PIECES, 0, [index in marks for index in range(len(PIECES))])
    budget = ReasoningBudget(tokens=tokens, closing=CLOSING, opened=opened)
    return ReasoningLimit(budget, TokenStream(table, True, tuple(marks)))


def forced_after(watch: ReasoningLimit, tokens: list[int]) -> list[int | None]:
    """What is forced before each token and behind the last; forced tokens are taken in place of those given."""
    found = [watch.forced]
    for token in tokens:
        watch.advance(token if watch.forced is None else watch.forced)
        found.append(watch.forced)
    return found


A = ord("a")


@pytest.mark.parametrize("special", [False, True])
def test_the_end_is_forced_when_the_budget_is_used_up(special: bool) -> None:
    assert forced_after(limit(2, special=special), [OPEN, A, A] + [A] * 5) == [None] * 3 + [*CLOSING, None, None, None]
    assert forced_after(limit(2, opened=True), [A, A] + [A] * 5) == [None] * 2 + [*CLOSING, None, None, None]
    assert forced_after(limit(3), [BREAK, OPE, N_A, A, A]) == [None] * 6


def test_no_reasoning_at_all() -> None:
    assert forced_after(limit(0), [OPEN, A, A, A]) == [None, *CLOSING, None]
    assert forced_after(limit(0, opened=True), [A] * 3) == [*CLOSING, None]


def test_what_ends_by_itself_or_is_no_reasoning_is_left_alone() -> None:
    assert forced_after(limit(2), [OPEN, A, CLOSE, A, A, A]) == [None] * 7
    assert forced_after(limit(2, opened=True), [A, LINE, OPEN, A, A, A, A]) == [None] * 8
    assert forced_after(limit(2), [A, OPEN, A, A, A, A]) == [None] * 7
    # Half a mark is none.
    assert forced_after(limit(3), [OPE, A, A, A, A]) == [None] * 6
    assert forced_after(limit(1, opened=True), [ord("<")]) == [None, 10]


def test_characters_are_completed_first() -> None:
    rocket = list("🚀".encode())
    assert forced_after(limit(2, opened=True), [A, *rocket]) == [None] * 5 + [10]
    # Bytes that are none are no reason to wait for ever.
    assert forced_after(limit(1, opened=True), [0xF0] * 6)[:5] == [None] * 4 + [10]


def test_messages_of_harmony() -> None:
    header, closing = b"<|channel|>analysis<|message|>", (10, 11)
    pieces = [*PIECES, header, b"<|end|>", b"<|channel|>final<|message|>"]
    thought, end, final = len(PIECES), len(PIECES) + 1, len(PIECES) + 2
    table = TokenTable(pieces, pieces, 0, [False] * len(pieces))

    def watch(tokens: int) -> ReasoningLimit:
        budget = ReasoningBudget(tokens=tokens, closing=closing, marks="harmony")
        return ReasoningLimit(budget, TokenStream(table, True, ()))

    assert forced_after(watch(2), [thought, A, A, A, A, A]) == [None] * 3 + [*closing, None, None]
    # All messages that reason have one budget, and an answer has none.
    assert forced_after(watch(2), [thought, A, end, thought, A, A]) == [None] * 5 + [10, 11]
    assert forced_after(watch(2), [thought, A, end, final, A, A, A]) == [None] * 8


def test_budgets_are_checked() -> None:
    for fields in ({"tokens": -1, "closing": (1,)}, {"tokens": 1, "closing": ()}, {"tokens": 1, "closing": (-1,)}):
        with pytest.raises(InvalidParameter, match="reasoning_budget"):
            ReasoningBudget(**fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="reasoning_budget"):
        SamplingParams(reasoning_budget=5)  # type: ignore[arg-type]
