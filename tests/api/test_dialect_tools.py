"""Tools and reasoning in Anthropic's and OpenAI's newer dialects: what reaches the model, and what its text becomes."""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicError
from openai import BadRequestError, OpenAI

from penstock.api.responses.schema import FunctionTool
from penstock.api.responses.tools import ToolNames
from penstock.text.tokenizer import Tokenizer
from support.speaking_model import CALL, SAID, SpeakingModel, serving_speaking_model

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
FUNCTION: Any = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA}
ASKED: Any = {"model": "scripted", "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def _speaking(tokenizer: Tokenizer) -> Iterator[SpeakingModel]:
    with serving_speaking_model(tokenizer) as speaking:
        yield speaking


class Model:
    """A model that says what the test wants, and clients of it."""

    def __init__(self, speaking: SpeakingModel) -> None:
        self.engine, self.says, self.prompt = speaking.engine, speaking.says, speaking.prompt
        self.anthropic = Anthropic(base_url=speaking.url, api_key="none", max_retries=0)
        self.openai = OpenAI(base_url=f"{speaking.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def model(_speaking: SpeakingModel) -> Iterator[Model]:
    _speaking.engine.calls.clear()
    model = Model(_speaking)
    with model.anthropic, model.openai:
        yield model


def message(model: Model, stream: bool, **fields: Any) -> Any:
    if not stream:
        return model.anthropic.messages.create(**{**ASKED, **fields})
    with model.anthropic.messages.stream(**{**ASKED, **fields}) as running_stream:
        return running_stream.get_final_message()


def response(model: Model, stream: bool, **fields: Any) -> Any:
    if not stream:
        return model.openai.responses.create(**{"model": "scripted", "input": "hi", **fields})
    with model.openai.responses.stream(**{"model": "scripted", "input": "hi", **fields}) as running_stream:
        return running_stream.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_thinks_speaks_and_calls(model: Model, stream: bool) -> None:
    model.says(SAID)
    answer = message(model, stream, tools=[WEATHER])
    thinking, text, call = answer.content
    assert (thinking.thinking, text.text, call.name, call.input) == (
        *("Which city?", "I look.", "weather"),
        {"city": "Köln"},
    )
    assert answer.stop_reason == "tool_use"
    assert '"parameters": {"type": "object"' in model.prompt() and "Tells it." in model.prompt()
    # The answer goes back as it came, with the tool's result.
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}
    turns = [*ASKED["messages"], {"role": "assistant", "content": answer.content}, result]
    model.says("So it rains.")
    again = message(model, stream, tools=[WEATHER], messages=turns)
    assert again.content[0].text == "So it rains." and again.stop_reason == "end_turn"
    assert model.prompt().endswith(
        "<|im_start|>assistant: <think>Which city?</think>I look."
        '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call><|im_end|>'
        "<|im_start|>tool: rain<|im_end|><|im_start|>assistant: "
    )
    counted = model.anthropic.messages.count_tokens(model="scripted", tools=[WEATHER], messages=turns)
    assert counted.input_tokens == len(model.engine.calls[-1].prompt)


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_where_only_one_is_wanted(model: Model, stream: bool) -> None:
    model.says(CALL + CALL)
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert [block.type for block in message(model, stream, tools=[WEATHER], tool_choice=choice).content] == ["tool_use"]
    # The engine does not go on with what nobody reads.
    assert model.engine.calls[-1].outputs < len(model.engine.reply)
    output = response(model, stream, tools=[FUNCTION], parallel_tool_calls=False).output
    assert [item.type for item in output] == ["function_call"]
    assert model.engine.calls[-1].outputs < len(model.engine.reply)
    assert [block.type for block in message(model, stream, tools=[WEATHER]).content] == ["tool_use"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_must_not_be_called(model: Model, stream: bool) -> None:
    model.says(CALL)
    (block,) = message(model, stream, tools=[WEATHER], tool_choice={"type": "none"}).content
    assert block.text == CALL
    assert response(model, stream, tools=[FUNCTION], tool_choice="none").output_text == CALL


SPAWN: Any = {**FUNCTION, "name": "spawn"}
AGENTS: Any = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN, FUNCTION]}


