"""Every field of a request is used, or refused by a 400 that names it."""

import json
import logging
import queue
from typing import Any

import pytest

from penstock.api.requests import ChatFields, CompletionFields
from penstock.core.errors import ModelFileError
from penstock.core.sampling import SamplingDefaults, SamplingParams
from support.waiting import PATIENCE


def refusal(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in response.text and "/work" not in response.text
    error: dict[str, Any] = body["error"]
    return error


# What Python's JSON parser still reads, and what recursive code may not.
DEEP = "[" * 400 + "]" * 400

SAMPLING = {
    "n": 3,
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 11,
    "min_tokens": 2,
    "stop": ["zz", "\n\n"],
    "stop_token_ids": [9, 10],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
}


@pytest.mark.parametrize("endpoint", ["complete", "chat"])
def test_sampling_fields_reach_the_engine(served: Any, endpoint: str) -> None:
    response = getattr(served, endpoint)(
        **SAMPLING, logit_bias={"5": -3}, max_tokens=8, priority=-2, cache_salt="tenant", user="me"
    )
    assert response.status_code == 200, response.text
    call = served.engine.calls[0]
    expected = SamplingParams(
        **{**SAMPLING, "stop": ("zz", "\n\n"), "stop_token_ids": (9, 10)},  # type: ignore[arg-type]
        logit_bias={5: -3.0},
        max_tokens=8,
    )
    assert call.params == expected
    assert (call.standing.priority, call.standing.cache_salt) == (-2, "tenant")


def test_defaults_are_the_models_and_then_those_of_the_api(served: Any) -> None:
    served.http.post("/v1/completions", json={"prompt": "the fox"})
    served.chat(temperature=1.0, top_k=None)
    first, second = served.engine.calls
    assert first.params == SamplingParams(temperature=0.6, top_k=20, max_tokens=16)
    assert second.params == SamplingParams(temperature=1.0, top_k=20, max_tokens=256 - len(second.prompt))


def test_bos_is_added_to_prompts_unless_told_not_to(served: Any) -> None:
    served.complete(prompt="the fox")
    served.complete(prompt="<s>the fox")
    served.complete(prompt="the fox", add_special_tokens=False)
    first, second, third = (call.prompt for call in served.engine.calls)
    assert first[0] == 1 and second == first and third == first[1:]


def test_conversations_go_through_the_template(served: Any) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two<|im_end|>"}]
    served.chat(messages=[{"role": "developer", "content": "be"}, {"role": "user", "content": parts}])
    served.chat(add_generation_prompt=False)
    served.chat(messages=[{"role": "assistant", "content": "go on"}], continue_final_message=True)
    served.chat(chat_template_kwargs={"shout": True}, add_special_tokens=True)
    texts = [served.tokenizer.decode(call.prompt, skip_special=False) for call in served.engine.calls]
    assert texts == [
        # The template writes the name of any role, and knows no developers.
        "<|im_start|>system: be<|im_end|><|im_start|>user: one\ntwo<|im_end|><|im_end|><|im_start|>assistant: ",
        "<|im_start|>user: hi<|im_end|>",
        "<|im_start|>assistant: go on",
        "<s><|im_start|>user: hi<|im_end|><|im_start|>assistant: SHOUT",
    ]
    # The special token that the user typed is text.
    assert served.engine.calls[0].prompt.count(served.tokenizer.token_id("<|im_end|>")) == 2


def test_tool_messages_reach_the_template(served: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
    ]
    assert served.chat(messages=messages).status_code == 200
    # The template has no place for calls, so the call is part of the text.
    prompt = served.tokenizer.decode(served.engine.calls[0].prompt)
    assert 'assistant: {"name": "f", "arguments": {"x": 1}}' in prompt and "tool: 42" in prompt


NEUTRAL = {
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "store": False,
    "modalities": ["text"],
    "suffix": None,
    "function_call": None,
    "use_beam_search": False,
    "truncate_prompt_tokens": None,
}


@pytest.mark.parametrize(("tier", "priority"), [("auto", 0), ("default", 0), ("flex", 1), ("priority", -1)])
def test_a_tier_is_a_priority(served: Any, tier: str, priority: int) -> None:
    answer = served.chat(service_tier=tier).json()
    # What "auto" comes to is told, as by /v1/responses.
    told = "default" if tier == "auto" else tier
    assert answer["service_tier"] == told
    assert served.engine.calls[0].standing.priority == priority
    assert f'"service_tier":"{told}"' in served.complete(service_tier=tier, stream=True).text


def test_user_and_metadata_go_into_the_log(served: Any) -> None:
    lines: queue.Queue[str] = queue.Queue()
    handler = logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())  # type: ignore[method-assign]
    # Its own handler, since other tests set up logging as a server does.
    logger = logging.getLogger("penstock.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        served.chat(user="me", metadata={"task": "7"})
        # A request is logged when its response has been sent.
        assert lines.get(timeout=PATIENCE).endswith(", user 'me', metadata {'task': '7'}")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_fields_that_ask_for_nothing_are_accepted(served: Any) -> None:
    assert served.chat(**NEUTRAL).status_code == 200
    everything = set(ChatFields.__struct_fields__) - {"messages"}
    assert served.chat(**dict.fromkeys(everything)).status_code == 200
    everything = set(CompletionFields.__struct_fields__) - {"prompt"}
    assert served.complete(**dict.fromkeys(everything)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"store": 0}, "store"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of"),
        ({"use_beam_search": True, "n": 65}, "n"),
        ({"use_beam_search": True, "best_of": 65}, "best_of"),
        ({"use_beam_search": True, "n": 2, "length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": True, "n": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": True, "n": 2, "temperature": 0.5}, "temperature"),
        ({"use_beam_search": True, "n": 2, "top_p": 0.5}, "top_p"),
        ({"use_beam_search": True, "n": 2, "top_k": 5}, "top_k"),
        ({"use_beam_search": True, "n": 2, "min_p": 0.5}, "min_p"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"service_tier": "flex", "priority": 1}, "service_tier"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": True}}, "stream_options.other"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ({"n": 1_000_000}, "n"),
        ({"n": 0}, "n"),
        ({"n": 10**30}, "n"),
        ({"n": True}, "n"),
        ({"n": "1"}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-60}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1000]}, "stop_token_ids"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"user": "x" * 513}, "user"),
    ],
)
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
def test_refusals_name_the_field(served: Any, endpoint: str, fields: dict[str, Any], param: str) -> None:
    error = refusal(getattr(served, endpoint)(**fields))
    assert error["param"] == param
    assert error["message"].startswith(param) and len(error["message"]) < 300
    assert served.engine.calls == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, None),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": [5, 1000]}, "prompt"),
        ({"prompt": [5, 10**30]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [[1.5]]}, "prompt[0][0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 2000}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
        ({"prompt": [[5] * 150] * 90, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [[5] * 150] * 90, "echo": True, "logprobs": 6, "n": 3}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"include_reasoning": True}, "include_reasoning"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
def test_refusals_of_completions(served: Any, fields: dict[str, Any], param: str | None) -> None:
    if param is None:
        fields, param = {**fields, "add_special_tokens": False}, "prompt"
    assert refusal(served.complete(**fields))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "audio": {}}]}, "messages[0].audio"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}]},
            "messages[0].content[0].more",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}]},
            "messages",
        ),
        ({"chat_template_kwargs": {"shout": json.loads(DEEP)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": 10**12}, "max_completion_tokens"),
        ({"reasoning_effort": "a lot"}, "reasoning_effort"),
        ({"logprobs": 2}, "logprobs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": {f"a{i}": 1 for i in range(65)}}, "chat_template_kwargs"),
        ({"echo": True}, "echo"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_refusals_of_chats(served: Any, fields: dict[str, Any], param: str) -> None:
    assert refusal(served.chat(**fields))["param"] == param


def test_an_unknown_model_is_not_found(served: Any) -> None:
    for response in (served.complete(model="gpt"), served.chat(model="gpt"), served.http.get("/v1/models/gpt")):
        error = refusal(response, 404)
        assert error["code"] == "model_not_found" and "'gpt'" in error["message"] and "'scripted'" in error["message"]


def test_the_context_is_never_exceeded_and_the_counts_are_told(served: Any) -> None:
    ids = [5] * 250
    assert served.complete(prompt=ids, max_tokens=6).status_code == 200
    # Without an end, an output would have just as many tokens as it may have.
    error = refusal(served.complete(prompt=ids, max_tokens=7, ignore_eos=True))
    assert error["code"] == "context_length_exceeded"
    assert "250 tokens" in error["message"] and "at most 6 tokens" in error["message"]
    error = refusal(served.complete(prompt=ids, max_tokens=8, min_tokens=7))
    assert error["code"] == "context_length_exceeded" and "at least 7 tokens of output" in error["message"]
    error = refusal(served.complete(prompt=[5] * 256))
    assert error["code"] == "context_length_exceeded" and "256 tokens" in error["message"]
    assert "257" in refusal(served.chat(max_tokens=257, ignore_eos=True))["message"]
    error = refusal(served.chat(messages=[{"role": "user", "content": "fox " * 400}]))
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"


def test_what_an_answer_may_hold_of_prompts_is_told(served: Any) -> None:
    prompts = [[5] * 200] * 70
    message = refusal(served.complete(prompt=prompts, prompt_logprobs=20, max_tokens=0))["message"]
    assert "14000 prompt tokens" in message and "at most 262144" in message


def test_a_prompt_that_is_only_scored_may_fill_the_context(served: Any) -> None:
    assert served.complete(prompt=[5] * 256, max_tokens=0, prompt_logprobs=0).status_code == 200
    error = refusal(served.complete(prompt=[5] * 257, max_tokens=0, prompt_logprobs=0))
    assert "takes at most 256" in error["message"] and "output" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"echo": True, "logprobs": 1}, 1),
        ({"echo": True, "logprobs": 0, "max_tokens": 0}, 0),
        ({"echo": False, "logprobs": 1}, None),
        ({"echo": True}, None),
        ({"prompt_logprobs": 3}, 3),
        ({"prompt_logprobs": 3, "echo": True, "logprobs": 5}, 5),
        ({"prompt_logprobs": 3, "echo": True, "logprobs": 2}, 3),
    ],
)
def test_prompts_are_scored_where_it_is_asked_for(served: Any, fields: dict[str, Any], expected: int | None) -> None:
    assert served.complete(**fields).status_code == 200
    assert served.engine.calls[0].params.prompt_logprobs == expected


