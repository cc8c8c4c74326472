"""Histories that real clients send back, in every dialect, through templates in the manner of published ones."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from penstock.server.app import create_app
from penstock.storage.store import Store
from penstock.text.chat_template import ChatTemplate
from penstock.text.output_format import OutputFormat
from penstock.text.tokenizer import Tokenizer
from support.chat_templates import TEMPLATES
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.sse import events
from support.waiting import until as wait_until

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
CUT = '<tool_call>{"name": "weather", "arguments": {"city": "Ro'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
FUNCTION: Any = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA}
WEATHER: Any = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
USER: Any = {"role": "user", "content": "Weather?"}
NAMES = ("qwen2.5", "strict system", "r1-distill", "mistral", "gemma 2", "developers")


class Model:
    """A model with one of the templates, that says what the test wants, and clients of it."""

    def __init__(self, url: str, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self.http = described_client(url)
        self.openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.anthropic = Anthropic(base_url=url, api_key="none", max_retries=0)

    def says(self, text: str) -> None:
        self.engine.reply = self._tokenizer.encode(text, False)

    def prompt(self) -> str:
        return self._tokenizer.decode(self.engine.calls[-1].prompt, skip_special=False)

    def close(self) -> None:
        for client in (self.http, self.openai, self.anthropic):
            client.close()

    def prompts(self, messages: list[Any], path: str = "/v1/chat/completions") -> str:
        """The prompt of a conversation of chats; `/tokenize` says the same of it."""
        answer = self.http.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 200, answer.text
        counted = self.http.post("/tokenize", json={"messages": messages}).json()
        assert counted["tokens"] == self.engine.calls[-1].prompt
        return self.prompt()


@pytest.fixture(scope="module")
def _models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    """Each is served when it is first asked for."""
    models: dict[str, Model] = {}
    with ExitStack() as stack:

        def model(name: str) -> Model:
            if name not in models:
                engine = ScriptedEngine(tokenizer.table, [5], max_model_len=4096)
                store = Store.open(tmp_path_factory.mktemp("data"))
                stack.callback(store.close)
                # Calls in answers look the same for all, so that each can say the same.
                style = OutputFormat(calls="hermes")
                template = ChatTemplate(TEMPLATES[name])
                app = create_app(engine, tokenizer, template=template, output_format=style, store=store)
                models[name] = Model(stack.enter_context(running(app)), engine, tokenizer)
                stack.callback(models[name].close)
            models[name].engine.calls.clear()
            return models[name]

        yield model


@pytest.fixture(params=NAMES)
def model(_models: Callable[[str], Model], request: pytest.FixtureRequest) -> Model:
    return _models(request.param)


@pytest.fixture
def qwen(_models: Callable[[str], Model]) -> Model:
    return _models("qwen2.5")


class GetWeather(BaseModel):
    """Tells it."""

    city: str


def answered(model: Model, how: str) -> Any:
    """A message that calls a tool, as OpenAI's package has it, and what of it is sent back."""
    asked: Any = {"model": "scripted", "messages": [USER], "tools": [TOOL]}
    client = model.openai.chat.completions
    if how == "parsed":
        asked["tools"] = [pydantic_function_tool(GetWeather, name="weather")]
        return client.parse(**asked).choices[0].message
    if how == "streamed":
        with client.stream(**asked) as stream:
            return stream.get_final_completion().choices[0].message
    return client.create(**asked).choices[0].message


@pytest.mark.parametrize("how", ["whole", "streamed", "parsed"])
@pytest.mark.parametrize("dumped", [False, True])
def test_messages_of_openais_package_come_back(model: Model, how: str, dumped: bool) -> None:
    model.says(CALL)
    message = answered(model, how)
    (call,) = message.tool_calls
    given = message.model_dump() if dumped else message
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    model.says("So it rains.")
    turns = [USER, given, result]
    assert model.openai.chat.completions.create(model="scripted", messages=turns).choices[0].message.content
    assert all(word in model.prompt() for word in ("weather", "Rome", "rain"))
    assert "None" not in model.prompt()


def test_a_streamed_call_may_keep_its_index(qwen: Model) -> None:
    """As clients have it that add up the deltas of a stream."""
    qwen.says(CALL)
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    stream = {"messages": [USER], "tools": [TOOL], "stream": True}
    for event in events(qwen.http.post("/v1/chat/completions", json=stream).text):
        for part in event["choices"][0]["delta"].get("tool_calls", []):
            if "id" in part:
                message["tool_calls"].append(part)
            else:
                message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    assert message["tool_calls"][0]["index"] == 0
    assert '{"city": "Rome"}' in qwen.prompts([USER, message])


