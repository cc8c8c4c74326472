"""Events of a stream, however it is cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.providers.events import EventReader

_LINE = st.text("ab: \t", max_size=8).map(lambda text: text.encode())


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces."""
    ends = sorted({min(each, len(data)) for each in places} | {0, len(data)})
    return [data[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


@given(st.lists(st.lists(_LINE, min_size=1, max_size=3), max_size=4), st.lists(st.integers(0, 200)), st.booleans())
def test_any_cutting_gives_the_same(events: list[list[bytes]], places: list[int], windows: bool) -> None:
    end = b"\r\n" if windows else b"\n"
    data = b"".join(b"event: x" + end + b"".join(b"data: " + line + end for line in each) + end for each in events)
    reader = EventReader()
    found = [event for piece in cut(data, places) for event in reader.take(piece)]
    assert found == [b"\n".join(each) for each in events]


def test_comments_and_other_fields_are_no_data() -> None:
    assert EventReader().take(b": hello\nid: 3\n\ndata:a\n\ndata: b\n") == [b"a"]


@pytest.mark.parametrize("piece", [b"x" * 10, b"data: aaa\n", b"data:\n", b": x\n"])
def test_an_event_without_an_end_is_not_held_for_ever(piece: bytes) -> None:
    reader = EventReader(most=100)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        for _ in range(101):
            reader.take(piece)


def test_many_short_events_are_none_that_is_long() -> None:
    reader = EventReader(most=100)
    assert sum(len(reader.take(b"data: aaa\n\n")) for _ in range(1000)) == 1000
    assert len(reader.take(b"data: aaa\n\n" * 1000)) == 1000