@pytest.mark.parametrize("stream", [False, True])
def test_functions_in_namespaces(model: Model, stream: bool) -> None:
    tools = [FUNCTION, AGENTS]
    # A name that occurs twice is told apart by its namespace, to the model too.
    for known, told in (
        ("weather", {"name": "weather"}),
        ("spawn", {"name": "spawn", "namespace": "agents"}),
        ("agents__weather", {"name": "weather", "namespace": "agents"}),
    ):
        model.says(CALL.replace("weather", known))
        whole = response(model, stream, tools=tools)
        (call,) = whole.output
        assert {name: value for name in ("name", "namespace") if (value := getattr(call, name)) is not None} == told
        assert call.arguments == '{"city": "Köln"}'
        assert [tool.type for tool in whole.tools] == ["function", "namespace"]
        assert f'"name": "{known}"' in model.prompt()
        # What comes back in the history is what the model said.
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        model.says("So it rains.")
        sent: Any = [{"role": "user", "content": "hi"}, call.to_dict(), result]
        response(model, stream, tools=tools, input=sent)
        assert model.prompt().count(f'<tool_call>{{"name": "{known}"') == 1


def test_two_functions_with_one_name_are_refused(model: Model) -> None:
    for tools in ([SPAWN, SPAWN], [{**AGENTS, "tools": [SPAWN, SPAWN]}]):
        with pytest.raises(BadRequestError, match="two tools are called '(agents__)?spawn'"):
            response(model, False, tools=tools)


def test_tools_of_a_hosted_api_are_left_out_and_told(model: Model) -> None:
    model.says("No calls.")
    hosted: Any = {"type": "web_search", "external_web_access": True}
    answer = model.openai.responses.with_raw_response.create(model="scripted", input="hi", tools=[hosted, FUNCTION])
    assert answer.headers["x-penstock-ignored"] == "tools[].web_search"
    assert "web_search" not in model.prompt() and "weather" in model.prompt()
    assert [tool.name for tool in answer.parse().tools] == ["weather"]
    # It must be called, and cannot be.
    for choice in ({"type": "web_search"}, "required"):
        with pytest.raises(BadRequestError, match="tool_choice"):
            response(model, False, tools=[hosted], tool_choice=choice)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("name", {"name": "a b"}), ("parameters.type", {"parameters": {"type": "array"}}), ("more", {"more": 1})],
)
def test_errors_name_the_place_that_the_client_gave_a_tool(model: Model, field: str, wrong: Any) -> None:
    hosted: Any = {"type": "web_search"}
    inner: Any = {**AGENTS, "tools": [SPAWN, {**FUNCTION, **wrong}]}
    for tools, place in (
        ([hosted, FUNCTION, {**SPAWN, **wrong}], "tools[2]"),
        ([hosted, AGENTS, {**SPAWN, "name": "last", **wrong}], "tools[2]"),
        ([hosted, {**FUNCTION, "name": "first"}, inner], "tools[2].tools[1]"),
    ):
        for path in ("responses", "responses/input_tokens"):
            with pytest.raises(BadRequestError) as caught:
                model.openai.post(f"/{path}", body={"input": "hi", "tools": tools}, cast_to=object)
            assert caught.value.param == f"{place}.{field}" and f"{place}.{field}: " in caught.value.message
    odd: Any = {
        **FUNCTION,
        "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
    }
    told = model.openai.responses.with_raw_response.create(
        model="scripted", input="hi", tools=[hosted, odd], tool_choice="required"
    )
    assert told.headers["x-penstock-ignored"].split(", ")[1] == "tools[1].parameters.properties.a.uniqueItems"


def test_errors_name_no_message_that_the_client_did_not_send(model: Model) -> None:
    call = {"type": "tool_use", "id": "c", "name": "weather", "input": '{"city": "\\ud800"}'}
    turns: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}]
    turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]})
    for path, others in (("messages", {"max_tokens": 5}), ("messages/count_tokens", {})):
        with pytest.raises(AnthropicError, match="messages: .*half of a"):
            body = {"system": "Be kind.", "messages": turns, **others}
            model.anthropic.post(f"/v1/{path}", body=body, cast_to=object)


def test_many_calls_of_many_tools_are_found_by_name() -> None:
    """Each looked for among all, these would be a billion comparisons."""
    names = ToolNames([FunctionTool(f"f{number}") for number in range(60_000)])
    called = [f"f{number}" for number in reversed(range(60_000))]
    assert [names.known(None, name) for name in called] == called


def test_what_a_client_says_of_billing_is_not_for_the_model(model: Model) -> None:
    model.says("Hello.")
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1;"}
    asked = {**ASKED, "system": [billing, {"type": "text", "text": "Be kind."}]}
    answer = model.anthropic.messages.with_raw_response.create(**asked)
    assert answer.headers["x-penstock-ignored"] == "system[].x-anthropic-billing-header"
    prompt = model.prompt()
    assert "cc_version" not in prompt and "Be kind." in prompt
    message(model, False, system="Be kind.")
    assert model.prompt() == prompt
    # What stands behind it in the same block is kept, and other blocks keep their places.
    message(model, False, system=[{**billing, "text": f"{billing['text']}\nBe kind."}])
    assert model.prompt() == prompt
    message(model, False, system=[billing])
    alone = model.prompt()
    message(model, False)
    assert model.prompt() == alone
    with pytest.raises(AnthropicError, match=r"system\[1\]\.type"):
        message(model, False, system=[billing, {"type": "image"}])