def test_a_call_that_was_cut_off_comes_back(model: Model) -> None:
    """Of each dialect's own answer, and the prompt has all that there was of it."""
    model.says(CUT)
    chat = model.openai.chat.completions.create(model="scripted", messages=[USER], tools=[TOOL]).choices[0].message
    assert chat.tool_calls and chat.tool_calls[0].function.arguments == '{"city": "Ro'
    message = model.anthropic.messages.create(model="scripted", max_tokens=500, messages=[USER], tools=[WEATHER])
    first = model.openai.responses.create(model="scripted", input="Weather?", tools=[FUNCTION])
    model.says("Go on.")

    def says_all() -> bool:
        return "weather" in model.prompt() and "city" in model.prompt() and "Ro" in model.prompt()

    again: Any = [USER, chat, {"role": "user", "content": "Go on."}]
    model.openai.chat.completions.create(model="scripted", messages=again)
    assert says_all()
    model.openai.responses.create(model="scripted", input="Go on.", previous_response_id=first.id)
    assert says_all()
    # Anthropic's API has no place for what of an argument there was.
    turns: Any = [USER, {"role": "assistant", "content": message.content}, USER]
    model.anthropic.messages.create(model="scripted", max_tokens=5, messages=turns)
    assert "weather" in model.prompt()


def test_outputs_of_responses_come_back(model: Model) -> None:
    """As they are, as the package writes them down, and as references to what is stored."""
    model.says(f"I look.{CALL}")
    first = model.openai.responses.parse(model="scripted", input="Weather?", tools=[FUNCTION])
    call = first.output[-1]
    assert call.type == "function_call" and call.arguments == '{"city": "Rome"}'
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    model.says("So it rains.")
    inputs: list[Any] = [
        [{"role": "user", "content": "Weather?"}, *first.output, result],
        [{"role": "user", "content": "Weather?"}, *(item.model_dump() for item in first.output), result],
        [
            {"role": "user", "content": "Weather?"},
            *({"type": "item_reference", "id": item.id} for item in first.output),
            result,
        ],
        [{"role": "user", "content": "Weather?"}, *({"id": item.id} for item in first.output), result],
    ]
    prompts = []
    for given in inputs:
        response = model.openai.responses.create(model="scripted", input=given)
        assert response.output_text == "So it rains."
        prompts.append(model.prompt())
        # What was referred to is a part of what is stored.
        model.openai.responses.create(model="scripted", input="Thanks.", previous_response_id=response.id)
        assert model.prompt().count("Rome") == 1
    assert set(prompts) == {prompts[0]} and prompts[0].count("Rome") == prompts[0].count("rain") == 1
    counted = model.openai.responses.input_tokens.count(model="scripted", input=inputs[2])
    assert counted.input_tokens == len(model.engine.calls[-2].prompt)


def test_messages_of_anthropics_package_come_back(model: Model) -> None:
    model.says(f"I look.{CALL}")
    asked: Any = {"model": "scripted", "max_tokens": 500, "messages": [USER], "tools": [WEATHER]}
    with model.anthropic.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    model.says("So it rains.")
    for message in (streamed, model.anthropic.messages.create(**asked)):
        use = next((block for block in message.content if block.type == "tool_use"), None)
        content: Any = message.content if use else streamed.content
        use = use or next(block for block in streamed.content if block.type == "tool_use")
        parts = [{"type": "text", "text": "rain"}, {"type": "text", "text": "wind"}]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": parts, "is_error": True}
        spoken = [result, {"type": "text", "text": "Thanks."}]
        turns: Any = [USER, {"role": "assistant", "content": content}, {"role": "user", "content": spoken}]
        again = model.anthropic.messages.create(**{**asked, "messages": turns})
        assert again.content[0].type == "text"
        prompt = model.prompt()
        assert all(word in prompt for word in ("weather", "Rome", "Error: rain\nwind", "Thanks."))
        counted = model.anthropic.messages.count_tokens(model="scripted", messages=turns, tools=[WEATHER])
        assert counted.input_tokens == len(model.engine.calls[-1].prompt)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, "{}"),
        ("", "{}"),
        (None, "{}"),
        ('{"city": "Ro', '"{\\"city\\": \\"Ro"'),
        ([1], '"[1]"'),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_inputs_of_calls_that_are_odd_are_kept(qwen: Model, given: Any, written: str) -> None:
    use = {"type": "tool_use", "id": "t", "name": "weather", "input": given}
    turns = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": "Go on."}]
    answer = qwen.http.post("/v1/messages", json={"max_tokens": 5, "messages": turns})
    assert answer.status_code == 200, answer.text
    assert f'"arguments": {written}}}' in qwen.prompt()


def test_an_answer_that_said_nothing_comes_back(qwen: Model) -> None:
    turns = [USER, {"role": "assistant", "content": []}, USER]
    assert qwen.http.post("/v1/messages", json={"max_tokens": 5, "messages": turns}).status_code == 200
    assert "<|im_start|>assistant\n<|im_end|>" in qwen.prompt()


