"""Every dialect, streamed or whole, says the same of one answer."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from penstock.api.anthropic.tool_input import whole_members
from penstock.server.app import create_app
from penstock.storage.store import Store
from penstock.text.chat_template import ChatTemplate
from penstock.text.output_format import Parsing
from penstock.text.tokenizer import Tokenizer
from support import told
from support.http_server import running
from support.pieces import parsed
from support.replaying_engine import SEED, ReplayingEngine
from support.speaking_model import CALL, TEMPLATE
from support.stored_server import StoredServer, line
from support.waiting import PATIENCE

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}
HI = [{"role": "user", "content": "hi"}]
# What answers are made of: reasoning, calls, and what is nearly such, in characters of one byte and of several.
TEXTS = ["<think>", "</think>", "Hm. ", "\n\n", "Hello", "wörld", " 👩‍🚀", "lo", "<", "</", "{"]
CALLS = [
    *(CALL, f"{CALL}\n", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'),
    *(
        '<tool_call>{"name": "weather", "argu',
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome", "days": 12',
    ),
]
BEGINNINGS = [[], ["<think>"], ["<think>", "Hm. ", "</think>", "\n\n"], ["<think>", "\n", "Hm. ", "\n", "</think>"]]
STOPS = ["lo", "wör", "🚀", "</", "Hm. \n", "}", "Rome"]


@dataclass(frozen=True)
class Asked:
    """A request, as far as dialects have the same fields.

    Attributes:
        tools: None, or whether several may be called.
    """

    max_tokens: int
    stop: list[str]
    tools: bool | None

    def chat(self) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": HI, "max_tokens": self.max_tokens, "stop": self.stop}
        if self.tools is not None:
            body |= {"tools": [{"type": "function", "function": TOOL}], "parallel_tool_calls": self.tools}
        return body

    def response(self) -> dict[str, Any]:
        body: dict[str, Any] = {"input": "hi", "max_output_tokens": self.max_tokens, "stop": self.stop}
        if self.tools is not None:
            body |= {"tools": [{"type": "function", **TOOL}], "parallel_tool_calls": self.tools}
        return body

    def message(self) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": HI, "max_tokens": self.max_tokens, "stop_sequences": self.stop}
        if self.tools is not None:
            choice = {"type": "auto", "disable_parallel_tool_use": not self.tools}
            tool = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
            body |= {"tools": [tool], "tool_choice": choice}
        return body


@dataclass
class Model:
    """A server whose model says what a test wants, in lumps of any size."""

    http: httpx.Client
    engine: ReplayingEngine
    tokenizer: Tokenizer
    stored: StoredServer
    _bytes: dict[bytes, int] = field(default_factory=dict)

    def tokens(self, parts: Sequence[str], spelled: Sequence[bool]) -> list[int]:
        """Token ids of a text; parts that are spelled have one for each byte."""
        if not self._bytes:
            pieces = self.tokenizer.table.pieces
            self._bytes = {piece: token for token, piece in enumerate(pieces) if len(piece) == 1}
        ids: list[int] = []
        for part, by_byte in zip(parts, spelled, strict=False):
            if by_byte:
                ids += [self._bytes[bytes([byte])] for byte in part.encode()]
            else:
                ids += self.tokenizer.encode(part, False)
        return ids

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def streamed(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.http.post(path, json=body | {"stream": True})
        assert answer.status_code == 200, answer.text
        return told.data_of(answer.text)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    eos = tokenizer.eos_token_id
    assert eos is not None
    engine = ReplayingEngine(tokenizer.table, eos, max_model_len=4096)
    folder = tmp_path_factory.mktemp("data")
    store = Store.open(folder)
    app = create_app(engine, tokenizer, template=ChatTemplate(TEMPLATE), store=store)
    with contextlib.closing(store), running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        yield Model(http, engine, tokenizer, StoredServer(url, http, engine, store, folder))


answers = st.builds(
    lambda beginning, parts: [*beginning, *parts],
    st.sampled_from(BEGINNINGS),
    st.lists(st.one_of(st.sampled_from(TEXTS), st.sampled_from(CALLS)), max_size=6),
)
spelling = st.lists(st.booleans(), min_size=16, max_size=16)
lumps = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3)
requests = st.builds(
    Asked,
    max_tokens=st.one_of(st.just(400), st.just(400), st.integers(1, 60)),
    stop=st.one_of(st.just([]), st.lists(st.sampled_from(STOPS), max_size=2, unique=True)),
    tools=st.sampled_from([True, False, None]),
)
EXAMPLES = settings(max_examples=40)


@EXAMPLES
@given(data=st.data(), asked=requests, parts=answers, spelled=spelling)
def test_dialects_agree(model: Model, data: st.DataObject, asked: Asked, parts: list[str], spelled: list[bool]) -> None:
    model.engine.said = [model.tokens(parts, spelled)]

    def both(path: str, body: dict[str, Any], whole: Any, streamed: Any) -> dict[str, Any]:
        model.engine.lumps = data.draw(lumps)
        first = whole(model.whole(path, body))
        model.engine.lumps = data.draw(lumps)
        second = streamed(model.streamed(path, body | USAGE.get(path, {})))
        assert first == second, path
        return dict(first)

    chat = both("/v1/chat/completions", asked.chat() | TOLD, told.chat, told.streamed_chat)
    (choice,), usage = chat["choices"], chat["usage"]
    event(f"{choice['finish_reason']}, {len(choice['calls'])} calls")
    said = {"content": choice["content"] or "", "reasoning": choice["reasoning"], "calls": choice["calls"]}
    reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    assert bool(reasoning_tokens) >= bool(choice["reasoning"])
    assert len(choice["token_ids"]) == len(choice["logprobs"] or []) == usage["completion_tokens"]

    response = both("/v1/responses", asked.response(), told.response, told.streamed_response)
    assert {name: response[name] for name in said} == said
    length = choice["finish_reason"] == "length"
    assert response["status"] == ("incomplete" if length else "completed")
    assert (response["model"], response["seed"]) == (chat["model"], chat["seed"]) == ("scripted", SEED)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert response["usage"] == {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }

    message = both("/v1/messages", asked.message(), told.message, told.streamed_message)
    calls = [(name, whole_members(arguments)) for name, arguments in said["calls"]]
    assert {name: message[name] for name in said} == said | {"calls": calls}
    assert (message["stop_reason"], message["stop_sequence"]) == _stop_of(choice)
    assert message["model"] == chat["model"]
    counted = message["usage"]
    assert counted["input_tokens"] + counted["cache_read_input_tokens"] == usage["prompt_tokens"]
    assert (counted["cache_read_input_tokens"], counted["output_tokens"]) == (cached, usage["completion_tokens"])
    assert counted["output_tokens_details"] == {"thinking_tokens": reasoning_tokens}

    prompt = {"prompt": chat["prompt_token_ids"], "max_tokens": asked.max_tokens, "stop": asked.stop}
    plain = both("/v1/completions", prompt | TOLD | {"logprobs": 1}, told.completion, told.streamed_completion)
    if asked.tools is not False:
        # Nothing is cut from it, so that it has the text which the others are cut from.
        _is_uncut(plain, chat, asked.tools is not None)


TOLD = {"return_token_ids": True, "logprobs": True}
_STREAM_USAGE = {"stream_options": {"include_usage": True}}
USAGE = {"/v1/chat/completions": _STREAM_USAGE, "/v1/completions": _STREAM_USAGE}


def _stop_of(choice: dict[str, Any]) -> tuple[str, str | None]:
    """How a message ends where a chat's choice does so."""
    stop = choice["stop_reason"]
    match choice["finish_reason"]:
        case "length":
            return "max_tokens", None
        case "tool_calls":
            return "tool_use", stop
        case _:
            return ("end_turn" if stop is None else "stop_sequence"), stop


