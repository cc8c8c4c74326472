"""Answers on hand-made timelines, right ones and each way to be wrong."""

import json
from typing import Any

import pytest

from penstock.bench.load.answer import VIOLATIONS, Answer
from support.scripted_http import text_chunk, usage_chunk


def fed(*timeline: tuple[float, object], **options: Any) -> Answer:
    """An answer whose events came at these times: objects, or the text of an event."""
    answer = Answer(**options)
    for now, event in timeline:
        text = event if isinstance(event, str) else json.dumps(event)
        answer.feed(f"data: {text}\n\n".encode(), now)
    answer.end()
    return answer


def chat_chunk(finish: str | None = None, **delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_times_of_a_completion() -> None:
    answer = fed(
        (1.0, text_chunk("a")), (1.25, text_chunk("b")), (2.0, text_chunk("c", "length")), (2.5, usage_chunk(7, 3, 4)),
        (3.0, "[DONE]"),
    )  # fmt: skip
    assert (answer.first, answer.last, answer.chunks) == (1.0, 2.0, 3)
    assert list(answer.gaps) == [0.25, 0.75]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
    assert answer.violation is None


def test_what_no_reader_sees_is_no_first_token() -> None:
    answer = fed(
        (1.0, chat_chunk(role="assistant", content="")), (2.0, chat_chunk(content="a")), (4.0, chat_chunk("stop")),
        (4.0, usage_chunk(7, 2)), (4.0, "[DONE]"),
    )  # fmt: skip
    # The end may be a token without text, so the answer lasts until then; it is no gap between chunks with content.
    assert (answer.first, answer.last, answer.chunks) == (2.0, 4.0, 1)
    assert list(answer.gaps) == []
    assert answer.violation is None


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning", "refusal"])
def test_everything_that_a_reader_sees_is_content(name: str) -> None:
    answer = fed((1.0, chat_chunk("stop", **{name: "x"})), (1.0, usage_chunk(1, 1)), (1.0, "[DONE]"))
    assert answer.chunks == 1


def test_a_call_of_a_tool_is_content() -> None:
    answer = fed((1.0, chat_chunk("stop", tool_calls=[{"index": 0}])), (1.0, usage_chunk(1, 1)), (1.0, "[DONE]"))
    assert answer.chunks == 1


def test_an_answer_of_tokens_without_text_has_its_end_as_first_token() -> None:
    answer = fed((3.0, text_chunk("", "stop")), (3.0, usage_chunk(1, 1)), (3.0, "[DONE]"))
    assert (answer.first, answer.last, answer.chunks) == (3.0, 3.0, 0)


def test_gaps_are_those_of_each_choice() -> None:
    answer = fed(
        (1.0, text_chunk("a", index=0)), (1.5, text_chunk("b", index=1)), (3.0, text_chunk("c", "stop", index=0)),
        (3.25, text_chunk("d", "stop", index=1)), (3.25, usage_chunk(1, 4)), (3.25, "[DONE]"), choices=2,
    )  # fmt: skip
    assert list(answer.gaps) == [2.0, 1.75]
    assert answer.violation is None


def test_tokens_that_chunks_name_are_counted() -> None:
    named = [text_chunk("ab", token_ids=[5, 6]), text_chunk("", "stop", token_ids=[7])]
    assert fed(*((1.0, c) for c in named), (1.0, usage_chunk(1, 3)), (1.0, "[DONE]")).violation is None
    wrong = fed(*((1.0, c) for c in named), (1.0, usage_chunk(1, 4)), (1.0, "[DONE]"))
    assert wrong.violation == ("wrong usage", "usage says 4 tokens, the chunks have 3")


def test_tokens_of_logprobs_are_counted() -> None:
    chunk = text_chunk("ab", "stop", logprobs={"tokens": ["a", "b"], "token_logprobs": [0.0, 0.0]})
    assert fed((1.0, chunk), (1.0, usage_chunk(1, 2)), (1.0, "[DONE]")).violation is None
    assert fed((1.0, chunk), (1.0, usage_chunk(1, 1)), (1.0, "[DONE]")).violation is not None


END = text_chunk("a", "stop")
USAGE = usage_chunk(1, 1)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ((END, USAGE), "no [DONE]"),
        ((END, USAGE, "[DONE]", "[DONE]"), "data after [DONE]"),
        ((END, "[DONE]", USAGE), "data after [DONE]"),
        ((text_chunk("a"), USAGE, "[DONE]"), "no finish_reason"),
        ((END, text_chunk("", "stop"), USAGE, "[DONE]"), "several finish_reasons"),
        ((END, text_chunk("b"), USAGE, "[DONE]"), "content after the end"),
        ((END, "[DONE]"), "no usage"),
        ((text_chunk("a", "stop", index=1), USAGE, "[DONE]"), "wrong choice"),
        (('{"choices": [', END, USAGE, "[DONE]"), "invalid JSON"),
        (('{"choices": 5}', END, USAGE, "[DONE]"), "invalid JSON"),
        ((END, USAGE, "[DONE]\n\nhello"), "malformed event"),
    ],
)
def test_each_breach_of_the_protocol_has_its_kind(events: tuple[object, ...], kind: str) -> None:
    answer = fed(*((1.0, event) for event in events))
    assert answer.violation is not None
    assert answer.violation[0] == kind
    assert kind in VIOLATIONS


def test_an_error_in_the_stream_is_no_breach() -> None:
    answer = fed((1.0, text_chunk("a")), (2.0, {"error": {"message": "the engine died", "code": "x"}}))
    assert answer.error == ("error in the stream", "the engine died")
    assert answer.violation is None


def test_a_client_leaves_after_so_many_chunks() -> None:
    answer = Answer(cancel_after=2)
    chunk = f"data: {json.dumps(text_chunk('a'))}\n\n".encode()
    assert not answer.feed(chunk, 1.0)
    assert answer.feed(chunk, 2.0)
    assert answer.left


def test_text_is_kept_only_for_a_next_turn() -> None:
    events = ((1.0, text_chunk("a")), (1.0, text_chunk("b", "stop")), (1.0, usage_chunk(1, 2)), (1.0, "[DONE]"))
    assert fed(*events, keep_text=True).text == "ab"
    assert fed(*events).text == ""
