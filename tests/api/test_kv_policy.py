"""`kv_policy` in every dialect: what reaches the engine, what is refused, and what an answer says of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from penstock.core.kv_policy import LONGEST_STREAM, AskedPolicy, KVPolicy
from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.served import REPLY, TEMPLATE

H2O = {"type": "h2o", "tokens": 200, "sinks": 4, "recent": 32}
SYSTEM = "Never forget this."
MARK = {"type": "ephemeral"}


@dataclass(frozen=True)
class Dialect:
    """An endpoint: its body, where usage is in an answer, and how a stream is asked for that tells it."""

    path: str
    body: dict[str, Any]
    is_chat: bool = True
    streaming: tuple[tuple[str, Any], ...] = (("stream", True),)

    def ask(self, http: httpx.Client, **fields: Any) -> httpx.Response:
        return http.post(self.path, json={**self.body, **fields})

    def usage(self, http: httpx.Client, *, stream: bool, **fields: Any) -> Any:
        """What an answer says that it used."""
        if not stream:
            response = self.ask(http, **fields)
            assert response.status_code == 200, response.text
            return response.json()["usage"]
        found = None
        for line in self.ask(http, **dict(self.streaming), **fields).text.splitlines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                found = event.get("usage") or (event.get("response") or {}).get("usage") or found
        return found


_TELLING = (("stream", True), ("stream_options", {"include_usage": True}))
DIALECTS = {
    "completions": Dialect("/v1/completions", {"prompt": "the fox", "max_tokens": 100}, False, _TELLING),
    "chat": Dialect(
        "/v1/chat/completions",
        {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hi"}]},
        streaming=_TELLING,
    ),
    "responses": Dialect("/v1/responses", {"instructions": SYSTEM, "input": "hi", "store": False}),
    "messages": Dialect(
        "/v1/messages", {"system": SYSTEM, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    ),
}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


@pytest.fixture(scope="module")
def with_default(tokenizer: Tokenizer) -> Iterator[tuple[httpx.Client, ScriptedEngine]]:
    """A server whose requests are bounded where they say nothing else."""
    asked = AskedPolicy(policy=KVPolicy(kind="h2o", tokens=150, sinks=4, recent=32))
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode(REPLY, False), kv_policy=asked)
    app = create_app(engine, tokenizer, template=ChatTemplate(TEMPLATE))
    with running(app) as url, described_client(url) as http:
        yield http, engine


def protected(tokenizer: Tokenizer) -> int:
    """Tokens of what the template writes before the user's message."""
    return len(tokenizer.encode(f"<|im_start|>system: {SYSTEM}<|im_end|><|im_start|>user: ", False))


def test_a_policy_reaches_the_engine(served: Any, dialect: Dialect) -> None:
    assert dialect.ask(served.http, kv_policy={**H2O, "type": "scissorhands", "patience": 5}).status_code == 200
    sinks = protected(served.tokenizer) if dialect.is_chat else 4
    expected = KVPolicy(kind="scissorhands", tokens=200, sinks=sinks, recent=32, patience=5)
    assert served.engine.calls[-1].kv_policy == expected


def test_defaults_are_those_of_the_policy(served: Any) -> None:
    assert DIALECTS["completions"].ask(served.http, kv_policy={"type": "snapkv", "tokens": 200}).status_code == 200
    assert served.engine.calls[-1].kv_policy == KVPolicy(kind="snapkv", tokens=200)


@pytest.mark.parametrize("given", [{}, {"kv_policy": None}, {"kv_policy": "full"}])
def test_without_a_policy_contexts_are_whole(served: Any, dialect: Dialect, given: dict[str, Any]) -> None:
    served.engine.dropped = 16
    assert "kv_policy" not in dialect.usage(served.http, stream=False, **given)
    assert served.engine.calls[-1].kv_policy is None


@pytest.mark.parametrize("stream", [False, True])
def test_usage_says_what_was_dropped(served: Any, dialect: Dialect, stream: bool) -> None:
    exact = {"type": "h2o", "dropped_tokens": 0, "exact": True}
    assert dialect.usage(served.http, stream=stream, kv_policy=H2O)["kv_policy"] == exact
    served.engine.dropped = 16
    outputs = len(served.tokenizer.encode(REPLY, False))
    usage = dialect.usage(served.http, stream=stream, kv_policy=H2O)
    assert usage["kv_policy"] == {"type": "h2o", "dropped_tokens": 16 * outputs, "exact": False}