def test_a_call_that_was_cut_off(model: Model) -> None:
    model.says('<tool_call>{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2')
    whole = message(model, False, tools=[WEATHER])
    assert whole.content[0].input == {"city": "Köln"}
    call = response(model, False, tools=[FUNCTION]).output[0]
    assert call.arguments == '{"city": "Köln", "days": [1, 2'


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_thinks_speaks_and_calls(model: Model, stream: bool) -> None:
    model.says(SAID)
    answer = response(model, stream, tools=[FUNCTION])
    reasoning, text, call = answer.output
    assert (reasoning.content[0].text, text.content[0].text) == ("Which city?", "I look.")
    assert (call.name, call.arguments) == ("weather", '{"city": "Köln"}')
    assert answer.tools[0].name == "weather" and answer.usage.output_tokens_details.reasoning_tokens > 5
    # Everything goes back as it came, with the tool's result.
    items: Any = [{"role": "user", "content": "hi"}, *answer.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    model.says("So it rains.")
    assert model.openai.responses.create(model="scripted", input=items, tools=[FUNCTION]).output_text == "So it rains."
    assert model.prompt().endswith(
        "<|im_start|>assistant: <think>Which city?</think>I look."
        '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call><|im_end|>'
        "<|im_start|>tool: rain<|im_end|><|im_start|>assistant: "
    )


def test_calls_that_must_come_are_enforced(model: Model) -> None:
    model.says(CALL)
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        assert message(model, False, tools=[WEATHER], tool_choice=choice).stop_reason == "tool_use"
        assert model.engine.calls[-1].params.grammar is not None
    for chosen in ("required", {"type": "function", "name": "weather"}):
        assert response(model, False, tools=[FUNCTION], tool_choice=chosen).output[0].name == "weather"
        assert model.engine.calls[-1].params.grammar is not None


def test_what_of_a_schema_is_not_enforced_is_told_in_each_dialects_terms(model: Model) -> None:
    odd: Any = {"type": "object", "properties": {"cities": {"type": "array", "uniqueItems": True}}}
    path = "properties.cities.uniqueItems"
    model.says(CALL)
    asked: Any = {"tools": [{**WEATHER, "input_schema": odd}], "tool_choice": {"type": "any"}}
    told = model.anthropic.messages.with_raw_response.create(**ASKED, **asked).headers
    assert told["x-penstock-ignored"] == f"tools[0].input_schema.{path}"
    asked = {"tools": [{**FUNCTION, "parameters": odd}], "tool_choice": "required"}
    told = model.openai.responses.with_raw_response.create(model="scripted", input="hi", **asked).headers
    assert told["x-penstock-ignored"] == f"tools[0].parameters.{path}"
    text: Any = {"format": {"type": "json_schema", "name": "a", "schema": odd}}
    told = model.openai.responses.with_raw_response.create(model="scripted", input="hi", text=text).headers
    assert told["x-penstock-ignored"] == f"text.format.schema.{path}"
    # Nothing is promised of calls that may be made, and nothing told.
    told = model.openai.responses.with_raw_response.create(model="scripted", input="hi", tools=asked["tools"]).headers
    assert "x-penstock-ignored" not in told
    # Where it is strict, it is refused in the same terms.
    with pytest.raises(BadRequestError, match="of the tool 'weather', the keyword 'uniqueItems'") as caught:
        response(model, False, tools=[{**FUNCTION, "parameters": odd, "strict": True}])
    assert caught.value.param == "tools[0].parameters"


def test_thinking_is_switched_off_where_the_template_knows_how(model: Model) -> None:
    model.says("No thoughts.")
    answer = message(model, False, thinking={"type": "disabled"})
    assert answer.content[0].text == "No thoughts." and model.prompt().endswith("<think></think>")
    counted = model.anthropic.messages.count_tokens(
        model="scripted", messages=ASKED["messages"], thinking={"type": "disabled"}
    )
    assert counted.input_tokens == len(model.engine.calls[-1].prompt)


def test_tools_count_as_tokens(model: Model) -> None:
    messages = ASKED["messages"]
    without, with_tools = (
        model.anthropic.post("/tokenize", body={"messages": messages, **fields}, cast_to=dict[str, Any])["count"]
        for fields in ({}, {"tools": [{"type": "function", "function": {"name": "weather"}}]})
    )
    assert with_tools > without
