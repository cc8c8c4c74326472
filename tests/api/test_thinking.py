"""Budgets of reasoning in chats, and `thinking` of Anthropic's messages."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from penstock.core.sampling import ReasoningBudget, SamplingParams
from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.sse import events
from support.tokenizers_made import make_raw, save

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATES = {
    # As it is told, and otherwise as it likes.
    "hybrid": PLAIN
    + "assistant: {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
    "always": PLAIN + "assistant: <think>\n",
    "never": PLAIN,
}
HI = [{"role": "user", "content": "hi"}]


class Served:
    """A server whose model thinks before it answers."""

    def __init__(self, url: str, http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
        self.url, self.http, self.engine, self.tokenizer = url, http, engine, tokenizer
        self.closing = tuple(tokenizer.encode("\n</think>\n\n", False))

    def chat(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": HI, **fields})

    def message(self, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
        return self.http.post(path, json={"messages": HI, "max_tokens": 2000, **fields})

    @property
    def prompt_opens(self) -> bool:
        """Whether the prompt opens the block of reasoning."""
        self.chat()
        return self.prompt.rstrip().endswith("<think>")

    @property
    def params(self) -> SamplingParams:
        return self.engine.calls[-1].params

    @property
    def prompt(self) -> str:
        return self.tokenizer.decode(self.engine.calls[-1].prompt, skip_special=False)


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    tokenizer = load_tokenizer(save(make_raw("byte_level"), tmp_path_factory.mktemp("tokenizer")))
    with contextlib.ExitStack() as stack:
        found = {}
        for name, source in TEMPLATES.items():
            engine = ScriptedEngine(tokenizer.table, [5], max_model_len=4096)
            url = stack.enter_context(running(create_app(engine, tokenizer, template=ChatTemplate(source))))
            found[name] = Served(url, stack.enter_context(described_client(url)), engine, tokenizer)
        yield found


@pytest.fixture
def served(_served: dict[str, Served], request: pytest.FixtureRequest) -> Served:
    chosen = _served[getattr(request, "param", "hybrid")]
    chosen.engine.calls.clear()
    chosen.engine.reply = chosen.tokenizer.encode("<think>\nHm.\n</think>\n\nHello", False)
    return chosen


def with_template(*names: str) -> Any:
    return pytest.mark.parametrize("served", names, indirect=True)


ENABLED = {"type": "enabled", "budget_tokens": 1024}


def test_budgets_reach_the_engine(served: Served) -> None:
    assert served.chat(thinking_token_budget=7).status_code == 200
    assert served.params.reasoning_budget == ReasoningBudget(tokens=7, closing=served.closing)
    assert served.chat(thinking_token_budget=0, response_format={"type": "json_object"}).status_code == 200
    assert served.params.reasoning_budget == ReasoningBudget(tokens=0, closing=served.closing)
    assert served.message(thinking=ENABLED).status_code == 200
    assert served.params.reasoning_budget == ReasoningBudget(tokens=1024, closing=served.closing)
    for thinking in (None, {"type": "adaptive"}, {"type": "disabled"}):
        assert served.message(thinking=thinking).status_code == 200
        assert served.params.reasoning_budget is None
    # An answer that begins at once has nothing to end.
    off = {"enable_thinking": False}
    assert served.chat(thinking_token_budget=7, chat_template_kwargs=off, guided_regex="a").status_code == 200
    assert served.params.reasoning_budget is None


@with_template("always")
def test_a_budget_of_reasoning_that_the_prompt_has_begun(served: Served) -> None:
    assert served.message(thinking=ENABLED).status_code == 200
    assert served.params.reasoning_budget == ReasoningBudget(tokens=1024, closing=served.closing, opened=True)


def test_the_template_is_told(served: Served) -> None:
    for thinking, closed in (
        (None, False),
        (ENABLED, False),
        ({"type": "adaptive"}, False),
        ({"type": "disabled"}, True),
    ):
        assert served.message(thinking=thinking).status_code == 200
        assert served.prompt.endswith("assistant: <think></think>" if closed else "assistant: ")
        assert served.message("/v1/messages/count_tokens", thinking=thinking, max_tokens=1).status_code == 400
        counted = served.http.post("/v1/messages/count_tokens", json={"messages": HI, "thinking": thinking})
        assert counted.json() == {"input_tokens": len(served.engine.calls[-1].prompt)}


@pytest.mark.parametrize("thinking", [ENABLED, {"type": "adaptive"}])
def test_thinking_blocks(served: Served, thinking: dict[str, Any]) -> None:
    block, text = served.message(thinking=thinking).json()["content"]
    assert block == {"type": "thinking", "thinking": "Hm.", "signature": ""} and text["text"] == "Hello"
    streamed = [
        event for event in named_events(served.message(thinking=thinking, stream=True).text) if "index" in event
    ]
    first = [event for event in streamed if event["index"] == 0]
    assert first[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert "".join(event["delta"]["thinking"] for event in first[1:-2]) == "Hm."
    assert first[-2]["delta"] == {"type": "signature_delta", "signature": ""}
    assert first[-1]["type"] == "content_block_stop"
    assert not any(event.get("delta", {}).get("type") == "signature_delta" for event in streamed if event["index"])


def test_the_official_client_gets_thinking_and_sends_it_back(served: Served) -> None:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        messages: Any = list(HI)
        enabled: Any = ENABLED
        with client.messages.stream(model="scripted", max_tokens=2000, messages=messages, thinking=enabled) as stream:
            final = stream.get_final_message()
        thought, text = final.content
        assert thought.type == "thinking" and thought.thinking == "Hm." and text.type == "text"
        messages += [{"role": "assistant", "content": final.content}, HI[0]]
        client.messages.create(model="scripted", max_tokens=2000, messages=messages, thinking=enabled)
        assert "assistant: Hello\nuser: hi" in served.prompt


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of a stream's events."""
    return [json.loads(part.partition("data: ")[2]) for part in text.split("\n\n")[:-1]]


