"""What responses contain: text, ids, log probabilities, usage, several choices and prompts; streamed or whole."""

import json
from typing import Any

import pytest

from penstock.api.openai.logprobs import CompletionLogprobWriter
from penstock.core.plan import TokenLogprobs
from penstock.text.table import TokenTable
from support.sse import events

REPLY = "Hello, wörld 👩‍🚀!"


def test_streamed_and_whole_responses_say_the_same(served: Any) -> None:
    fields = {"n": 2, "logprobs": 2, "return_token_ids": True}
    whole = served.complete(**fields).json()
    streamed = events(served.complete(stream=True, stream_options={"include_usage": True}, **fields).text)
    assert streamed[-1]["choices"] == [] and streamed[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 2 * len(served.engine.reply)
    for index in range(2):
        parts = [event["choices"][0] for event in streamed[:-1] if event["choices"][0]["index"] == index]
        choice = whole["choices"][index]
        assert "".join(part["text"] for part in parts) == choice["text"] == REPLY
        assert sum((part["token_ids"] for part in parts), []) == choice["token_ids"] == served.engine.reply
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert sum((part["logprobs"][name] for part in parts), []) == choice["logprobs"][name]
        assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"] == served.engine.calls[0].prompt
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert all(event["usage"] is None for event in streamed[:-1])
    assert {event["seed"] for event in streamed} == {43} and whole["seed"] == 42


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True}])
@pytest.mark.parametrize("chat", [False, True])
def test_continuous_usage_is_in_every_event(served: Any, chat: bool, fields: dict[str, Any]) -> None:
    if "logprobs" in fields and not chat:
        fields = {"logprobs": 1}
    options = {"include_usage": True, "continuous_usage_stats": True}
    ask = served.chat if chat else served.complete
    streamed = events(ask(stream=True, stream_options=options, **fields).text)
    usages = [event["usage"] for event in streamed]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts) and counts[0] >= 1 and len(set(counts)) > 3
    assert counts[-1] == counts[-2] == fields.get("n", 1) * len(served.engine.reply)
    for usage in usages:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage | {"completion_tokens": 0, "total_tokens": 0} == usages[-1] | {
            "completion_tokens": 0,
            "total_tokens": 0,
        }


def test_text_offsets_point_into_the_text(served: Any) -> None:
    choice = served.complete(logprobs=0, echo=False).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"][0] == 0
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token)
    # The token itself always has its log probability.
    assert logprobs["top_logprobs"] == [{token: -0.5} for token in logprobs["tokens"]]


def test_impossible_tokens_have_a_finite_logprob(served: Any) -> None:
    choice = served.chat(logprobs=True, top_logprobs=3, max_tokens=1).json()["choices"][0]
    assert [top["logprob"] for top in choice["logprobs"]["content"][0]["top_logprobs"]] == [-0.5, -1.5, -9999.0]


def test_chat_chunks_begin_with_the_role(served: Any) -> None:
    chunks = events(served.chat(stream=True, n=2).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas[:3]] == ["assistant", "assistant", None]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert "usage" not in chunks[0]


def test_no_empty_chunks_while_a_character_is_incomplete(served: Any) -> None:
    chunks = events(served.chat(stream=True).text)
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1])


def test_several_prompts_and_samples_are_in_order(served: Any) -> None:
    prompts = ["the", "quick fox", "<s>lazy"]
    whole = served.complete(prompt=prompts, n=2, echo=True, max_tokens=1).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in whole["choices"]] == [prompt + "H" for prompt in prompts for _ in range(2)]
    assert whole["usage"]["prompt_tokens"] == sum(len(call.prompt) for call in served.engine.calls)
    streamed = events(served.complete(prompt=prompts, n=2, echo=True, stream=True).text)
    texts = [""] * 6
    for event in streamed:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [prompt + REPLY for prompt in prompts for _ in range(2)]


def test_prompts_of_token_ids(served: Any) -> None:
    ids = served.tokenizer.encode("the fox")
    assert served.complete(prompt=ids).status_code == 200
    assert served.complete(prompt=[ids, [5, 6]]).status_code == 200
    assert [call.prompt for call in served.engine.calls] == [ids, ids, [5, 6]]
    echoed = served.complete(prompt=ids, echo=True, max_tokens=1).json()["choices"][0]["text"]
    assert echoed == "the foxH"


def test_length_ends_an_output(served: Any) -> None:
    choice = served.complete(max_tokens=3).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hel", "length")


def test_a_failed_sample_fails_the_request(served: Any) -> None:
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    response = served.chat()
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "The logits are not numbers.",
        "type": "server_error",
        "param": None,
        "code": "row_failed",
    }
    streamed = events(served.chat(stream=True).text)
    assert streamed[-1]["error"]["code"] == "row_failed"


