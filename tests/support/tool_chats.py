"""Servers whose models write calls of tools as their templates say, and say what a test has them say."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

from penstock.core.grammar import Grammar
from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.sse import events
from support.tokenizers_made import make_raw, save

HERMES = (
    "{% if tools %}<|im_start|>tools: {% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}: "
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)
# It opens the block, or closes it; another of its variables says nothing in the prompt.
THINKS = (
    "{% if add_generation_prompt and think is defined %}<think>\n{% if not think %}\n</think>\n\n{% endif %}{% endif %}"
    "{% if enable_thinking is defined %}{% endif %}"
)
HARMONY = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "{% for c in m.tool_calls or [] %}<|channel|>commentary to=functions.{{ c.function.name }}<|message|>"
    "{{ c.function.arguments | tojson }}<|call|>{% endfor %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
TEMPLATES = {
    "harmony": HARMONY,
    "hermes": HERMES,
    "mistral": HERMES.replace("<tool_call>", "[TOOL_CALLS]"),
    "qwen3_coder": HERMES.replace("<tool_call>", "<tool_call><function="),
    "glm45": HERMES.replace("<tool_call>", "<tool_call><arg_key>"),
    "pythonic": HERMES.replace("<tool_call>", "[func_name1("),
    "gemma4": HERMES.replace("<tool_call>", "<|tool_call>"),
    "thinking": HERMES + THINKS,
    "no tools": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "unknown": "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}",
}


@dataclass
class Chat:
    """A server whose model writes what the test says."""

    url: str
    http: httpx.Client
    engine: ScriptedEngine
    tokenizer: Tokenizer

    def says(self, text: str) -> None:
        """Let the model answer so."""
        self.engine.reply = self.tokenizer.encode(text, False)

    def ask(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def message(self, **fields: Any) -> dict[str, Any]:
        """The first choice's message, whole, after comparison with the same in deltas."""
        answer = self.ask(**fields)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        streamed = self.streamed(**fields)
        assert streamed["finish_reason"] == choice["finish_reason"]
        message: dict[str, Any] = choice["message"]
        for call in message.get("tool_calls", []):
            assert call.pop("id")
        assert streamed["message"] == message
        return message | {"finish_reason": choice["finish_reason"]}

    def streamed(self, **fields: Any) -> dict[str, Any]:
        """The first choice of a stream, its deltas added up as clients do."""
        message: dict[str, Any] = {"content": None}
        finish = None
        for event in events(self.ask(stream=True, **fields).text):
            (choice,) = event["choices"]
            delta = choice["delta"]
            assert ("role" in delta) == ("role" not in message)
            message |= {"role": "assistant"}
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for call in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    assert call.pop("id") and call["type"] == "function" and call["function"]["arguments"] == ""
                    calls.append({"type": "function", "function": {"name": call["function"]["name"], "arguments": ""}})
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            assert finish is None
            finish = choice["finish_reason"]
        if message["content"] is None and set(message) == {"role", "content"}:
            message["content"] = ""
        return {"message": message, "finish_reason": finish}

    def prompt(self, index: int = -1) -> str:
        return self.tokenizer.decode(self.engine.calls[index].prompt, skip_special=False)


@pytest.fixture(scope="session")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with Mistral's marks among its special tokens."""
    raw: Any = make_raw("byte_level")
    raw.add_special_tokens([AddedToken(text, special=True) for text in ("[TOOL_CALLS]", "[ARGS]", "[INST]")])
    return load_tokenizer(save(raw, tmp_path_factory.mktemp("marked")))


@pytest.fixture(scope="session")
def chats(marked: Tokenizer) -> Iterator[dict[str, Chat]]:
    chats = {}
    with contextlib.ExitStack() as stack:
        for name, source in TEMPLATES.items():
            engine = ScriptedEngine(marked.table, [5], max_model_len=4096)
            url = stack.enter_context(running(create_app(engine, marked, template=ChatTemplate(source))))
            http = stack.enter_context(described_client(url))
            chats[name] = Chat(url, http, engine, marked)
        yield chats


@pytest.fixture
def chat(chats: dict[str, Chat], request: pytest.FixtureRequest) -> Chat:
    """The server of the template that the test names; Hermes' by default."""
    chosen = chats[getattr(request, "param", "hermes")]
    chosen.engine.calls.clear()
    chosen.engine.finish = "stop"
    return chosen


def with_template(name: str) -> Any:
    return pytest.mark.parametrize("chat", [name], indirect=True)


def tool(name: str = "get_weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [tool(description="The weather of a city.", parameters=CITY), tool("now")]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
WEATHER = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}
NOW = {"type": "function", "function": {"name": "now", "arguments": "{}"}}


def refused(chat: Chat, **fields: Any) -> tuple[str, str]:
    """The field that is at fault, and why."""
    answer = chat.ask(**fields)
    assert answer.status_code == 400, answer.text
    assert chat.engine.calls == []
    error = answer.json()["error"]
    assert error["message"].startswith(error["param"])
    return error["param"], error["message"]


def asked_grammar(chat: Chat, **fields: Any) -> Grammar | None:
    """What the engine is asked to hold the output to."""
    answer = chat.ask(**fields)
    assert answer.status_code == 200, answer.text
    return chat.engine.calls[-1].params.grammar


def grammar(chat: Chat, **fields: Any) -> str | None:
    """The grammar of calls that the engine is asked to hold the output to."""
    asked = asked_grammar(chat, **fields)
    assert asked is None or (asked.kind, asked.param) == ("lark", "tools")
    return None if asked is None else asked.text
