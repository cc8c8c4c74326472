"""Events are the same wherever the stream is cut."""

import pytest

from penstock.bench.load.sse import EventReader

STREAM = (
    b'data: {"a": 1}\n\n: a comment\n\ndata:two\r\n\r\n'
    b"event: x\nid: 5\nretry: 3\ndata: three\ndata: more\n\n\ndata: four\n\n"
)
EVENTS = [b'{"a": 1}', b"two", b"three\nmore", b"four"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_of_pieces(size: int) -> None:
    reader, found = EventReader(), []
    for start in range(0, len(STREAM), size):
        found += reader.feed(STREAM[start : start + size])
    reader.end()
    assert found == EVENTS
    assert reader.fault is None


def test_an_event_comes_with_its_last_byte() -> None:
    reader = EventReader()
    assert reader.feed(b"data: x\n") == []
    assert reader.feed(b"\n") == [b"x"]


@pytest.mark.parametrize("data", [b"{}\n\n", b"date: x\n\n", b"data: x\nHTTP\n\n"])
def test_what_is_no_field_is_a_fault(data: bytes) -> None:
    reader = EventReader()
    reader.feed(data)
    assert reader.fault is not None


def test_half_an_event_at_the_end_is_a_fault() -> None:
    reader = EventReader()
    assert reader.feed(b"data: x\n\ndata: [DO") == [b"x"]
    reader.end()
    assert reader.fault == "data: [DO"
