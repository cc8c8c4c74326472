"""Pieces of an answer add up to segments."""

from collections.abc import Sequence

import pytest

from penstock.api.job import Job
from penstock.api.segments import Answer
from penstock.core.errors import EngineUnavailable, RowFailed
from penstock.core.plan import Ending, FinishReason
from penstock.core.sampling import SamplingParams
from penstock.engine.interface import RequestOutput, SampleDelta
from penstock.text.output_format import Parsing
from penstock.text.pieces import CallArguments, CallStart, Content, Piece, Reasoning
from support.listed_parser import THOUGHTS_AND_CALLS, ListedParser


def output(text: str, finish: FinishReason | None = None, stop: str | None = None) -> RequestOutput:
    """Two tokens, of which the first has all of the text."""
    delta = SampleDelta(0, text, [1, 2], None, finish and Ending(finish, stop), ends=[len(text)] * 2)
    return RequestOutput(1, [delta], 10, 4, 42, finish is not None)


def listed(monkeypatch: pytest.MonkeyPatch, pieces: Sequence[Sequence[Piece]] = THOUGHTS_AND_CALLS) -> Answer:
    monkeypatch.setattr("penstock.text.output_format.PlainParser", lambda: ListedParser(pieces))
    return answer_of(None)


def answer_of(parsing: Parsing | None) -> Answer:
    return Answer(Job(prompts=[[1]], params=[SamplingParams()], parsing=parsing), None, "one")


def test_plain_text_is_one_block() -> None:
    answer = answer_of(None)
    gains = [gain for text in ("Hel", "", "lo") for gain in answer.take(output(text))] + answer.end()
    (segment,) = answer.segments
    assert [(gained is segment, text) for gained, text in gains] == [(True, "Hel"), (True, "lo")]
    assert (segment.index, segment.kind, segment.text) == (0, "text", "Hello")
    assert not answer.calls
    assert (answer.tally.tokens, answer.cached_tokens, answer.seed) == (6, 4, 42)


def test_blocks_begin_where_the_kind_changes_and_with_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = listed(monkeypatch)
    gains = [gain for _ in range(6) for gain in answer.take(output("x"))] + answer.end()
    assert [(segment.kind, segment.name, segment.text) for segment in answer.segments] == [
        ("reasoning", "", "Let me see."),
        ("text", "", "I look."),
        ("call", "weather", '{"city": "Rome"}'),
        ("call", "time", "{}"),
    ]
    assert [(segment.index, text) for segment, text in gains if segment.kind == "call"] == [
        (2, ""),
        (2, '{"city": "Ro'),
        (2, 'me"}'),
        (3, ""),
        (3, "{}"),
    ]
    assert answer.calls
    assert len({segment.call_id for segment in answer.segments[2:]}) == 2


def test_what_the_parser_held_back_comes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = listed(monkeypatch, [(), (CallStart(0, "f"), CallArguments(0, "{"), Content("<too"), Reasoning("no"))])
    assert answer.take(output("x")) == [] and len(answer.end()) == 4
    assert [segment.kind for segment in answer.segments] == ["call", "text", "reasoning"]


def test_an_answer_can_be_complete_before_the_engine_ends_it() -> None:
    answer = answer_of(Parsing(calls="hermes", most_calls=1))
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    answer.take(output(call + "more"))
    assert (
        answer.sample.cut
        and answer.sample.ending == Ending("stop")
        and [segment.kind for segment in answer.segments] == ["call"]
    )
    # The second token came with the first, and is no part of it.
    assert answer.tally.tokens == 1
    answer.take(output("more", "length"))
    assert not answer.sample.cut and answer.sample.ending == Ending("stop") and answer.tally.tokens == 1


def test_how_it_ended() -> None:
    answer = answer_of(None)
    answer.take(output("x"))
    assert answer.sample.ending is None
    answer.take(output("", "stop", "end"))
    assert (answer.sample.ending, answer.sample.cut) == (Ending("stop", "end"), False)
    answer = answer_of(None)
    with pytest.raises(RowFailed):
        answer.take(output("", "error"))
    answer = answer_of(None)
    with pytest.raises(EngineUnavailable):
        answer.take(output("", "abort"))