def test_default_lengths_shrink_to_the_context(served: Any) -> None:
    served.http.post("/v1/completions", json={"prompt": [5] * 250})
    served.http.post("/v1/completions", json={"prompt": [5], "min_tokens": 30})
    served.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    first, second, third = served.engine.calls
    assert first.params.max_tokens == 6
    assert second.params.max_tokens == 30
    assert third.params.max_tokens == 256 - len(third.prompt)


def test_half_a_surrogate_pair_is_refused_or_replaced(served: Any) -> None:
    for fields in ({"prompt": "\ud800"}, {"prompt": "x", "stop": "\ud800"}, {"prompt": "x", "model": "\ud800"}):
        response = served.http.post(
            "/v1/completions", content=json.dumps(fields).encode(), headers={"content-type": "application/json"}
        )
        assert 400 <= response.status_code < 500


def test_half_of_a_surrogate_pair_is_refused(served: Any) -> None:
    for body in (b'{"prompt": "a\\ud800 b"}', b'{"prompt": "\\udc00"}'):
        refusal(served.http.post("/v1/completions", content=body, headers={"content-type": "application/json"}))
    # The arguments of a call are JSON within JSON, whose reader lets such halves through.
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "\\ud800"}'}}
    error = refusal(served.chat(messages=[{"role": "assistant", "tool_calls": [call]}]))
    assert error["param"] == "messages[0].tool_calls[0].function.arguments" and "surrogate" in error["message"]
    assert served.engine.calls == []


