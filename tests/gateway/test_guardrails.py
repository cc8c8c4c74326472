"""Guardrails over real HTTP: what they let pass, refuse, replace, and what happens where they say nothing."""

import contextlib
import hashlib
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.conftest import Gateway, Start
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Permits, Tenant
from penstock.cli.explain import run_explain
from penstock.core.errors import ConfigurationError
from penstock.gateway.answers import OwnAnswers
from penstock.gateway.guardrail_client import GuardrailClient
from penstock.gateway.guardrail_options import Guardrail
from penstock.gateway.rules import Rule
from support.scripted_http import CLOSE, Received, Script, ScriptedServer, Step, answer, scripted, stream, text_chunk
from support.waiting import PATIENCE, until

ALLOW, DENY = {"action": "allow"}, {"action": "deny", "reason": "It has a secret."}
WHOLE = {"choices": [{"index": 0, "text": "the secret", "finish_reason": "stop"}]}
MESSAGE = {"type": "message", "content": [{"type": "text", "text": "the secret"}]}


def saying(*verdicts: Any) -> Script:
    """Says one after the other, and the last one from then on."""
    left = list(verdicts)

    def script(_request: Received) -> Sequence[Step]:
        said = left.pop(0) if len(left) > 1 else left[0]
        return answer(json.dumps(said).encode()) if isinstance(said, dict) else said

    return script


@pytest.fixture
def guard() -> Iterator[Callable[[Script], ScriptedServer]]:
    """Starts a guardrail's server."""
    with contextlib.ExitStack() as stack:
        yield lambda script: stack.enter_context(scripted(script))


@pytest.fixture
def guarded(gateway: Start) -> Callable[..., Gateway]:
    """Starts a gateway with guardrails and the tenants "alice" and "bob"."""

    def start(script: Script, *guardrails: Guardrail, permits: Permits | None = None, **options: Any) -> Gateway:
        tenants = (Tenant(name="alice", permits=permits or Permits()), Tenant(name="bob", organisation="acme"))
        keys = Keyring([Key(each, hashlib.sha256(each.name.encode()).digest()) for each in tenants])
        return gateway(script, keys=keys, guardrail=guardrails, **options)

    return start


def rail(server: ScriptedServer, name: str = "rail", **fields: Any) -> Guardrail:
    return Guardrail(name=name, url=f"{server.base}/check", **{"seconds": PATIENCE, **fields})


def ask(gateway: Gateway, path: str = "/v1/completions", key: str = "alice", **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "prompt": "the fox", **fields}
    return gateway.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})


def whole(_request: Received) -> list[Step]:
    return answer(json.dumps(WHOLE).encode())


def chunks(*texts: str) -> Script:
    events = [text_chunk(text) for text in texts]
    return lambda _request: stream(*events, text_chunk("", "stop"), "[DONE]")


@contextlib.contextmanager
def asking(gateway: Gateway, body: bytes) -> Iterator[socket.socket]:
    """Asks for a completion, on a connection that ends with the block."""
    where = urlsplit(gateway.url)
    with socket.create_connection((str(where.hostname), int(where.port or 0)), PATIENCE) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n"
        kind = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(head + kind + body)
        yield client


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "content_refused" and error["type"] == "invalid_request_error"
    return str(error["message"])


def checks(gateway: Gateway) -> dict[tuple[str, str, str], int]:
    return {what: count for what, count in gateway.dispatch.figures.guarded.items() if count}


