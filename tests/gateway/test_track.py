"""What a client has got of a stream, from its comments, however its bytes arrive."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.resumption import MARK, Begun
from penstock.gateway.track import Track

OPENING = MARK + b'{"id":"chatcmpl-1","created":5,"seed":9}\n\n'


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"text": text}).encode() + b"\n\n"


def tokens(*ids: int) -> bytes:
    return MARK + ",".join(map(str, ids)).encode() + b"\n\n"


# What a model may write that looks like a comment.
EVENTS = [event("one"), event("\n: penstock 77\n\n"), event(": penstock 78"), b"event: x\ndata: {}\n\n"]
LAST = event("end") + b"data: [DONE]\n\n"
STREAM = (
    OPENING + EVENTS[0] + tokens(1) + EVENTS[1] + EVENTS[2] + tokens(2, 3) + tokens() + EVENTS[3] + tokens(4) + LAST
)


@given(st.sets(st.integers(1, len(STREAM) - 1)), st.integers(0, len(STREAM)))
def test_what_is_passed_on_is_what_the_tokens_stand_for(cuts: set[int], end: int) -> None:
    """Wherever the stream is cut into pieces, and wherever it breaks."""
    places = [0, *sorted(cut for cut in cuts if cut < end), end]
    track, passed = Track(), b""
    for first, last in zip(places, places[1:], strict=False):
        passed += track.take(STREAM[first:last])
    begun, whole = track.begun(), b"".join(EVENTS)
    assert whole.startswith(passed)
    known = () if begun is None else begun.tokens
    assert known == (1, 2, 3, 4)[: len(known)]
    assert passed == {0: b"", 1: EVENTS[0], 3: b"".join(EVENTS[:3]), 4: whole}[len(known)]
    if end == len(STREAM):
        assert passed + track.rest() == whole + LAST
        assert begun == Begun("chatcmpl-1", 5, 9, (1, 2, 3, 4), 4)


def test_another_replica_goes_on() -> None:
    begun = Begun("chatcmpl-1", 5, 9, (1, 2), 2)
    track = Track(begun)
    assert not track.has_more and track.begun() == begun
    assert track.take(OPENING + event("three") + tokens(3)) == event("three")
    assert track.has_more and track.begun() == Begun("chatcmpl-1", 5, 9, (1, 2, 3), 3)


def test_what_is_no_comment_of_ours_is_known_as_that() -> None:
    track = Track()
    track.take(OPENING + event("one") + MARK + b"one\n\n")
    with pytest.raises(msgspec.DecodeError):
        track.begun()