def test_an_aborted_request_can_be_sent_again(served: Any) -> None:
    served.engine.finish = "abort"
    response = served.chat()
    assert response.status_code == 503 and response.headers["retry-after"] == "1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", ["the", ["the", "fox"]])
def test_an_unexpected_failure_says_nothing_of_the_insides(
    served: Any, stream: bool, prompts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: object) -> None:
        raise RuntimeError("secret /path")

    served.engine.before = fail
    response = served.complete(prompt=prompts, stream=stream)
    assert response.status_code == 500
    assert "secret" not in response.text and response.json()["error"]["code"] == "internal_error"
    assert "secret" in caplog.text
    served.engine.before = None
    assert served.complete().status_code == 200


def test_each_prompt_has_a_seed_of_its_own(served: Any) -> None:
    served.engine.calls.clear()
    whole = served.complete(prompt=[[5], [6]], n=2).json()
    assert "seed" not in whole and [choice["seed"] for choice in whole["choices"]] == [42, 42, 43, 43]
    served.engine.calls.clear()
    streamed = events(served.complete(prompt=[[5], [6]], n=2, stream=True).text)
    choices = [choice for event in streamed for choice in event["choices"]]
    assert not any("seed" in event for event in streamed)
    assert {choice["index"]: choice["seed"] for choice in choices if "seed" in choice} == {0: 42, 1: 42, 2: 43, 3: 43}
    for given in (served.complete(prompt=[5], seed=7).json(), events(served.complete(seed=7, stream=True).text)[0]):
        assert given["seed"] == 7 and given["choices"][0]["seed"] == 7


def test_an_unexpected_failure_in_the_middle_of_a_stream(served: Any) -> None:
    def fail(call: Any) -> None:
        if call.outputs == 3:
            raise RuntimeError("secret")

    served.engine.before = fail
    streamed = events(served.complete(stream=True).text)
    assert [event["choices"][0]["text"] for event in streamed[:-1]] == ["H", "e", "l"]
    assert streamed[-1]["error"]["code"] == "internal_error" and "secret" not in str(streamed[-1])


def test_request_log_names_the_user_only_as_a_literal(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="penstock.server"):
        served.complete(user="me\nforged line")
        # A request is logged when its response has been sent; the next one is answered after that.
        served.http.get("/health/live")
    assert r"user 'me\nforged line'" in caplog.text


def test_a_chat_tells_its_prompt_beside_the_choices_streamed_or_whole(served: Any) -> None:
    whole = served.chat(return_token_ids=True).json()
    first, *others = events(served.chat(return_token_ids=True, stream=True).text)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"] == served.engine.calls[0].prompt
    assert not any("prompt_token_ids" in event for event in others)
    assert not any("prompt_token_ids" in choice for event in (whole, first) for choice in event["choices"])


def stream_of(served: Any, path: str, **options: Any) -> list[tuple[int, dict[str, Any]]]:
    """The size of each event in bytes, and what it says."""
    body = {
        "/v1/completions": {"prompt": "the fox", "max_tokens": 100},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/responses": {"input": "hi"},
    }[path]
    lines = served.http.post(path, json={**body, "stream": True, **options}).content.split(b"\n")
    data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")]
    return [(len(each), json.loads(each)) for each in data]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_padding_hides_how_long_texts_are(served: Any, path: str) -> None:
    def deltas(**options: Any) -> list[tuple[int, dict[str, Any]]]:
        told = stream_of(served, path, **options)
        texts = [each for each in told if each[1].get("choices") or each[1].get("type", "").endswith("delta")]
        # The first and the last events have fields that others have not.
        return texts[1:-1]

    for options in ({}, {"stream_options": {}}, {"stream_options": {"include_obfuscation": False}}):
        assert not any("obfuscation" in event for _, event in stream_of(served, path, **options))
    padded = deltas(stream_options={"include_obfuscation": True})
    assert all(event["obfuscation"] for _, event in padded)
    assert len({len(event["obfuscation"]) for _, event in padded}) > 1
    # But for the digits of a number, they have one size.
    sizes = {size - len(str(event.get("sequence_number", ""))) for size, event in padded}
    assert len(sizes) == 1 < len({size for size, _ in deltas()})


def test_padding_needs_a_stream(served: Any) -> None:
    asked = {"stream_options": {"include_obfuscation": True}}
    for response in (served.chat(**asked), served.http.post("/v1/responses", json={"input": "hi", **asked})):
        assert response.status_code == 400 and response.json()["error"]["param"] == "stream_options"


def test_tokens_of_the_same_bytes_are_told_apart() -> None:
    table = TokenTable([b"a", b"a", b"b"], [b"a", b"a", b"b"], 0, [False] * 3)
    (tops,) = CompletionLogprobWriter(table, True).write([TokenLogprobs(1, -2.0, [0, 2], [-0.5, -1.0])])["top_logprobs"]
    assert tops == {"token_id:0": -0.5, "b": -1.0, "a": -2.0}
