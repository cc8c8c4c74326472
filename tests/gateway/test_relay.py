"""Requests go to a replica and answers come back, byte by byte; what goes wrong between the two is told."""

import json
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.conftest import Start
from penstock.gateway import watch
from penstock.gateway.options import HoldOptions
from support.http_server import free_port
from support.scripted_http import CLOSE, Received, Step, answer, stream, text_chunk, whole_answer
from support.waiting import PATIENCE, until


def refusing(status: int) -> object:
    return lambda _request: answer(b'{"error": {"message": "no"}}', status)


def head_only(_request: Received) -> list[Step]:
    return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", CLOSE]


def closing(_request: Received) -> list[Step]:
    return [CLOSE]


def broken_stream(_request: Received) -> list[Step]:
    return stream(text_chunk("one "), text_chunk("two "), CLOSE)


def test_an_answer_is_passed_on_as_it_is(gateway: Start) -> None:
    body = '{"text": "wörld", "n": [1,2]}'.encode()
    started = gateway(lambda _request: answer(body))
    response = started.complete(max_tokens=3)
    assert (response.status_code, response.content) == (200, body)
    assert response.headers["x-penstock-replica"] == started.servers[0].base
    [request] = started.servers[0].asked
    assert request.body == {"model": "scripted", "prompt": "the fox", "max_tokens": 3}
    started.wait_until_empty()


