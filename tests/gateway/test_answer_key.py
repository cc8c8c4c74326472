"""Which requests ask the same, and which answers others may get."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.answer_key import Freshness, freshness, key_of, why_own
from penstock.gateway.whole_answers import is_whole

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "cache_salt": "a"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def scope(path: str = "/v1/completions", query: bytes = b"", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"path": path, "query_string": query, "headers": list(headers)}


def key(body: Any, tenant: str = "t", where: dict[str, Any] | None = None, **form: Any) -> bytes | None:
    encoded = body if isinstance(body, bytes | bytearray) else json.dumps(body, **form).encode()
    return key_of(tenant, where or scope(), encoded)


def test_white_space_and_the_order_of_fields_say_nothing() -> None:
    first = key(BODY)
    assert first is not None and first == key(dict(reversed(BODY.items())), indent=3)
    assert first == key(bytearray(json.dumps(BODY).encode()))


def test_all_else_does() -> None:
    others = [{**BODY, "cache_salt": "b"}, {**BODY, "user": "x"}, {**BODY, "stream": True}, {**BODY, "model": "n"}]
    others += [{**BODY, "temperature": 0.25}, {**BODY, "messages": [{"content": "hi", "role": "user"}]}]
    others += [{**BODY, "seed": 2**70}, {**BODY, "seed": 2**70 + 1}]
    keys = [key(BODY), *map(key, others)]
    keys += [key(BODY, "u"), key(BODY, "t", scope("/v1/embeddings")), key(BODY, "t", scope(query=b"a=1"))]
    keys += [key(BODY, "t", scope("/v1/completions", b"", (b"anthropic-beta", b"x")))]
    assert len({*keys}) == len(keys) and None not in keys
    assert key(BODY, "t", scope("/v1/completions", b"", (b"user-agent", b"x"))) == key(BODY)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_two_bodies_have_one_key_only_where_they_say_the_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = key(one, ensure_ascii=False), key(two, ensure_ascii=False)
    if first == second and first is not None:
        assert repr(sorted(one.items())) == repr(sorted(two.items()))


def test_what_cannot_be_compared_has_no_key() -> None:
    assert key(b'{"model": "a", "model": "b"}') is None
    assert key(b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}") is None


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", {"store": False, "background": None}, None),
        ("/v1/chat/completions", {"store": True}, "its answer is to be stored; store is not false"),
        ("/v1/responses", {"store": False}, None),
        ("/v1/responses", {}, "its answer is stored by a replica; store is not false"),
        ("/v1/responses", {"store": False, "previous_response_id": "r"}, "it has previous_response_id"),
        ("/v1/responses", {"store": False, "background": True}, "it has background"),
        ("/v1/responses", {"store": False, "conversation": {"id": "c"}}, "it has conversation"),
        ("/v1/responses/input_tokens", {}, None),
    ],
)
def test_what_is_for_one_request_alone(path: str, fields: dict[str, Any], why: str | None) -> None:
    assert why_own(path, json.dumps(fields).encode()) == why


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((), Freshness()),
        ((b"no-store",), Freshness(stored=False)),
        ((b"No-Cache",), Freshness(most_age=0)),
        ((b"max-age=60, no-transform", b"max-age=5"), Freshness(most_age=5)),
        ((b"no-cache, no-store",), Freshness(stored=False, most_age=0)),
        ((b"max-age=x",), Freshness()),
    ],
)
def test_cache_control(values: tuple[bytes, ...], wanted: Freshness) -> None:
    assert freshness([(b"cache-control", value) for value in values]) == wanted


def events(*parts: Any) -> bytes:
    return b"".join(
        b"data: " + (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n\n" for each in parts
    )


CHUNK = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (events(CHUNK, END, b"[DONE]"), True),
        (events(CHUNK, END), False),
        (events(CHUNK, {"error": {"message": "broke"}}, b"[DONE]"), False),
        (events(CHUNK, {"choices": [{"finish_reason": "abort"}]}, b"[DONE]"), False),
        (events(CHUNK, b"{", b"[DONE]"), False),
        (b": ping\n\n" + events({"type": "message_start"}, {"type": "message_stop"}).replace(b"\n", b"\r\n"), True),
        (events({"type": "message_start"}, {"type": "error", "error": {"type": "overloaded_error"}}), False),
        (events({"type": "response.created"}, {"type": "response.completed", "response": {"error": None}}), True),
        (events({"type": "response.created"}, {"type": "response.failed"}), False),
        (b"", False),
    ],
)
def test_a_stream_is_whole_where_it_says_so(body: bytes, whole: bool) -> None:
    assert is_whole([(b"content-type", b"text/event-stream; charset=utf-8")], body) == whole


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        ({"choices": [{"finish_reason": "length"}]}, True),
        ({"choices": [{"finish_reason": "error"}]}, False),
        ({"error": {"message": "no"}}, False),
        ({"status": "completed", "error": None}, True),
        ({"status": "in_progress"}, False),
        ({"data": [{"embedding": [0.5]}]}, True),
        ({"tokens": [1, 2]}, True),
        ([1], False),
        (b'{"choices": [', False),
    ],
)
def test_an_answer_is_whole_where_nothing_in_it_failed(body: Any, whole: bool) -> None:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert is_whole([(b"content-type", b"application/json")], encoded) == whole