def test_what_it_is_asked_and_what_it_lets_pass(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying(ALLOW))
    gateway = guarded(whole, rail(server, when="both"))
    answered = ask(gateway, user="u")
    assert answered.json() == WHOLE
    before, after = (request.body for request in server.asked)
    body = {"model": "scripted", "prompt": "the fox", "user": "u"}
    asked = {"path": "/v1/completions", "tenant": "alice", "model": "scripted", "body": body}
    assert before == {"id": answered.headers["x-request-id"], "when": "before", **asked}
    told = {"text": "the secret", "passed": 0, "whole": True, "answer": WHOLE}
    assert after == {**before, "when": "after", **told}
    assert server.asked[0].path == "/check" and server.asked[0].headers["content-type"] == "application/json"
    assert gateway.servers[0].asked[0].body == body
    assert checks(gateway) == {("rail", "before", "allow"): 1, ("rail", "after", "allow"): 1}
    # One connection serves all of it.
    assert server.connections == 1


def test_a_request_is_refused_in_the_form_of_its_dialect(guarded: Callable[..., Gateway], guard: Any) -> None:
    gateway = guarded(whole, rail(guard(saying(DENY))))
    assert refusal(ask(gateway)) == "The guardrail rail refuses this request: It has a secret."
    other = ask(gateway, "/v1/messages", messages=[], max_tokens=5)
    assert other.status_code == 400 and other.json() == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "The guardrail rail refuses this request: It has a secret.",
        },
    }
    assert gateway.asked == [0]
    until(lambda: gateway.dispatch.figures.requests["invalid"] == 2)


def test_an_answer_is_refused_whole_or_streamed(guarded: Callable[..., Gateway], guard: Any) -> None:
    def script(request: Received) -> Sequence[Step]:
        if request.path == "/v1/messages":
            return answer(json.dumps(MESSAGE).encode())
        return chunks("the ", "secret")(request) if request.body.get("stream") else whole(request)

    server = guard(saying(DENY))
    gateway = guarded(script, rail(server, when="after"))
    for fields in ({}, {"stream": True}):
        assert refusal(ask(gateway, **fields)) == "The guardrail rail refuses this answer: It has a secret."
    refused = ask(gateway, "/v1/messages", messages=[], max_tokens=5)
    assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"
    assert [(each.body["text"], "answer" in each.body) for each in server.asked] == [
        ("the secret", True),
        ("the secret", False),
        ("the secret", True),
    ]


def test_a_request_is_replaced_and_its_bounds_hold_for_what_is_sent(
    guarded: Callable[..., Gateway], guard: Any
) -> None:
    masked = {"action": "replace", "body": {"model": "scripted", "prompt": "the ***", "max_tokens": 7}}
    long = {"action": "replace", "body": {"model": "scripted", "prompt": "the ***", "max_tokens": 11}}
    server, second = guard(saying(masked, long)), guard(saying(ALLOW))
    gateway = guarded(whole, rail(server), rail(second, "second"), permits=Permits(max_output_tokens=10))
    assert ask(gateway, max_tokens=5).status_code == 200
    assert gateway.servers[0].asked[0].body == masked["body"] == second.asked[0].body["body"]
    refused = ask(gateway, max_tokens=5)
    assert refused.status_code == 400 and "more than the 10 tokens" in refused.json()["error"]["message"]


def test_an_answer_is_replaced_where_it_is_whole(guarded: Callable[..., Gateway], guard: Any) -> None:
    other = {"choices": [{"index": 0, "text": "the *** and more", "finish_reason": "stop"}]}
    server, second = guard(saying({"action": "replace", "body": other})), guard(saying(ALLOW))
    script = lambda request: chunks("the secret")(request) if request.body.get("stream") else whole(request)  # noqa: E731
    gateway = guarded(script, rail(server, when="after"), rail(second, "second", when="after"))
    replaced = ask(gateway)
    assert replaced.json() == other and int(replaced.headers["content-length"]) == len(replaced.content)
    assert second.asked[0].body["text"] == "the *** and more" and second.asked[0].body["answer"] == other
    assert "cannot be done in a stream" in refusal(ask(gateway, stream=True))
    stored = ask(gateway, "/v1/responses", input="a")
    assert "a replica has stored; send store: false" in refusal(stored)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"model": "another"}, "it gives another request, with another model"),
        ({"stream": True}, "it gives another request, with another stream"),
        ({"prompt": 5, "user": 5}, "it gives another request: The body cannot be read"),
    ],
)
def test_what_cannot_take_the_place_of_a_request(
    guarded: Callable[..., Gateway], guard: Any, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], why: str
) -> None:
    said = {"action": "replace", "body": {"model": "scripted", "prompt": "the ***", **fields}}
    gateway = guarded(whole, rail(guard(saying(said)), "shut"))
    assert ask(gateway).status_code == 503 and gateway.asked == [0] and why in caplog.text
    gateway = guarded(whole, rail(guard(saying(said)), "open", on_failure="open"))
    assert ask(gateway).status_code == 200
    assert gateway.servers[0].asked[0].body == {"model": "scripted", "prompt": "the fox"}


