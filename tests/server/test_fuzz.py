"""Arbitrary JSON in every field: always an answer, never the server's fault."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.schema import ChatFields, CompletionFields, EmbeddingFields, Message

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


def check(response: Any) -> None:
    assert response.status_code in (200, 400, 404), response.text
    body = response.json() if "json" in response.headers["content-type"] else {}
    assert response.status_code == 200 or set(body["error"]) == {"message", "type", "param", "code"}


@settings(max_examples=150)
@given(
    fields=st.dictionaries(st.sampled_from(CompletionFields.__struct_fields__), JSON, max_size=3),
    prompt=st.text(max_size=8) | st.lists(st.integers(0, 1100), max_size=4) | JSON,
)
def test_completions(_server: Any, fields: dict[str, Any], prompt: Any) -> None:
    check(_server.http.post("/v1/completions", json={"prompt": prompt, **fields}))


@settings(max_examples=150)
@given(
    fields=st.dictionaries(st.sampled_from(ChatFields.__struct_fields__), JSON, max_size=3),
    messages=st.lists(MESSAGE, max_size=3),
)
def test_chats(_server: Any, fields: dict[str, Any], messages: Any) -> None:
    check(_server.http.post("/v1/chat/completions", json={"messages": messages, **fields}))


@settings(max_examples=100)
@given(fields=st.dictionaries(st.sampled_from(EmbeddingFields.__struct_fields__), JSON, max_size=3))
def test_embeddings(_server: Any, fields: dict[str, Any]) -> None:
    check(_server.http.post("/v1/embeddings", json={"input": "x", **fields}))
