"""Stop strings: found wherever the text is cut, the one that ends first, never inside the protected tokens."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.errors import InvalidParameter
from penstock.text.stops import StopMatcher

LETTERS = st.text(alphabet="abé", min_size=1, max_size=5)


def naive(stops: list[str], text: bytes) -> tuple[str, int] | None:
    """(stop string, where it ends): the first to end, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop.encode())]
        if ending:
            return max(ending, key=lambda stop: len(stop.encode())), end
    return None


def cut(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[low:high] for low, high in zip(places, places[1:], strict=False)]


@given(stops=st.lists(LETTERS, max_size=4), text=st.text("abé", max_size=30), cuts=st.lists(st.integers(0, 60)))
@example(stops=["aab"], text="aaab", cuts=[1, 2, 3])
@example(stops=["b", "ab"], text="ab", cuts=[1])
def test_the_first_match_is_found_under_every_cut(stops: list[str], text: str, cuts: list[int]) -> None:
    data = text.encode()
    expected = naive(stops, data)
    matcher = StopMatcher(stops)
    fed = 0
    for piece in cut(data, cuts):
        fed += len(piece)
        found = matcher.feed(piece)
        if found is not None:
            assert expected == (found, fed - matcher.overrun)
            return
        # What may still become a stop string is held, and no more.
        starts = [stop.encode()[:length] for stop in stops for length in range(len(stop.encode()))]
        assert matcher.held == max((len(start) for start in starts if data[:fed].endswith(start)), default=0)
    assert expected is None


def test_every_cut_of_one_stop_string() -> None:
    text = b"before<|end|>after"
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            matcher = StopMatcher(["<|end|>"])
            found = [matcher.feed(piece) for piece in (text[:first], text[first:second], text[second:])]
            assert "<|end|>" in found


def test_stop_strings_before_min_tokens_do_not_count() -> None:
    matcher = StopMatcher(["ab"], min_tokens=3)
    assert matcher.feed(b"ab") is None
    assert matcher.feed(b"a") is None
    assert matcher.feed(b"b") == "ab"


def test_a_match_that_does_not_count_is_not_held() -> None:
    matcher = StopMatcher(["ab"], min_tokens=3)
    matcher.feed(b"ab")
    assert matcher.held == 0
    matcher = StopMatcher(["aba"], min_tokens=9)
    matcher.feed(b"aba")
    assert matcher.held == 1


def test_no_stop_strings_match_nothing() -> None:
    matcher = StopMatcher([])
    assert matcher.feed(b"anything") is None
    assert matcher.held == 0


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="stop"):
        StopMatcher([""])