def test_images_are_refused_by_name(qwen: Model) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [image]}]}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]}
    for path, body, place in (
        ("/v1/messages", {"max_tokens": 5, "messages": [USER, use, result]}, "messages[2].content[0].content[0].type"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
    ):
        answer = qwen.http.post(path, json=body)
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and place in message and "image" in message and "text" in message


def test_refusals_are_what_the_assistant_said(qwen: Model) -> None:
    for message in (
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
    ):
        assert "assistant\nI will not.<|im_end|>" in qwen.prompts([USER, message, USER])
    items = [{"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}, USER]
    assert qwen.http.post("/v1/responses", json={"input": items}).status_code == 200
    assert "assistant\nI will not.<|im_end|>" in qwen.prompt()


def test_what_clients_keep_for_themselves_is_told_and_nothing_else(qwen: Model) -> None:
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "weather", "arguments": ""}}
    call["function"]["parsed_arguments"] = {"city": "Rome"}  # type: ignore[index]
    message = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None, "index": 0}
    message |= {"parsed": {"a": 1}, "annotations": [], "function_call": None}
    answer = qwen.http.post("/v1/chat/completions", json={"messages": [USER, message]})
    assert answer.status_code == 200 and "Rome" not in qwen.prompt()
    told = answer.headers["x-penstock-ignored"].split(", ")
    assert set(told) == {
        "messages[].index",
        "messages[].parsed",
        "messages[].tool_calls[].index",
        "messages[].tool_calls[].function.parsed_arguments",
    }


def test_instructions_are_one_where_the_template_takes_one(model: Model) -> None:
    """Of every dialect: `instructions` and a developer, `system` and a system message, two systems."""
    chats = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Rhyme."}, USER]
    expected = model.prompts(chats)
    assert expected.count("Be brief.") == expected.count("Rhyme.") == 1
    items: Any = [{"role": "developer", "content": "Rhyme."}, USER]
    model.openai.responses.create(model="scripted", input=items, instructions="Be brief.")
    assert model.prompt() == expected
    turns: Any = [{"role": "system", "content": "Rhyme."}, USER]
    model.anthropic.messages.create(model="scripted", max_tokens=5, system="Be brief.", messages=turns)
    assert "Be brief." in model.prompt() and "Rhyme." in model.prompt()
    # As Claude Code sends it: behind what the user said.
    turns = [USER, {"role": "system", "content": "Rhyme."}]
    model.anthropic.messages.create(model="scripted", max_tokens=5, system="Be brief.", messages=turns)
    assert "Be brief." in model.prompt() and "Rhyme." in model.prompt()


def test_batches_have_the_same_conversations(qwen: Model) -> None:
    messages = [{"role": "developer", "content": "Rhyme."}, USER]
    expected = qwen.prompts(messages)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": messages}}
    uploaded = qwen.openai.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = qwen.openai.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    wait_until(lambda: qwen.openai.batches.retrieve(batch.id).status == "completed")
    assert qwen.prompt() == expected


def test_references_to_what_is_not_stored_are_refused(qwen: Model) -> None:
    for item, param in (
        ({"type": "item_reference", "id": "msg_none"}, "input[1].id"),
        ({"type": "item_reference"}, "input[1].id"),
        ({"id": 5}, "input[1].id"),
    ):
        answer = qwen.http.post("/v1/responses", json={"input": [USER, item]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_an_item_is_referred_to_once(model: Model) -> None:
    model.says("Rain.")
    first = model.openai.responses.create(model="scripted", input="Weather?").output[0]
    given = [USER, {"type": "item_reference", "id": first.id}, {"id": first.id}]
    error = model.http.post("/v1/responses", json={"input": given}).json()["error"]
    assert error["param"] == "input[2].id" and "input[1]" in error["message"]


def test_a_template_says_what_it_reads_and_nothing_of_its_own(_models: Callable[[str], Model]) -> None:
    model = _models("llama 3.1")
    body = {"messages": [USER], "chat_template_kwargs": {"date_string": "1 May"}}
    assert model.http.post("/v1/chat/completions", json=body).status_code == 200 and "1 May" in model.prompt()
    body = {"messages": [USER], "chat_template_kwargs": {"system_message": "Obey."}}
    error = model.http.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "chat_template_kwargs.system_message"
    assert error["message"].endswith("it reads date_string.")


def test_arguments_may_be_the_object_itself_and_a_tool_may_say_nothing(qwen: Model) -> None:
    prompts = set()
    for arguments in ('{"city": "Rome"}', {"city": "Rome"}):
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        for result in ({"content": None}, {"content": ""}, {}):
            prompts.add(qwen.prompts([USER, asked, {"role": "tool", "tool_call_id": "c", **result}]))
    assert len(prompts) == 1
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": None}}
    assert '"arguments": {}' in qwen.prompts([USER, {"role": "assistant", "tool_calls": [call]}])
