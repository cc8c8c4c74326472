"""Arbitrary JSON in every field: always an answer, never the server's fault."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.anthropic.schema import MessagesFields
from penstock.api.openai.tokens import DetokenizeFields, TokenizeFields
from penstock.api.requests import ChatFields, CompletionFields, EmbeddingFields, Message
from penstock.api.responses.schema import ResponsesFields
from penstock.api.scoring.fields import EitherRerankFields, ScoreFields

# Of each endpoint; 1,000 under the profile for long runs.
EXAMPLES = settings.default.max_examples // 2
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["user", "text", "<s>", "{{ x }}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "x"]), "content": st.text(max_size=6) | JSON},
    optional=dict.fromkeys(Message.__struct_fields__[2:], JSON),
)
TEXTS = st.text(max_size=6) | JSON


def some(kind: st.SearchStrategy[str], *names: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of one of these types, with some of these fields, right ones or any."""
    values = dict.fromkeys(names, TEXTS) | {name: value | JSON for name, value in fields.items()}
    return st.fixed_dictionaries({"type": kind}, optional=values)


BLOCK = some(
    st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"]),
    *("text", "thinking", "signature", "name", "is_error", "cache_control", "more"),
    id=st.sampled_from(["a", "b"]),
    tool_use_id=st.sampled_from(["a", "b"]),
    input=st.dictionaries(st.text(max_size=3), JSON, max_size=2),
    content=st.lists(some(st.just("text"), "text"), max_size=2),
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": st.lists(BLOCK, max_size=3) | TEXTS}
)
ITEM = some(
    st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference"]),
    *("id", "status", "name", "summary", "encrypted_content", "more"),
    role=st.sampled_from(["user", "assistant", "developer"]),
    call_id=st.sampled_from(["a", "b"]),
    arguments=st.sampled_from(["{}", "{", "[1]"]),
    output=st.text(max_size=3),
    content=st.lists(some(st.sampled_from(["input_text", "output_text", "reasoning_text"]), "text"), max_size=2),
)


def check(response: Any) -> None:
    assert response.status_code in (200, 400, 404), response.text
    body = response.json() if "json" in response.headers["content-type"] else {}
    assert response.status_code == 200 or set(body["error"]) == {"message", "type", "param", "code"}


@settings(max_examples=EXAMPLES)
@given(
    fields=st.dictionaries(st.sampled_from(CompletionFields.__struct_fields__), JSON, max_size=3),
    prompt=st.text(max_size=8) | st.lists(st.integers(0, 1100), max_size=4) | JSON,
)
def test_completions(scripted_server: Any, fields: dict[str, Any], prompt: Any) -> None:
    check(scripted_server.http.post("/v1/completions", json={"prompt": prompt, **fields}))


@settings(max_examples=EXAMPLES)
@given(
    fields=st.dictionaries(st.sampled_from(ChatFields.__struct_fields__), JSON, max_size=3),
    messages=st.lists(MESSAGE, max_size=3),
)
def test_chats(scripted_server: Any, fields: dict[str, Any], messages: Any) -> None:
    check(scripted_server.http.post("/v1/chat/completions", json={"messages": messages, **fields}))


@settings(max_examples=EXAMPLES)
@given(
    fields=st.dictionaries(st.sampled_from(MessagesFields.__struct_fields__), JSON, max_size=2),
    messages=st.lists(TURN, max_size=3),
    path=st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]),
)
def test_messages(scripted_server: Any, fields: dict[str, Any], messages: Any, path: str) -> None:
    bound = {"max_tokens": 5} if path == "/v1/messages" else {}
    response = scripted_server.http.post(path, json={"messages": messages, **bound, **fields})
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["type"] == "error" and set(response.json()["error"]) == {"type", "message"}


@settings(max_examples=EXAMPLES)
@given(
    fields=st.dictionaries(st.sampled_from(ResponsesFields.__struct_fields__), JSON, max_size=2),
    items=st.text(max_size=5) | st.lists(ITEM, max_size=3),
)
def test_responses(scripted_server: Any, fields: dict[str, Any], items: Any) -> None:
    check(scripted_server.http.post("/v1/responses", json={"input": items, "max_output_tokens": 5, **fields}))


@settings(max_examples=EXAMPLES)
@given(
    texts=st.dictionaries(st.sampled_from(TokenizeFields.__struct_fields__), JSON, max_size=3),
    tokens=st.dictionaries(st.sampled_from(DetokenizeFields.__struct_fields__), JSON, max_size=2),
)
def test_tokens(scripted_server: Any, texts: dict[str, Any], tokens: dict[str, Any]) -> None:
    check(scripted_server.http.post("/tokenize", json=texts))
    check(scripted_server.http.post("/detokenize", json=tokens))


@settings(max_examples=EXAMPLES)
@given(query=st.dictionaries(st.sampled_from(["limit", "order", "after", "include"]), st.text(max_size=4), max_size=2))
def test_queries(scripted_server: Any, query: dict[str, str]) -> None:
    response = scripted_server.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 1}).json()
    check(scripted_server.http.get(f"/v1/responses/{response['id']}/input_items", params=query))
    check(scripted_server.http.get(f"/v1/responses/{response['id']}", params=query))


@settings(max_examples=EXAMPLES)
@given(fields=st.dictionaries(st.sampled_from(EmbeddingFields.__struct_fields__), JSON, max_size=3))
def test_embeddings(scripted_server: Any, fields: dict[str, Any]) -> None:
    check(scripted_server.http.post("/v1/embeddings", json={"input": "x", **fields}))


@settings(max_examples=EXAMPLES)
@given(
    ranks=st.dictionaries(st.sampled_from(EitherRerankFields.__struct_fields__), JSON, max_size=3),
    scores=st.dictionaries(st.sampled_from(ScoreFields.__struct_fields__), JSON, max_size=3),
)
def test_scores(scripted_server: Any, ranks: dict[str, Any], scores: dict[str, Any]) -> None:
    check(scripted_server.http.post("/rerank", json={"query": "x", "documents": ["x"], **ranks}))
    check(scripted_server.http.post("/v1/score", json={"text_1": "x", "text_2": "x", **scores}))
