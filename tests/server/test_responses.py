"""What responses contain: text, ids, log probabilities, usage, several choices and prompts; streamed or whole."""

from typing import Any

import pytest

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
    assert logprobs["top_logprobs"][0] == {}


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