def test_usage_adds_up_over_prompts(served: Any) -> None:
    served.engine.dropped = 16
    outputs = len(served.tokenizer.encode(REPLY, False))
    usage = DIALECTS["completions"].usage(served.http, stream=False, prompt=["the fox", "hi"], kv_policy=H2O)
    assert usage["kv_policy"]["dropped_tokens"] == 2 * 16 * outputs


@pytest.mark.parametrize(
    ("policy", "param", "says"),
    [
        ("half", "kv_policy", "'half' is not one of full"),
        (7, "kv_policy", "got int"),
        ({"tokens": 200}, "kv_policy.type", "is missing"),
        ({"type": "h2o"}, "kv_policy.tokens", "is missing"),
        ({"type": "fifo", "tokens": 200}, "kv_policy.type", "'fifo' is not one of h2o, scissorhands, snapkv, window"),
        ({"type": "h2o", "tokens": "200"}, "kv_policy.tokens", "expected int, got str"),
        ({"type": "h2o", "tokens": True}, "kv_policy.tokens", "expected int, got bool"),
        ({**H2O, "sink": 5}, "kv_policy.sink", "did you mean sinks?"),
        ({**H2O, "protect": "all"}, "kv_policy.protect", "'all' is not one of none, system"),
        ({**H2O, "patience": 5}, "kv_policy.patience", "means nothing for h2o, but for scissorhands"),
        ({"type": "window", "tokens": 200, "recent": 32}, "kv_policy.recent", "means nothing for window"),
        ({**H2O, "sinks": -1}, "kv_policy.sinks", "-1 is outside 0.."),
        ({**H2O, "tokens": 0}, "kv_policy.tokens", "0 is outside 1.."),
    ],
)
def test_what_is_no_policy_is_refused_by_name(
    served: Any, dialect: Dialect, policy: object, param: str, says: str
) -> None:
    response = dialect.ask(served.http, kv_policy=policy)
    assert response.status_code == 400 and not served.engine.calls
    error = response.json()["error"]
    assert says in error["message"] and param in error["message"]
    assert error.get("param", param) == param


def test_only_conversations_have_system_messages(served: Any) -> None:
    response = DIALECTS["completions"].ask(served.http, kv_policy={**H2O, "protect": "system"})
    assert response.status_code == 400 and "completions have no system messages" in response.text
    assert DIALECTS["completions"].ask(served.http, kv_policy={**H2O, "protect": "none"}).status_code == 200


def test_what_is_protected_may_be_left_unprotected(served: Any) -> None:
    assert DIALECTS["chat"].ask(served.http, kv_policy={**H2O, "protect": "none"}).status_code == 200
    assert served.engine.calls[-1].kv_policy.sinks == 4