def test_a_stream_is_passed_on_as_it_is(gateway: Start) -> None:
    started = gateway(whole_answer)
    response = started.complete(max_tokens=50, stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    with httpx.Client(base_url=started.servers[0].base) as direct:
        again = direct.post(
            "/v1/completions", json={"model": "scripted", "prompt": "the fox", "max_tokens": 50, "stream": True}
        )
    assert response.text == again.text and response.text.count("data: ") == 52


def test_events_are_passed_on_when_they_come(gateway: Start) -> None:
    """The second one is sent only when the client has read the first."""
    read = threading.Event()
    started = gateway(lambda _request: stream(text_chunk("one "), read.is_set, text_chunk("two "), "[DONE]"))
    with started.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        lines = (line for line in response.iter_lines() if line)
        assert "one " in next(lines)
        read.set()
        assert "two " in next(lines)


def test_what_is_of_one_hop_only_stays_there(gateway: Start) -> None:
    started = gateway(
        lambda _request: [
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=5\r\nServer: another\r\n"
            b"X-Request-Id: its-own\r\n"
            b"X-Else: passed\r\n\r\n{}"
        ]
    )
    headers = {"Connection": "keep-alive, X-Mine", "X-Mine": "1", "X-Other": "2", "TE": "trailers", "X-Request-Id": "a"}
    response = started.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    [request] = started.servers[0].asked
    assert request.headers["x-other"] == "2" and request.headers["host"] == urlsplit(started.servers[0].base).netloc
    assert not {"x-mine", "te", "connection"} & request.headers.keys()
    # The gateway's own, by which the replica's account of it is found.
    assert [request.headers["x-request-id"]] == response.headers.get_list("x-request-id")
    assert response.headers["x-else"] == "passed" and "keep-alive" not in response.headers
    assert response.headers.get_list("x-request-id") != ["its-own"]


def test_connections_are_used_again(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each further look at the replica would make connections of its own, which requests may use.
    monkeypatch.setattr(watch, "LOOK_SECONDS", PATIENCE)
    started = gateway(whole_answer)
    for _ in range(20):
        assert started.complete(max_tokens=2).status_code == 200
    assert started.servers[0].connections <= 3


def test_a_replica_is_told_when_the_client_leaves(gateway: Start) -> None:
    started = gateway(lambda _request: stream(text_chunk("one "), lambda: False))
    with started.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        next(response.iter_lines())
    until(lambda: started.servers[0].left == 1)
    started.wait_until_empty()


def test_a_replica_is_told_when_the_client_leaves_before_there_is_an_answer(gateway: Start) -> None:
    started = gateway(lambda _request: [lambda: False])
    address = urlsplit(started.url)
    body = b'{"prompt": "x"}'
    with socket.create_connection((address.hostname, address.port)) as client:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        until(lambda: started.asked == [1])
    until(lambda: started.servers[0].left == 1)
    started.wait_until_empty()


@pytest.mark.parametrize(
    "bad", [refusing(503), refusing(502), refusing(500), closing, head_only, lambda _: [b"\0garbage\r\n\r\n"]]
)
def test_what_did_not_begin_is_done_elsewhere(gateway: Start, bad: object) -> None:
    started = gateway(bad, whole_answer)
    for _ in range(4):
        assert started.complete(max_tokens=2, stream=True).status_code == 200
    assert started.asked[1] == 4 and started.asked[0] >= 1
    started.wait_until_empty()


def test_what_the_last_replica_says_is_passed_on(gateway: Start) -> None:
    started = gateway(refusing(503), refusing(503))
    response = started.complete()
    assert response.status_code == 503 and response.json() == {"error": {"message": "no"}}
    # Once, or once more where a connection was used again, which may have been closed meanwhile.
    assert set(started.asked) <= {1, 2}


@pytest.mark.parametrize("status", [400, 404, 422, 429, 504])
def test_other_answers_are_the_clients(gateway: Start, status: int) -> None:
    """Another replica would say the same, or has no more right to be asked."""
    started = gateway(refusing(status), refusing(status))
    assert started.complete().status_code == status
    assert sum(started.asked) == 1


def test_when_nobody_answers_one_sentence_says_why(gateway: Start) -> None:
    started = gateway(closing, closing)
    response = started.complete()
    assert response.status_code == 502
    assert (
        response.json()["error"]["code"] == "replica_broken"
        and "connection broke" in response.json()["error"]["message"]
    )
    # Three tries, the last at the first one that was asked. Each is sent once, or once more where a connection was used
    # again, which may have been closed meanwhile.
    fewer, more = sorted(started.asked)
    assert fewer in (1, 2) and more in (2, 3, 4)


@pytest.mark.parametrize(
    ("path", "body", "is_tei"),
    [
        ("/embed", {"inputs": "a"}, True),
        ("/predict", {"inputs": "a"}, True),
        ("/rerank", {"query": "a", "texts": ["b"]}, True),
        ("/rerank", {"query": "a", "documents": ["b"]}, False),
        ("/v1/rerank", {"query": "a", "texts": ["b"]}, False),
    ],
)
def test_errors_have_the_form_of_the_request(gateway: Start, path: str, body: object, is_tei: bool) -> None:
    response = gateway(closing).http.post(path, json=body)
    assert response.status_code == 502
    if is_tei:
        assert response.json()["error_type"] == "Backend" and "connection broke" in response.json()["error"]
    else:
        assert response.json()["error"]["code"] == "replica_broken"


@pytest.mark.parametrize(
    ("path", "last"),
    [("/v1/completions", "data: [DONE]"), ("/v1/messages", "event: error")],
)
def test_a_stream_that_breaks_ends_with_an_error(gateway: Start, path: str, last: str) -> None:
    started = gateway(broken_stream, broken_stream)
    response = started.http.post(path, json={"prompt": "x", "stream": True})
    events = response.text.strip().split("\n\n")
    assert "one " in events[0] and "two " in events[1]
    assert any(event.startswith(last) for event in events[2:])
    [told] = [event for event in events[2:] if '"error"' in event]
    error = json.loads(told.partition("data: ")[2])["error"]
    assert "connection broke" in error["message"]
    # What was begun is not begun again.
    assert sum(started.asked) == 1
    started.wait_until_empty()


def test_half_an_object_is_no_answer(gateway: Start) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    started = gateway(lambda _request: [head + b'{"half": ', CLOSE])
    with pytest.raises(httpx.RemoteProtocolError):
        started.complete()
    started.wait_until_empty()


def test_a_client_that_does_not_read_holds_its_replica_up(gateway: Start) -> None:
    """And not the gateway's memory."""
    piece, sent = b"data: " + b"x" * 65_000 + b"\n\n", [0]

    def script(_request: Received) -> list[Step]:
        def count() -> bool:
            sent[0] += 1
            return True

        return stream(*[step for _ in range(1000) for step in (piece, count)], "[DONE]")

    started = gateway(script)
    with started.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        parts = response.iter_raw()
        total = len(next(parts))
        before = -1
        while before != sent[0]:
            before = sent[0]
            # Long enough for an unbounded relay to have read more.
            threading.Event().wait(0.3)
        assert sent[0] < 500
        total += sum(map(len, parts))
    assert total == 1000 * len(piece) + len(b"data: [DONE]\n\n")


def test_a_model_that_is_expected_is_not_unknown_while_no_replica_has_it(gateway: Start) -> None:
    """Its requests wait as long as they may."""
    started = gateway(whole_answer, expect=("late",), hold=HoldOptions(seconds=0.01))
    assert [each["id"] for each in started.http.get("/v1/models").json()["data"]] == ["scripted", "late"]
    assert started.complete(model="unknown", max_tokens=1).status_code == 404
    asked = started.complete(model="late", max_tokens=1)
    assert asked.status_code == 503 and "which is expected to come" in asked.json()["error"]["message"]


def test_models_are_those_of_all_replicas(gateway: Start) -> None:
    started = gateway(whole_answer, whole_answer)
    assert [model["id"] for model in started.http.get("/v1/models").json()["data"]] == ["scripted"]
    response = started.complete(model="another")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "No replica has the model 'another'; there are scripted."
    assert started.asked == [0, 0]


def test_while_nobody_is_ready(gateway: Start) -> None:
    started = gateway(unheard=(f"http://127.0.0.1:{free_port()}",), hold=HoldOptions(seconds=0))
    until(lambda: "cannot be reached" in started.replicas.all[0].why)
    response = started.complete()
    assert response.status_code == 503 and "retry-after" in response.headers
    message = response.json()["error"]["message"]
    assert message.startswith("No replica can answer now: http://127.0.0.1:") and "cannot be reached" in message
    assert started.http.get("/health").status_code == 503 and started.http.get("/health/live").status_code == 200


def test_a_body_that_is_no_object(gateway: Start) -> None:
    started = gateway(whole_answer)
    for body in (b"[1]", b"{", b'{"model": 3}'):
        response = started.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400 and response.json()["error"]["message"].startswith(
            "The body cannot be read: "
        )
    assert started.http.post("/v1/completions", content=b"a=b").status_code == 415
    assert started.asked == [0]


def test_what_is_asked_when_the_replica_is_slow_to_connect_is_bounded(gateway: Start) -> None:
    """One that takes no connection is passed by."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        started = gateway(whole_answer, unheard=(f"http://127.0.0.1:{full.getsockname()[1]}",))
        for _ in range(3):
            assert started.complete(max_tokens=1).status_code == 200
