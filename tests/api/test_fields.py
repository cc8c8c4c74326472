"""Fields that are hints, fields that nobody knows, and what clients are told of them."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock.api.equivalents import EQUIVALENTS
from penstock.api.fields import FieldReader, HintField, RefusedField
from penstock.api.openai.schema import parse_chat
from penstock.api.policies import FieldPolicies
from penstock.api.requests import ChatFields
from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.http.answers import MOST_TOLD, ignored_header
from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine

HI = [{"role": "user", "content": "hi"}]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": HI},
    "/tokenize": {"messages": HI},
    "/detokenize": {"tokens": [5]},
}


def ignored(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    told = answer.headers.get("x-penstock-ignored", "")
    return told.split(", ") if told else []


def message_of(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


@pytest.fixture
def other(tokenizer: Tokenizer) -> Iterator[Callable[..., httpx.Client]]:
    """Makes servers with other options, or another template."""
    with contextlib.ExitStack() as stack:

        def make(template: str = "{{ messages[-1].content }}", **options: Any) -> httpx.Client:
            engine = ScriptedEngine(tokenizer.table, tokenizer.encode("Hello", False))
            app = create_app(engine, tokenizer, template=ChatTemplate(template), policies=FieldPolicies(**options))
            client = stack.enter_context(httpx.Client(base_url=stack.enter_context(running(app))))
            client.engine = engine  # type: ignore[attr-defined]
            return client

        yield make


def test_hints_are_accepted_and_told(served: Any) -> None:
    told = {"safety_identifier": "y", "store": True, "verbosity": "low", "prompt_cache_key": "x"}
    # These ask for nothing at all.
    asking_nothing = {"store": False, "prompt_cache_retention": "in_memory", "audio": None}
    assert ignored(served.chat(**told)) == list(told)
    assert ignored(served.chat(**told, stream=True)) == list(told)
    assert ignored(served.complete(**told)) == list(told)
    assert ignored(served.chat(**asking_nothing)) == []
    assert ignored(served.chat(unknown_one=None)) == ["unknown_one"]


def test_a_value_that_is_no_hint_is_refused(served: Any) -> None:
    for thread, status in (({"type": "create"}, 200), ({"type": "continue", "previous_message_id": "x"}, 400)):
        body = {"messages": HI, "max_tokens": 9, "thread": thread}
        assert served.http.post("/v1/messages", json=body).status_code == status
    for included, status in ("reasoning.encrypted_content", 200), ("message.output_text.logprobs", 400):
        answer = served.http.post("/v1/responses", json={"input": "hi", "include": [included]})
        assert answer.status_code == status
        assert (answer.headers.get("x-penstock-ignored") == "include") == (status == 200)


def test_what_clients_keep_in_messages_is_theirs(served: Any) -> None:
    call = {
        "id": "c",
        "type": "function",
        "index": 0,
        "extra_content": {},
        "function": {"name": "f", "arguments": "{}"},
    }
    call["function"]["parsed_arguments"] = {}
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [part], "timestamp": 5},
        {"role": "assistant", "content": None, "tool_calls": [call], "parsed": {}, "reasoning": "Hm.", "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "x", "annotations": []},
        {"role": "user", "content": "y", "timestamp": 6},
    ]
    for path in ("/v1/chat/completions", "/tokenize"):
        told = ignored(served.http.post(path, json={"messages": json.loads(json.dumps(messages))}))
        assert sorted(told) == [
            "messages[].content[].cache_control",
            "messages[].parsed",
            "messages[].timestamp",
            "messages[].tool_calls[].extra_content",
            "messages[].tool_calls[].function.parsed_arguments",
            "messages[].tool_calls[].index",
        ]


def test_reasoning_has_two_names_in_histories() -> None:
    reader = FieldReader()
    body = {"messages": [*HI, {"role": "assistant", "content": "x", "reasoning": "Hm."}]}
    fields = parse_chat(json.dumps(body).encode(), reader)
    assert fields.messages[1].reasoning_content == "Hm." and reader.ignored == ()
    for other, told in ((None, ()), ("Hm.", ()), ("Ah.", ("messages[].reasoning",))):
        reader, body["messages"][1]["reasoning_content"] = FieldReader(), other
        fields = parse_chat(json.dumps(body).encode(), reader)
        assert fields.messages[1].reasoning_content == (other or "Hm.") and reader.ignored == told


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/chat/completions",
            {"reasoning_effort": "huge"},
            "reasoning_effort: 'huge' is not one of high, low, max",
        ),
        (
            "/v1/chat/completions",
            {"reasoning_effort": "x" * 9999},
            f"reasoning_effort: '{'x' * 40}' is not one of high",
        ),
        (
            "/v1/embeddings",
            {"pooling": "median"},
            "pooling: 'median' is not one of cls, last, max, mean, mean_sqrt_len, tokens, weightedmean.",
        ),
        ("/v1/messages", {"thinking": {"type": "x"}}, "thinking.type: 'x' is not one of adaptive, disabled, enabled."),
        ("/v1/messages", {"tool_choice": {"type": ""}}, "tool_choice.type: '' is not one of any, auto, none, tool."),
        (
            "/v1/messages",
            {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]},
            "system[0].cache_control.ttl: '2h' is not one of 1h, 5m.",
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "text"}}},
            "output_config.format.type: 'text' is not one of json_schema.",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": "x", "status": "done"}]},
            "input[0].status: 'done' is not one of completed, in_progress, incomplete.",
        ),
    ],
)
def test_a_value_that_is_not_one_of_some_is_told_which_there_are(
    served: Any, path: str, fields: dict[str, Any], message: str
) -> None:
    assert message_of(served.http.post(path, json={**PATHS[path], **fields})).startswith(message)


@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_are_refused_or_told(served: Any, other: Callable[..., httpx.Client], path: str) -> None:
    body = {**PATHS[path], "no_such_field": 1, "modle": "scripted"}
    message = message_of(served.http.post(path, json=body))
    assert message.startswith("no_such_field:") and "is not a field of this request;" in message
    assert message.endswith("start the server with --unknown-fields tell.")
    body.pop("no_such_field")
    assert "did you mean model?" in message_of(served.http.post(path, json=body))
    telling = other(unknown_fields="tell")
    assert ignored(telling.post(path, json={**body, "no_such_field": {"a": 1}})) == ["modle", "no_such_field"]


def test_anthropics_clients_find_the_words_that_they_look_for(served: Any, other: Callable[..., httpx.Client]) -> None:
    asked = {"messages": HI, "max_tokens": 9}
    message = message_of(served.http.post("/v1/messages", json={**asked, "no_such_field": 1}))
    assert message.startswith("no_such_field: Extra inputs are not permitted. ")
    long = [{"role": "user", "content": "fox " * 400}]
    message = message_of(served.http.post("/v1/messages", json={**asked, "messages": long}))
    found = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum\. ", message)
    assert found is not None and int(found[1]) > int(found[2]) == 255
    refusing = other(max_tokens_policy="refuse")
    message = message_of(refusing.post("/v1/messages", json={**asked, "max_tokens": 256}))
    found = re.match(r"input length and `max_tokens` exceed context limit: (\d+) \+ 256 > 256\. ", message)
    assert found is not None and 0 < int(found[1]) < 256
    # OpenAI's have a code.
    error = served.chat(no_such_field=1).json()["error"]
    assert (error["code"], error["param"]) == ("unknown_parameter", "no_such_field")
    assert served.chat(messages=long).json()["error"]["code"] == "context_length_exceeded"


def test_unknown_fields_are_found_wherever_they_are(other: Callable[..., httpx.Client]) -> None:
    telling = other(unknown_fields="tell")
    body = {
        "messages": HI,
        "stream": True,
        "stream_options": {"include_usage": True, "more": 1},
        "tools": [{"type": "function", "function": {"name": name, "more": 1}, "extra": 2} for name in "fg"],
        "tool_choice": "none",
    }
    assert ignored(telling.post("/v1/chat/completions", json=body)) == [
        "stream_options.more",
        "tools[].function.more",
        "tools[].extra",
    ]
    # The value of a field that is known is not forgiven.
    assert message_of(telling.post("/v1/chat/completions", json={**body, "n": "two"})).startswith("n:")
    tagged = {"messages": HI, "max_tokens": 9, "system": [{"type": "text", "text": "x", "more": 1}]}
    assert ignored(telling.post("/v1/messages", json=tagged)) == ["system[].more"]
    many = {"messages": HI, **{f"field{index}": 1 for index in range(300)}}
    assert "more than 256 unknown fields" in message_of(telling.post("/v1/chat/completions", json=many))
    many = {"messages": [{**HI[0], **{f"field{index}": 1 for index in range(300)}}]}
    assert "more than 256 unknown fields" in message_of(telling.post("/v1/chat/completions", json=many))


def test_of_very_many_that_are_not_enforced_the_number_is_told(served: Any) -> None:
    schema = {"type": "object", "properties": {f"p{index}": {"uniqueItems": True} for index in range(300)}}
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    told = ignored(served.chat(response_format=asked))
    assert len(told) == MOST_TOLD + 1 and told[-1] == f"and {300 - MOST_TOLD} more"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("n_predict", "use max_tokens"),
        ("repeat_penalty", "use repetition_penalty"),
        ("max_new_tokens", "use max_tokens"),
        ("regex", "structured_outputs"),
        ("think", "reasoning_effort"),
    ],
)
def test_fields_of_other_servers_are_told_what_they_are_called_here(served: Any, field: str, words: str) -> None:
    message = message_of(served.chat(**{field: 1}))
    assert message.startswith(f"{field}: is a field of other servers;") and words in message


def test_fields_of_other_servers_are_those_of_whole_bodies(served: Any) -> None:
    function = {"name": "f", "format": "x"}
    message = message_of(served.chat(tools=[{"type": "function", "function": function}]))
    assert message.startswith("tools[0].function.format: is not a field of this request;")


def test_equivalents_are_fields_of_the_request(served: Any) -> None:
    for path, field, words in (
        ("/v1/responses", "max_new_tokens", "use max_output_tokens."),
        ("/v1/messages", "think", "use output_config."),
        ("/v1/messages", "json_schema", "use output_config for a JSON schema."),
        ("/v1/messages", "repeat_penalty", "is not a field of this request"),
        ("/v1/embeddings", "think", "is not a field of this request"),
    ):
        assert words in message_of(served.http.post(path, json={**PATHS[path], field: 1}))


def test_equivalents_name_fields_that_exist() -> None:
    assert not EQUIVALENTS.keys() & set(ChatFields.__struct_fields__)
    named = {"max_tokens", "repetition_penalty", "timeout", "return_token_ids", "response_format", "reasoning_effort"}
    assert named <= set(ChatFields.__struct_fields__)
    for why in EQUIVALENTS.values():
        assert why.endswith(".") and len(why) < 120


def test_a_reader_tells_each_field_once() -> None:
    reader = FieldReader()
    rules = {"a": HintField("why"), "b": RefusedField("is not supported.", (1,)), "c": HintField("why", (True,))}
    for index in range(3):
        reader.settle({"a": 1, "b": 1, "c": True, "d": 5}, rules, f"messages[{index}].")
    assert reader.ignored == ("messages[].a",)
    # JSON's true is not 1.
    with pytest.raises(InvalidParameter, match=r"x\.b: is not supported"):
        reader.settle({"b": True}, rules, "x.")
    reader.settle({"c": 1}, rules)
    assert reader.ignored == ("messages[].a", "c")


def test_a_header_holds_any_name() -> None:
    assert ignored_header(()) == {}
    assert ignored_header(["a.b[]", "x\r\ny: z", "ü,"]) == {"x-penstock-ignored": "a.b[], x%0D%0Ay%3A z, %C3%BC%2C"}
    told = ignored_header([f"f{index}" for index in range(MOST_TOLD + 5)])["x-penstock-ignored"]
    assert told.endswith(f"f{MOST_TOLD - 1}, and 5 more")
    assert len(ignored_header(["x" * 10_000])["x-penstock-ignored"]) < 100
    # A character takes up to twelve there; no escape is cut.
    assert ignored_header(["𝕏" * 80])["x-penstock-ignored"] == "%F0%9D%95%8F" * 6 + "%F0%9D"


@pytest.mark.parametrize(
    ("template", "effort", "rendered", "exact"),
    [
        ("{{ reasoning_effort }}{% if reasoning_effort == 'low' or 'high' %}{% endif %}", "high", "high", True),
        ("{{ reasoning_effort }}{% if reasoning_effort == 'low' or 'high' %}{% endif %}", "max", "high", False),
        ("{{ reasoning_effort }}{% if reasoning_effort == 'low' or 'high' %}{% endif %}", "medium", "high", False),
        ("{{ reasoning_effort }}{% if reasoning_effort == 'low' or 'high' %}{% endif %}", "none", "low", False),
        ("{{ reasoning_effort }}", "xhigh", "xhigh", True),
        ("{{ enable_thinking }}", "none", "False", True),
        ("{{ enable_thinking }}", "low", "True", False),
        ("{{ thinking }}", "none", "False", True),
        ("x", "high", "x", False),
    ],
)
def test_efforts_are_said_as_the_template_can(
    other: Callable[..., httpx.Client], tokenizer: Tokenizer, template: str, effort: str, rendered: str, exact: bool
) -> None:
    http = other(template + "{{ messages[-1].content }}")
    for path, body, name in (
        ("/v1/chat/completions", {"messages": HI, "reasoning_effort": effort}, "reasoning_effort"),
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": effort}}, "reasoning.effort"),
        (
            "/v1/messages",
            {"messages": HI, "max_tokens": 9, "output_config": {"effort": effort}},
            "output_config.effort",
        ),
    ):
        assert ignored(http.post(path, json=body)) == ([] if exact else [name])
        assert tokenizer.decode(http.engine.calls[-1].prompt, skip_special=False).endswith(rendered + "hi")  # type: ignore[attr-defined]


def test_what_a_client_says_to_the_template_itself_counts(other: Callable[..., httpx.Client]) -> None:
    http = other("{{ enable_thinking }}{{ messages[-1].content }}")
    body = {"messages": HI, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    tokens = http.post("/tokenize", json={**body, "return_token_strs": True}).json()["token_strs"]
    assert "".join(tokens).startswith("True")


def test_more_output_than_there_is_room_for_is_cut_and_told(served: Any, other: Callable[..., httpx.Client]) -> None:
    refusing = other(max_tokens_policy="refuse")
    for path, body, name in (
        ("/v1/completions", {"prompt": [5] * 250, "max_tokens": 10_000}, "max_tokens"),
        ("/v1/chat/completions", {"messages": HI, "max_completion_tokens": 10_000}, "max_completion_tokens"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 10_000}, "max_output_tokens"),
        ("/v1/messages", {"messages": HI, "max_tokens": 10_000}, "max_tokens"),
    ):
        served.engine.calls.clear()
        assert ignored(served.http.post(path, json=body)) == [name]
        (call,) = served.engine.calls
        assert call.params.max_tokens == 256 - len(call.prompt)
        assert message_of(refusing.post(path, json=body)).startswith(name)


def test_the_account_and_the_log_tell_it_too(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.server")
    answer = served.chat(prompt_cache_key="x")
    told = served.http.get(f"/v1/requests/{answer.headers['x-request-id']}/explain").json()
    assert told["ignored"] == ["prompt_cache_key"]
    assert "ignored 'prompt_cache_key'" in caplog.text


def test_responses_count_tokens_like_the_request_itself(served: Any) -> None:
    body = {"instructions": "Be kind.", "input": [{"role": "user", "content": "fox"}]}
    counted = served.http.post("/v1/responses/input_tokens", json=body).json()
    whole = served.http.post("/v1/responses", json=body).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]}
    following = {"input": "fox", "previous_response_id": whole["id"]}
    counted = served.http.post("/v1/responses/input_tokens", json=following).json()["input_tokens"]
    assert served.http.post("/v1/responses", json=following).json()["usage"]["input_tokens"] == counted
    assert message_of(served.http.post("/v1/responses/input_tokens", json={**body, "stream": True})).startswith(
        "stream"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unknown_fields": "ignore"}, "--unknown-fields ignore is not one of refuse, tell."),
        ({"max_tokens_policy": "drop"}, "--max-tokens-policy drop is not one of cut, refuse."),
    ],
)
def test_policies_that_do_not_exist_are_refused_at_the_start(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        FieldPolicies(**options).check()
    assert words in error.value.message


def test_each_policy_has_its_reason() -> None:
    told = {reason.setting: (reason.value, reason.why) for reason in FieldPolicies(unknown_fields="tell").reasons}
    assert told["unknown fields"] == ("tell", "as asked")
    assert told["max tokens policy"][0] == "cut" and told["max tokens policy"][1] != "as asked"