def test_what_is_protected_has_to_fit(served: Any) -> None:
    chat, tokens = DIALECTS["chat"], protected(served.tokenizer)
    least = -(-tokens // 16) * 16 + 64
    assert chat.ask(served.http, kv_policy={**H2O, "tokens": least}).status_code == 200
    response = chat.ask(served.http, kv_policy={**H2O, "tokens": least - 1})
    assert response.status_code == 400 and response.json()["error"]["param"] == "kv_policy.tokens"
    says = f'which are never dropped, have {tokens} tokens; give at least {least}, or protect "none"'
    assert says in response.json()["error"]["message"]


def test_more_sinks_than_are_protected_stay(served: Any) -> None:
    assert DIALECTS["chat"].ask(served.http, kv_policy={**H2O, "sinks": 100}).status_code == 200
    assert served.engine.calls[-1].kv_policy.sinks == 100


def test_marks_of_prefixes_have_no_effect_and_are_named(served: Any) -> None:
    system = [{"type": "text", "text": SYSTEM, "cache_control": MARK}]
    response = DIALECTS["messages"].ask(served.http, system=system, kv_policy=H2O)
    assert response.status_code == 200 and response.headers["x-penstock-ignored"] == "cache_control"
    call = served.engine.calls[-1]
    assert call.keep == () and call.kv_policy is not None
    assert response.json()["usage"]["cache_creation_input_tokens"] == 0


def test_a_windows_output_is_longer_than_the_context(served: Any, dialect: Dialect) -> None:
    limit = {"max_output_tokens" if dialect.path == "/v1/responses" else "max_tokens": 5000}
    for policy in ({"type": "window", "tokens": 100}, H2O):
        assert dialect.ask(served.http, kv_policy=policy, **limit).status_code == 200
    window, cut = (call.params.max_tokens for call in served.engine.calls)
    assert window == 5000 and cut < 256


def test_long_prompts_of_a_window(served: Any) -> None:
    words, window = "the fox " * 400, {"type": "window", "tokens": 100}
    chat = {"messages": [{"role": "user", "content": words}]}
    for dialect, body in ((DIALECTS["completions"], {"prompt": words}), (DIALECTS["chat"], chat)):
        assert dialect.ask(served.http, **body).json()["error"]["code"] == "context_length_exceeded"
        assert dialect.ask(served.http, **body, kv_policy=window).status_code == 200
        assert len(served.engine.calls[-1].prompt) > 256
    # Without a number, a chat's answer has as many tokens as a context at most.
    assert served.engine.calls[-1].params.max_tokens == 256
    too_many = DIALECTS["completions"].ask(served.http, kv_policy=window, max_tokens=LONGEST_STREAM, ignore_eos=True)
    assert str(LONGEST_STREAM) in too_many.json()["error"]["message"]


def test_a_servers_policy_holds_where_nothing_is_said(
    with_default: tuple[httpx.Client, ScriptedEngine], dialect: Dialect
) -> None:
    http, engine = with_default
    for given in ({}, {"kv_policy": None}):
        assert dialect.usage(http, stream=False, **given)["kv_policy"]["type"] == "h2o"
        policy = engine.calls[-1].kv_policy
        assert policy is not None and policy.tokens == 150 and (policy.sinks > 4) == dialect.is_chat
    assert (
        dialect.usage(http, stream=False, kv_policy={"type": "window", "tokens": 120})["kv_policy"]["type"] == "window"
    )
    assert "kv_policy" not in dialect.usage(http, stream=False, kv_policy="full")
    assert engine.calls[-1].kv_policy is None


def test_accounts_and_metrics_say_what_was_dropped(served: Any) -> None:
    served.engine.dropped = 16
    response = DIALECTS["chat"].ask(served.http, kv_policy=H2O)
    dropped = response.json()["usage"]["kv_policy"]["dropped_tokens"]
    path = f"/v1/requests/{response.headers['x-request-id']}/explain"
    while (told := served.http.get(path).json())["state"] != "ended":
        pass
    assert told["context"] == {"type": "h2o", "tokens": 200, "dropped_tokens": dropped, "exact": False}
    lines = served.http.get("/metrics").text.splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith('penstock_kv_dropped_tokens_total{type="h2o"}')]
    assert float(value) >= dropped
    whole = served.chat()
    assert served.http.get(f"/v1/requests/{whole.headers['x-request-id']}/explain").json()["context"] is None


def test_a_template_that_does_not_tell_what_is_protected(tokenizer: Tokenizer) -> None:
    strange = "{% if messages[-1].content == '\N{REFERENCE MARK}' %}{{ raise_exception('say more') }}{% endif %}"
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode(REPLY, False))
    said = [("system", SYSTEM), ("user", "hi"), ("assistant", "hello"), ("user", "go on")]
    body = {"messages": [{"role": role, "content": content} for role, content in said]}
    app = create_app(engine, tokenizer, template=ChatTemplate(strange + TEMPLATE))
    with running(app) as url, described_client(url) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        refused = http.post("/v1/chat/completions", json={**body, "kv_policy": H2O})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "kv_policy.protect"
        unprotected = {**body, "kv_policy": {**H2O, "protect": "none"}}
        assert http.post("/v1/chat/completions", json=unprotected).status_code == 200