def _is_uncut(plain: dict[str, Any], chat: dict[str, Any], tools: bool) -> None:
    """A completion has the same tokens, and its text is what the chat's message was cut from."""
    (text,), (choice,) = plain["choices"], chat["choices"]
    pieces = parsed(Parsing(calls="hermes" if tools else None, reasoning=True).parser(), [text["text"]])
    assert pieces == {"content": choice["content"] or "", "reasoning": choice["reasoning"], "calls": choice["calls"]}
    assert text["token_ids"] == choice["token_ids"] and text["prompt_token_ids"] == chat["prompt_token_ids"]
    assert (text["stop_reason"], text["seed"]) == (choice["stop_reason"], choice["seed"])
    assert text["finish_reason"] == {"tool_calls": "stop"}.get(choice["finish_reason"], choice["finish_reason"])
    nothing = {"reasoning_tokens": 0}
    assert plain["usage"] == chat["usage"] | {"completion_tokens_details": nothing}
    logprobs = text["logprobs"]
    assert logprobs["token_logprobs"] == [entry["logprob"] for entry in choice["logprobs"]]
    for token, logprob, tops in zip(*(logprobs[name] for name in told.COLUMNS[:3]), strict=True):
        assert tops[token] == logprob and len(tops) in (1, 2)


@EXAMPLES
@given(
    data=st.data(),
    asked=requests,
    said=st.lists(answers, min_size=1, max_size=3),
    spelled=spelling,
    n=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {},
        optional={
            "include_stop_str_in_output": st.just(True),
            "return_token_ids": st.just(True),
            "top_logprobs": st.integers(0, 2),
            "include_reasoning": st.just(False),
            "min_tokens": st.integers(0, 1),
            "service_tier": st.sampled_from(["auto", "flex"]),
        },
    ),
    stream=st.fixed_dictionaries(
        {"include_usage": st.just(True)},
        optional={"continuous_usage_stats": st.just(True), "include_obfuscation": st.just(True)},
    ),
)
def test_choices_are_the_same_streamed_and_whole(
    model: Model,
    data: st.DataObject,
    asked: Asked,
    said: list[list[str]],
    spelled: list[bool],
    n: int,
    options: dict[str, Any],
    stream: dict[str, Any],
) -> None:
    model.engine.said = [model.tokens(parts, spelled) for parts in said]
    body = asked.chat() | options | {"n": n}
    if "top_logprobs" in options:
        body["logprobs"] = True
    for path, whole, streamed in (
        ("/v1/chat/completions", told.chat, told.streamed_chat),
        ("/v1/completions", told.completion, told.streamed_completion),
    ):
        if path == "/v1/completions":
            body = {name: value for name, value in body.items() if name in COMPLETED} | data.draw(completions)
            body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
        model.engine.lumps = data.draw(lumps)
        first = whole(model.whole(path, body))
        model.engine.lumps = data.draw(lumps)
        events = model.streamed(path, body | {"stream_options": stream})
        counts = [_counts(each["usage"]) for each in events if each.get("usage") is not None]
        assert counts == sorted(counts) and (len(counts) == 1 or "continuous_usage_stats" in stream)
        assert all(each.get("obfuscation") for each in events[:-1]) is ("include_obfuscation" in stream)
        assert first == streamed(events)


