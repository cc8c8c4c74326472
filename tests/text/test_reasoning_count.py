"""Which tokens count as reasoning, however they are cut from the text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.reasoning_count import ReasoningCount
from penstock.text.table import TokenStream, TokenTable


def counted(pieces: Sequence[bytes], *, opened: bool = False, cuts: Sequence[int] = ()) -> int:
    """The tokens of reasoning, where each piece is a token; `cuts` says where parts begin that are handed over."""
    table = TokenTable(list(pieces), list(pieces), 0, [not piece for piece in pieces])
    count, tokens = ReasoningCount(TokenStream(table, True), opened=opened), list(range(len(pieces)))
    places = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    before = 0
    for low, high in zip(places, places[1:], strict=False):
        count.take(tokens[low:high])
        assert count.tokens >= before
        before = count.tokens
    count.finish()
    return count.tokens


@pytest.mark.parametrize(
    ("pieces", "opened", "expected"),
    [
        (["<think>", "Hm", ".", "</think>", "\n\n", "Hello"], False, 2),
        # The marks as other tokens have them.
        (["<", "think", ">", "Hm", ".", "</", "think", ">", "Hello"], False, 2),
        (["<think>", "Hm", ".</", "think", ">Hello", "!"], False, 2),
        (["<think>Hm", ".", "</think>Hello"], False, 2),
        (["<think>", "Hm.</think>"], False, 1),
        (["<think></", "think>"], False, 0),
        # White space between the marks is between the marks.
        (["\n", "<think>", "\n", "Hm", "\n", "</think>", "\n"], False, 3),
        (["<think>", "a", "<", "/", "x", "</think>", "b"], False, 4),
        # The prompt has opened the block, and the model may do so again.
        (["\n", "Hm", "</think>", "Hello"], True, 2),
        (["<think>", "Hm", "</think>", "Hello"], True, 1),
        (["</think>", "Hello"], True, 0),
        ([" ", "\n"], True, 2),
        # Cut off.
        (["<think>", "Hm", "</", "thi"], False, 3),
        (["<think>"], False, 0),
        (["<thi"], False, 0),
        (["<thi"], True, 1),
        # No reasoning.
        (["Hello", "<think>", "Hm", "</think>"], False, 0),
        (["\n"], False, 0),
        ([], False, 0),
        ([], True, 0),
        # A token without text counts where it stands.
        (["<think>", "", "Hm", "", "</think>", "", "Hello"], False, 3),
        (["", "Hm", ""], True, 3),
    ],
)
def test_tokens_between_the_marks_are_counted(pieces: list[str], opened: bool, expected: int) -> None:
    encoded = [piece.encode() for piece in pieces]
    for cuts in ([], range(len(pieces))):
        assert counted(encoded, opened=opened, cuts=cuts) == expected


def test_a_character_in_several_tokens_counts_them_all() -> None:
    rocket = "🚀".encode()
    pieces = [b"<think>", *(bytes([byte]) for byte in rocket), b"</think>", *(bytes([byte]) for byte in rocket)]
    assert counted(pieces) == 4
    assert counted(pieces[:3]) == 2


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", "\n", "a", "", "é"]), max_size=10),
    st.booleans(),
    st.lists(st.integers(0, 20), max_size=5),
)
def test_the_count_does_not_depend_on_how_tokens_are_handed_over(
    pieces: list[str], opened: bool, cuts: list[int]
) -> None:
    encoded = [piece.encode() for piece in pieces]
    whole = counted(encoded, opened=opened)
    assert whole == counted(encoded, opened=opened, cuts=cuts) <= len(pieces)