@pytest.mark.parametrize("config", [{"temperature": -1}, {"top_p": "high"}, {"top_k": 1.5}])
def test_recommended_parameters_that_are_not_valid_name_their_file(config: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=rf"generation_config\.json: {next(iter(config))}"):
        SamplingDefaults.from_generation_config(config)


def test_tokens_that_may_come_and_words_that_must_not(served: Any) -> None:
    assert served.chat(allowed_token_ids=[7, 5], bad_words=["fox", "dog"]).status_code == 200
    params = served.engine.calls[0].params
    assert params.allowed_token_ids == (7, 5) and params.bad_words == ()
    for text in ("fox", " fox", "dog", " dog"):
        assert tuple(served.tokenizer.encode(text, False)) in params.bad_words_ids
    assert served.complete(bad_words=["fox"], allowed_token_ids=[5]).status_code == 200
    for asked in ({"bad_words": []}, {"bad_words": None, "allowed_token_ids": None}):
        assert served.complete(**asked).status_code == 200
        assert served.engine.calls[-1].params.bad_words_ids == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1000]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["5"]}, "allowed_token_ids[0]"),
        ({"bad_words": "fox"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
    ],
)
def test_refusals_of_tokens_and_words_name_the_field(served: Any, fields: dict[str, Any], param: str) -> None:
    for ask in (served.chat, served.complete):
        response = ask(**fields)
        assert response.status_code == 400 and response.json()["error"]["param"] == param
