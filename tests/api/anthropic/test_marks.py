"""`cache_control` in Anthropic's messages: which part of the prompt a mark stands for, and what `usage` says of it."""

from typing import Any

import httpx
import pytest

from penstock.core.events import KeptTokens
from penstock.core.request import KeptPrefix

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}


def text(content: str, mark: object = None) -> dict[str, Any]:
    return {"type": "text", "text": content, "cache_control": mark}


def post(served: Any, path: str = "/v1/messages", **fields: object) -> httpx.Response:
    fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
    if path == "/v1/messages":
        fields["max_tokens"] = 100
    response: httpx.Response = served.http.post(path, json=fields)
    return response


def kept(served: Any, **fields: object) -> list[tuple[str, float]]:
    """The end of each prefix that the engine is to keep, as text, and for how many seconds."""
    response = post(served, **fields)
    assert response.status_code == 200, response.text
    call = served.engine.calls[-1]
    return [
        (served.tokenizer.decode(call.prompt[: prefix.tokens], skip_special=False), prefix.seconds)
        for prefix in call.keep
    ]


def user(*content: object) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def test_nothing_is_kept_without_marks(served: Any) -> None:
    assert kept(served) == []


def test_the_systems_text(served: Any) -> None:
    ((prefix, seconds),) = kept(served, system=[text("Be kind.", MARK)])
    assert prefix.endswith("<|im_start|>system: Be kind.<|im_end|><|im_start|>user: ")
    assert seconds == 300.0
    first, second = kept(served, system=[text("Be kind.", HOUR), text("Be brief.", MARK)])
    assert first[0].endswith("<|im_start|>system: Be kind.") and first[1] == 3600.0
    assert second[0].endswith("Be brief.<|im_end|><|im_start|>user: ") and second[1] == 300.0


def test_blocks_of_messages(served: Any) -> None:
    answer = {"role": "assistant", "content": [text("I do.", MARK)]}
    first, second, third = kept(
        served, messages=[user(text("One.", MARK), text("Two.")), answer, user(text("Three.", MARK))]
    )
    assert first[0].endswith("<|im_start|>user: One.")
    assert second[0].endswith("Two.<|im_end|><|im_start|>assistant: I do.<|im_end|>")
    assert third[0].endswith("<|im_start|>user: Three.<|im_end|>")


def test_results_of_tools(served: Any) -> None:
    def result(inner: object = None, outer: object = None) -> list[dict[str, Any]]:
        content = [text("4", inner), text("2")]
        block = {"type": "tool_result", "tool_use_id": "t1", "content": content, "cache_control": outer}
        return [user(text("hi")), {"role": "assistant", "content": [CALL]}, user(block)]

    ((inner, _),) = kept(served, messages=result(inner=MARK))
    ((outer, _),) = kept(served, messages=result(outer=MARK))
    assert inner.endswith("<|im_start|>tool: 4") and outer.endswith("<|im_start|>tool: 4\n2<|im_end|>")


def test_a_call_of_a_tool(served: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    turns = [user(text("hi")), {"role": "assistant", "content": [{**CALL, "cache_control": MARK}]}, user(result)]
    ((prefix, _),) = kept(served, messages=turns)
    assert prefix.endswith('<|im_start|>assistant: {"name": "f", "arguments": {"a": 1}}<|im_end|>')


def test_the_whole_request(served: Any) -> None:
    ((prefix, _),) = kept(served, cache_control=MARK)
    assert prefix.endswith("<|im_start|>user: hi<|im_end|>")
    # The last block says so itself.
    assert len(kept(served, cache_control=MARK, messages=[user(text("hi", MARK))])) == 1


def test_an_answer_to_be_continued(served: Any) -> None:
    begun = {"role": "assistant", "content": [text("Once", MARK)]}
    ((prefix, _),) = kept(served, messages=[user(text("hi")), begun])
    assert prefix.endswith("<|im_start|>assistant: Once")


def test_the_text_of_special_tokens_counts_as_it_is_sent(served: Any) -> None:
    ((prefix, _),) = kept(served, messages=[user(text("<|im_end|> is no end", MARK), text("more"))])
    assert prefix.endswith("<|im_end|> is no end")


def test_usage_without_marks_is_what_the_cache_had(served: Any) -> None:
    usage = post(served).json()["usage"]
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (4, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_usage_with_marks_is_what_was_kept(served: Any, stream: bool) -> None:
    def usage(told: KeptTokens | None) -> dict[str, Any]:
        served.engine.kept = told
        response = post(served, system=[text("a", HOUR), text("b", MARK)], stream=stream)
        if not stream:
            return dict(response.json()["usage"])
        start = next(line for line in response.text.splitlines() if line.startswith("data: "))
        return dict(httpx.Response(200, text=start.removeprefix("data: ")).json()["message"]["usage"])

    def expected(read: int, hour: int, minutes: int) -> dict[str, Any]:
        prompt = len(served.engine.calls[-1].prompt)
        return {
            "input_tokens": prompt - read - hour - minutes,
            "cache_creation_input_tokens": hour + minutes,
            "cache_read_input_tokens": read,
            "cache_creation": {"ephemeral_5m_input_tokens": minutes, "ephemeral_1h_input_tokens": hour},
        }

    def without_output(fields: dict[str, Any]) -> dict[str, Any]:
        del fields["output_tokens"], fields["output_tokens_details"]
        return fields

    assert without_output(usage(KeptTokens(0, [8, 12]))) == expected(0, 8, 4)
    assert without_output(usage(KeptTokens(8, [8, 12]))) == expected(8, 0, 4)
    assert without_output(usage(KeptTokens(4, [8, 12]))) == expected(4, 4, 4)
    assert without_output(usage(KeptTokens(12, [8, 12]))) == expected(12, 0, 0)
    # Where there is no room, or caching is off, nothing is claimed.
    assert without_output(usage(KeptTokens(0, [0, 0]))) == expected(0, 0, 0)


def test_what_marks_may_be(served: Any) -> None:
    five = [text(str(index), MARK) for index in range(5)]
    for fields, message in (
        ({"system": five}, "system[4].cache_control: is mark 5 of 5; at most 4 are accepted."),
        ({"system": five[:4], "cache_control": MARK}, "cache_control: is mark 5 of 5"),
        (
            {"system": [text("a", MARK)], "messages": [user(text("b", HOUR))]},
            'messages[0].content[0].cache_control: of "1h" comes behind system[0].cache_control of "5m"',
        ),
        ({"system": [text("a", {"type": "eternal"})]}, "system[0].cache_control.type"),
        ({"system": [text("a", {"type": "ephemeral", "ttl": "2h"})]}, "system[0].cache_control.ttl"),
        ({"system": [text("a", "yes")]}, "system[0].cache_control"),
    ):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = post(served, path, **fields)
            assert response.status_code == 400, response.text
            assert message in response.json()["error"]["message"]


def test_marks_change_no_count(served: Any) -> None:
    plain, marked = (
        post(served, "/v1/messages/count_tokens", system=[text("Be kind.", mark)]).json() for mark in (None, MARK)
    )
    assert plain == marked


def test_the_prefixes_come_in_their_order(served: Any) -> None:
    post(served, system=[text("Be kind.", HOUR)], messages=[user(text("a", HOUR), text("b", MARK))])
    prefixes: tuple[KeptPrefix, ...] = served.engine.calls[-1].keep
    assert [prefix.tokens for prefix in prefixes] == sorted(prefix.tokens for prefix in prefixes)
    assert len(prefixes) == 3 and prefixes[0].tokens > 0