FAILURES: list[tuple[list[Step], str]] = [
    (answer(b"{}", 500), "it answered with status 500"),
    (answer(b"allow"), "its answer cannot be read"),
    (answer(b'{"action": "perhaps"}'), "its answer cannot be read"),
    (answer(b'{"action": "replace"}'), "gives no object as body"),
    (answer(b'{"action": "replace", "body": null}'), "gives no object as body"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", CLOSE], "its connection broke"),
    ([CLOSE], "its connection broke"),
    ([b"what?\r\n\r\n"], "its answer is not HTTP/1.1"),
]


@pytest.mark.parametrize(("steps", "why"), FAILURES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_that_fails_is_open_or_closed(
    guarded: Callable[..., Gateway],
    guard: Any,
    caplog: pytest.LogCaptureFixture,
    steps: list[Step],
    why: str,
    when: Any,
) -> None:
    server = guard(lambda _request: steps)
    gateway = guarded(whole, rail(server, when=when))
    refused = ask(gateway)
    error = refused.json()["error"]
    what = "request" if when == "before" else "answer"
    assert refused.status_code == 503 and error["code"] == "guardrail_unavailable" and "retry-after" in refused.headers
    assert error["message"].startswith(f"The guardrail rail cannot look at this {what} now")
    assert f"The guardrail rail does not look at {refused.headers['x-request-id']}: " in caplog.text
    assert why in caplog.text and f"the {what} is refused" in caplog.text
    gateway = guarded(whole, rail(server, when=when, on_failure="open"))
    assert ask(gateway).json() == WHOLE and f"the {what} passes unseen" in caplog.text
    assert checks(gateway) == {("rail", when, "failure"): 1}


def test_one_that_hangs_has_its_seconds_and_no_more(
    guarded: Callable[..., Gateway], guard: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = guarded(whole, rail(guard(lambda _: [PATIENCE]), seconds=0.05, on_failure="open"))
    answered = ask(gateway)
    assert answered.json() == WHOLE and checks(gateway) == {("rail", "before", "timeout"): 1}
    identifier = answered.headers["x-request-id"]
    headers = {"authorization": "Bearer alice"}
    (told,) = gateway.http.get(f"/v1/requests/{identifier}/explain", headers=headers).json()["gateway"]["checked"]
    assert told["seconds"] > 0
    assert told == {
        "guardrail": "rail",
        "when": "before",
        "result": "timeout",
        "times": 1,
        "seconds": told["seconds"],
        "why": "it says nothing in 0.05 s",
    }
    metrics = gateway.http.get("/metrics", headers=headers).text
    assert 'guarded_total{guardrail="rail",when="before",result="timeout"} 1.0\n' in metrics
    run_explain(identifier, gateway.url, "alice", None, slowest=False, limit=5, as_json=False)
    assert "the guardrail rail, before: timeout" in capsys.readouterr().out


def test_one_that_is_not_there(guarded: Callable[..., Gateway], guard: Any) -> None:
    with scripted(saying(ALLOW)) as server:
        gateway = guarded(whole, rail(server))
        assert ask(gateway).status_code == 200
    assert ask(gateway).status_code == 503 and checks(gateway)["rail", "before", "failure"] == 1


def test_a_connection_that_was_closed_meanwhile_is_made_anew(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying([*answer(b'{"action": "allow"}'), CLOSE]))
    gateway = guarded(whole, rail(server))
    assert [ask(gateway).status_code for _ in range(5)] == [200] * 5
    assert server.connections >= 5 and checks(gateway) == {("rail", "before", "allow"): 5}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_that_leaves_meanwhile(guarded: Callable[..., Gateway], guard: Any, when: Any) -> None:
    server = guard(lambda _: [PATIENCE])
    gateway = guarded(whole, rail(server, when=when))
    with asking(gateway, b'{"model": "scripted"}'):
        until(lambda: server.asked)
    until(lambda: gateway.dispatch.figures.requests["cancelled"] == 1)
    # The guardrail learns it at once, too.
    until(lambda: not len(gateway.dispatch.guardrails._clients[0]._pool))
    gateway.wait_until_empty()
    assert checks(gateway) == {}


def test_it_sees_only_those_that_it_is_for(guarded: Callable[..., Gateway], guard: Any) -> None:
    acme, large, both = (guard(saying(ALLOW)) for _ in range(3))
    gateway = guarded(
        whole,
        rail(acme, "acme", tenants=("acme",)),
        rail(large, "large", models=("large",)),
        rail(both, "both", tenants=("bob", "carol"), models=("scripted",)),
        rule=(Rule(model="auto", to="scripted"), Rule(model="auto", to="large")),
    )
    for key, model in (("alice", "scripted"), ("bob", "scripted"), ("alice", "auto"), ("bob", "auto")):
        assert ask(gateway, key=key, model=model).status_code == 200
    seen = [[(each.body["tenant"], each.body["model"]) for each in server.asked] for server in (acme, large, both)]
    # What a rule may lead to a model is looked at as if it did.
    assert seen == [
        [("bob", "scripted"), ("bob", "auto")],
        [("alice", "auto"), ("bob", "auto")],
        [("bob", "scripted"), ("bob", "auto")],
    ]


def test_a_request_that_names_no_model_may_get_any(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying(DENY))
    gateway = guarded(whole, rail(server, models=("large",)))
    # There is one model, which it is not for.
    body, headers = {"prompt": "a"}, {"authorization": "Bearer alice"}
    assert gateway.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    gateway.dispatch.replicas.all[0].models = ("scripted", "large")
    assert gateway.http.post("/v1/completions", json=body, headers=headers).status_code == 400


def test_batches_and_answers_in_the_background_do_not_get_around_it(
    guarded: Callable[..., Gateway], guard: Any
) -> None:
    gateway = guarded(whole, rail(guard(saying(ALLOW)), when="both", tenants=("alice",)))
    headers = {"authorization": "Bearer alice"}
    refused = gateway.http.post("/v1/batches", json={"input_file_id": "f"}, headers=headers)
    assert refused.status_code == 403 and "The guardrail rail looks at" in refused.json()["error"]["message"]
    later = ask(gateway, "/v1/responses", input="a", background=True)
    assert later.status_code == 400 and later.json()["error"]["param"] == "background"
    assert gateway.asked == [0]


def test_a_name_that_is_given_twice_is_read_as_one_by_all(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying(ALLOW))
    gateway = guarded(whole, rail(server))
    content = b'{"model": "scripted", "prompt": "evil", "prompt": "good", "seed": 123456789012345678901234567890}'
    headers = {"authorization": "Bearer alice", "content-type": "application/json"}
    assert gateway.http.post("/v1/completions", content=content, headers=headers).status_code == 200
    sent = {"model": "scripted", "prompt": "good", "seed": 123456789012345678901234567890}
    assert server.asked[0].body["body"] == sent == gateway.servers[0].asked[0].body
    for bad in (b'{"model": "scripted", "\xff": 1}', b'{"prompt": "a", "temperature": 1e999}'):
        refused = gateway.http.post("/v1/completions", content=bad, headers=headers)
        assert refused.status_code == 400 and "The body cannot be read" in refused.json()["error"]["message"]


def test_windows_of_a_stream_pass_one_after_the_other(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying(ALLOW, ALLOW, DENY))

    def script(_request: Received) -> Sequence[Step]:
        first, second, third, fourth, fifth = (text_chunk(text) for text in ("abc", "def", "ghi", "jkl", "mno"))
        once, twice = (lambda: len(server.asked) >= 1), (lambda: len(server.asked) >= 2)
        return stream(first, second, once, third, fourth, twice, fifth, "[DONE]")

    gateway = guarded(script, rail(server, when="after", window=5))
    answered = ask(gateway, stream=True)
    assert answered.status_code == 200
    *passed, last, done = (line[6:] for line in answered.text.splitlines() if line)
    assert [json.loads(each)["choices"][0]["text"] for each in passed] == ["abc", "def", "ghi", "jkl"]
    error = json.loads(last)["error"]
    assert error["code"] == "content_refused" and done == "[DONE]"
    assert [(each.body["text"], each.body["passed"], each.body["whole"]) for each in server.asked] == [
        ("abcdef", 0, False),
        ("abcdefghijkl", 6, False),
        ("abcdefghijklmno", 12, True),
    ]
    way = gateway.http.get("/v1/requests", headers={"authorization": "Bearer alice"}).json()["data"][0]
    assert [(each["result"], each["times"]) for each in way["checked"]] == [("deny", 3)]


def test_a_stream_of_messages_ends_with_an_error_in_its_form(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying(ALLOW, DENY))

    def script(_request: Received) -> Sequence[Step]:
        first, second = (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            for text in ("good", "bad")
        )
        return stream(first, lambda: server.asked, second, {"type": "message_stop"})

    gateway = guarded(script, rail(server, when="after", window=4))
    answered = ask(gateway, "/v1/messages", messages=[], max_tokens=5, stream=True)
    assert answered.status_code == 200 and "good" in answered.text and "bad" not in answered.text
    assert answered.text.endswith(
        'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error",'
        '"message":"The guardrail rail refuses this answer: It has a secret."}}\n\n'
    )


def test_events_are_read_as_they_may_be_written(guarded: Callable[..., Gateway], guard: Any) -> None:
    """With line breaks of two characters, comments, several lines of data, and pieces that end anywhere."""
    said = json.dumps(text_chunk("secret"), indent=0).replace("\n", "\r\ndata: ")
    content = f": hello\r\n\r\nevent: chunk\r\ndata: {said}\r\n\r\ndata:[DONE]\r\n\r\n".encode()
    server = guard(saying(ALLOW))
    pieces = [content[start : start + 7] for start in range(0, len(content), 7)]
    gateway = guarded(lambda _: stream(*pieces), rail(server, when="after", window=1))
    assert ask(gateway, stream=True).content == content
    assert {each.body["text"] for each in server.asked} == {"secret"} and server.asked[-1].body["whole"]


@pytest.mark.parametrize("window", [1, None])
def test_nothing_passes_before_it_was_looked_at(
    guarded: Callable[..., Gateway], guard: Any, window: int | None
) -> None:
    held = list[bool]()
    server = guard(lambda _: [lambda: bool(held), *answer(json.dumps(ALLOW).encode())])
    gateway = guarded(chunks("abc", "def"), rail(server, when="after", window=window))
    with asking(gateway, b'{"model": "scripted", "stream": true}') as client:
        until(lambda: server.asked)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(PATIENCE)
        held.append(True)
        got = b""
        while b"[DONE]" not in got:
            got += client.recv(65536)
    assert got.startswith(b"HTTP/1.1 200") and b"abc" in got and b"def" in got


def test_a_stored_response_is_held_to_its_end_since_its_id_opens_it(
    guarded: Callable[..., Gateway], guard: Any
) -> None:
    events = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        *(
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": each}
            for each in "abc"
        ),
        {"type": "response.completed", "response": {"output": [{"content": [{"type": "output_text", "text": "abc"}]}]}},
    ]
    server = guard(saying(ALLOW, DENY, DENY))
    gateway = guarded(lambda _: stream(*events), rail(server, when="after", window=1))
    apart = ask(gateway, "/v1/responses", input="a", stream=True, store=False)
    assert apart.status_code == 200 and "resp_1" in apart.text and "content_refused" in apart.text
    refused = ask(gateway, "/v1/responses", input="a", stream=True)
    assert "resp_1" not in refused.text and "It has a secret" in refusal(refused)
    assert server.asked[-1].body["text"] == "abc" and server.asked[-1].body["whole"]


@pytest.mark.parametrize(
    "script",
    [
        lambda _: stream(text_chunk("a"), b"data: {\n\n", "[DONE]"),
        lambda _: answer(b'{"choices": ['),
        lambda _: [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"],
    ],
)
def test_an_answer_that_cannot_be_read_is_one_that_was_not_looked_at(
    guarded: Callable[..., Gateway], guard: Any, caplog: pytest.LogCaptureFixture, script: Script
) -> None:
    gateway = guarded(script, rail(guard(saying(ALLOW)), when="after"))
    refused = ask(gateway, stream=True)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "guardrail_unavailable"
    gateway = guarded(script, rail(guard(saying(ALLOW)), when="after", on_failure="open"))
    with gateway.http.stream(
        "POST", "/v1/completions", json={"model": "scripted"}, headers={"authorization": "Bearer alice"}
    ) as answered:
        assert b"".join(answered.iter_raw()) and answered.status_code == 200
    assert "the answer passes unseen" in caplog.text


def test_what_no_model_has_written_passes(guarded: Callable[..., Gateway], guard: Any) -> None:
    server = guard(saying(DENY))
    refusing = guarded(lambda _: answer(b'{"error": {"message": "no"}}', 422), rail(server, when="after"))
    assert ask(refusing).status_code == 422
    counting = guarded(lambda _: answer(b'{"data": []}'), rail(server, when="after"))
    assert ask(counting, "/v1/embeddings", input="a").json() == {"data": []}
    assert server.asked == []


def test_a_stream_that_breaks_while_it_is_held_is_an_error_and_no_stream(
    guarded: Callable[..., Gateway], guard: Any
) -> None:
    gateway = guarded(lambda _: stream(text_chunk("a"), CLOSE), rail(guard(saying(ALLOW)), when="after"))
    broken = ask(gateway, stream=True)
    assert broken.status_code == 502 and broken.json()["error"]["code"] == "replica_broken"


def test_only_what_passed_is_given_again(gateway: Start, guard: Any) -> None:
    server, second = guard(saying(DENY, ALLOW)), guard(saying(ALLOW))
    alice = Tenant(name="alice", answer_cache_seconds=60)
    keys = Keyring([Key(alice, hashlib.sha256(b"alice").digest())])
    rails = (rail(server, when="after"), rail(second, "second"))
    started = gateway(whole, keys=keys, guardrail=rails, answers=OwnAnswers(10**6))
    assert [ask(started).status_code for _ in range(3)] == [400, 200, 200]
    assert started.asked == [2] and len(server.asked) == 2 and len(second.asked) == 3


def test_the_key_that_it_wants(guarded: Callable[..., Gateway], guard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = guard(saying(ALLOW))
    with pytest.raises(ConfigurationError, match="RAIL_KEY is not in the environment; set it to the API key of the"):
        GuardrailClient(rail(server, key_variable="RAIL_KEY"))
    monkeypatch.setenv("RAIL_KEY", "k")
    assert ask(guarded(whole, rail(server, key_variable="RAIL_KEY"))).status_code == 200
    assert server.asked[0].headers["authorization"] == "Bearer k"