def refused(served: Served, answer: httpx.Response) -> str:
    assert answer.status_code == 400 and not served.engine.calls, answer.text
    message: str = answer.json()["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("thinking", "words"),
    [
        ({"type": "enabled"}, "thinking.budget_tokens: is missing"),
        ({"type": "enabled", "budget_tokens": 1023}, "thinking.budget_tokens: 1023 is below 1024"),
        ({"type": "enabled", "budget_tokens": 2000}, "thinking.budget_tokens: 2000 must be less than max_tokens"),
        ({"type": "enabled", "budget_tokens": "x"}, "thinking.budget_tokens"),
        ({"type": "adaptive", "budget_tokens": 2000}, "thinking.budget_tokens"),
        ({"type": "deep"}, "thinking.type"),
        ("enabled", "thinking"),
    ],
)
def test_what_cannot_be_is_refused(served: Served, thinking: Any, words: str) -> None:
    assert refused(served, served.message(thinking=thinking)).startswith(words)


def test_an_answer_that_is_continued_has_no_thinking(served: Served) -> None:
    begun = [*HI, {"role": "assistant", "content": "So"}]
    assert refused(served, served.message(messages=begun, thinking=ENABLED)).startswith("thinking: cannot be combined")
    assert served.message(messages=begun, thinking={"type": "disabled"}).status_code == 200


@with_template("never")
def test_a_model_that_does_not_reason_is_not_asked_to_and_the_client_is_told(served: Served) -> None:
    for thinking in (ENABLED, {"type": "adaptive", "display": "omitted"}):
        for path, others in (("/v1/messages", {"max_tokens": 20}), ("/v1/messages/count_tokens", {})):
            answer = served.http.post(path, json={"messages": HI, "thinking": thinking, **others})
            assert answer.status_code == 200
            told = answer.headers["x-penstock-ignored"].split(", ")
            assert told == (["thinking"] if thinking is ENABLED else ["thinking.display", "thinking"])
    assert served.params.reasoning_budget is None
    served.engine.calls.clear()
    assert "thinking_token_budget" in refused(served, served.chat(thinking_token_budget=7))
    assert served.message(thinking={"type": "disabled"}).status_code == 200


@pytest.mark.parametrize(
    ("served", "effort", "told"),
    [
        ("hybrid", None, None),
        ("hybrid", "none", None),
        ("hybrid", "high", "output_config.effort"),
        ("always", None, "thinking"),
        ("always", "high", "output_config.effort, thinking"),
        ("never", None, None),
    ],
    indirect=["served"],
)
def test_thinking_that_cannot_be_switched_off_is_told(served: Served, effort: str | None, told: str | None) -> None:
    asked: dict[str, Any] = {"thinking": {"type": "disabled"}, "output_config": {"effort": effort}}
    assert served.message(**asked).headers.get("x-penstock-ignored") == told
    counted = served.http.post("/v1/messages/count_tokens", json={"messages": HI, **asked})
    assert counted.headers.get("x-penstock-ignored") == told


def test_budgets_of_chats_are_checked(served: Served) -> None:
    for value in (-1, 2**31, "x"):
        assert refused(served, served.chat(thinking_token_budget=value)).startswith("thinking_token_budget")


DEEP = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize("shown", [True, False])
@with_template("hybrid", "always")
def test_usage_says_how_many_tokens_are_reasoning(served: Served, shown: bool) -> None:
    opening = [] if served.prompt_opens else served.tokenizer.encode("<think>", False)
    thought, answer = served.tokenizer.encode("\nHm, well.\n", False), served.tokenizer.encode("\n\nHello", False)
    served.engine.reply = [*opening, *thought, *served.tokenizer.encode("</think>", False), *answer]
    fields = {} if shown else {"include_reasoning": False}
    whole = served.chat(**fields).json()
    assert ("reasoning_content" in whole["choices"][0]["message"]) is shown
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
    usages = [event["usage"] for event in events(served.chat(**DEEP, **fields).text)]
    assert usages[-1] == whole["usage"] == usages[-2]
    counts = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]
    assert counts == sorted(counts) and counts[-1] == len(thought)
    # Where reasoning is not told, no event comes meanwhile.
    assert not shown or len(set(counts)) > 3
    message = served.message().json()["usage"]
    assert message["output_tokens_details"] == {"thinking_tokens": len(thought)}
    response = served.http.post("/v1/responses", json={"input": "hi"}).json()["usage"]
    assert response["output_tokens_details"] == {"reasoning_tokens": len(thought)}


@with_template("never", "hybrid")
def test_no_token_is_reasoning_where_there_is_none(served: Served) -> None:
    served.engine.reply = served.tokenizer.encode("Hello", False)
    assert served.chat().json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    completion = served.http.post("/v1/completions", json={"prompt": "hi"}).json()
    assert completion["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