COMPLETED = ("max_tokens", "stop", "n", "include_stop_str_in_output", "return_token_ids", "min_tokens", "service_tier")
_PROMPTS = st.sampled_from(["the fox", ["the", "quick fox"], [5, 6, 7]])
completions = st.one_of(
    st.fixed_dictionaries({"prompt": _PROMPTS}, optional={"echo": st.just(True), "logprobs": st.integers(0, 2)}),
    st.fixed_dictionaries(
        {"prompt": _PROMPTS, "echo": st.just(True), "logprobs": st.integers(0, 2), "max_tokens": st.just(0)}
    ),
)


def _counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize(
    ("stop", "finish", "stop_reason", "status"),
    [("öln", "stop", "stop_sequence", "incomplete"), ("much", "tool_calls", "tool_use", "completed")],
)
def test_calls_end_an_answer_only_where_they_are_whole(
    model: Model, stop: str, finish: str, stop_reason: str, status: str
) -> None:
    """What a stop string has cut is not to be run."""
    model.engine.said = [model.tokens([CALL, " So much."], [False, False])]
    model.engine.lumps = [(1, 1)]
    asked = Asked(400, [stop], tools=True)
    (choice,) = told.chat(model.whole("/v1/chat/completions", asked.chat()))["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish, stop)
    message = told.message(model.whole("/v1/messages", asked.message()))
    assert (message["stop_reason"], message["stop_sequence"]) == (stop_reason, stop)
    response = told.response(model.whole("/v1/responses", asked.response()))
    assert (response["status"], response["statuses"][0]) == ("completed", status)


def test_lines_of_a_batch_say_the_same(model: Model) -> None:
    model.engine.said = [model.tokens(["<think>", "Hm. ", "</think>", "Hello", CALL, "wörld"], [False, True] * 3)]
    model.engine.lumps = [(2, 1), (1, 3)]
    asked = [
        Asked(max_tokens, stop, tools)
        for max_tokens, stop in ((400, []), (9, []), (400, ["wör"]))
        for tools in (None, True, False)
    ]
    for path, read, bodies in (
        ("/v1/chat/completions", told.chat, [each.chat() | TOLD for each in asked]),
        ("/v1/completions", told.completion, [PROMPT | {"stop": each.stop} for each in asked[::3]]),
    ):
        lines = b"".join(line(str(number), path, **body) for number, body in enumerate(bodies))
        # The helper's own field is one of completions.
        lines = lines if "prompt" in bodies[0] else lines.replace(b'"prompt": [5], ', b"")
        done = model.stored.wait(model.stored.create(model.stored.upload(lines)["id"], endpoint=path)["id"])
        found = {each["custom_id"]: each["response"]["body"] for each in model.stored.lines(done["output_file_id"])}
        assert len(found) == len(bodies)
        for number, body in enumerate(bodies):
            assert read(found[str(number)]) == read(model.whole(path, body))


PROMPT: dict[str, Any] = {"prompt": "the fox", "echo": True, "max_tokens": 12, "n": 2} | TOLD | {"logprobs": 1}
