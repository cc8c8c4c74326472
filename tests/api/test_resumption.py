"""Streams that say which tokens they hold, and such as go on where another server has stopped."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

BODY = {"prompt": [5, 6, 7], "max_tokens": 3, "stream": True}


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer.table, tokenizer.encode("Hello there", False)[:3])


@pytest.fixture
def http(engine: ScriptedEngine, tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    with running(create_app(engine, tokenizer)) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


def ask(http: httpx.Client, body: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **{f"x-penstock-{name}": value for name, value in headers.items()}}
    return http.post("/v1/completions", content=body, headers=sent)


def comments(response: httpx.Response) -> list[str]:
    return [line[11:] for line in response.text.split("\n") if line.startswith(": penstock ")]


def test_each_token_but_the_last_is_told(http: httpx.Client, engine: ScriptedEngine) -> None:
    response = ask(http, json.dumps(BODY).encode(), track="1")
    assert response.headers["x-penstock-track"] == "1"
    opening, *told = [line for line in comments(response) if not line.startswith("used ")]
    first = json.loads(next(line for line in response.text.split("\n") if line.startswith("data: "))[6:])
    assert json.loads(opening) == {"id": first["id"], "created": first["created"], "seed": 42}
    assert [int(token) for token in ",".join(told).split(",")] == engine.reply[:2]
    assert response.text.startswith(": penstock ")
    assert response.text.endswith("data: [DONE]\n\n: penstock used 3,3,3\n\n")


@pytest.mark.parametrize(
    ("other", "used"),
    [
        ({}, [(3, 3, 1), (3, 3, 3)]),
        ({"n": 2}, [(3, 3, 2), (3, 3, 4), (3, 3, 6), (3, 3, 6)]),
        ({"prompt": [[5], [6, 7]], "max_tokens": 1}, [(3, 1, 1), (3, 3, 2), (3, 3, 2)]),
        ({"stream": False}, [(3, 3, 3)]),
        ({"stream": False, "n": 2, "prompt": [[5], [6, 7]]}, [(3, 3, 12)]),
    ],
)
def test_what_it_has_used_is_told(http: httpx.Client, other: dict[str, Any], used: list[tuple[int, ...]]) -> None:
    response = ask(http, json.dumps({**BODY, **other}).encode(), track="1")
    told = [line[5:] for line in comments(response) if line.startswith("used ")]
    if other.get("stream") is False:
        told = [response.headers["x-penstock-used"]]
    else:
        assert response.headers["x-penstock-used"] == "events"
    assert [tuple(map(int, each.split(","))) for each in told] == used


@pytest.mark.parametrize(
    "other",
    [{"stream": False}, {"n": 2}, {"use_beam_search": True}, {"logprobs": 1}, {"echo": True}, {"prompt": [[5], [6]]}],
)
def test_what_nobody_could_go_on_with_is_not_tracked(http: httpx.Client, other: dict[str, Any]) -> None:
    response = ask(http, json.dumps({**BODY, **other}).encode(), track="1")
    assert response.status_code == 200
    assert "x-penstock-track" not in response.headers
    assert all(line.startswith("used ") for line in comments(response))


def test_without_the_header_nothing_is_told(http: httpx.Client) -> None:
    response = ask(http, json.dumps(BODY).encode())
    assert response.status_code == 200 and ": penstock" not in response.text
    assert "x-penstock-used" not in response.headers


@pytest.mark.parametrize(
    ("begun", "resume", "message"),
    [
        (b"{}", "2", "missing required field `id`"),
        (b"{}", "x", "must be the number of bytes at the end of the body, not 'x'"),
        (b"{}", "0", "must be the number of bytes"),
        (b"{}", "99999", "must be the number of bytes"),
        (b'{"id":"a","created":1,"seed":-1}', "32", "seed: -1 is outside 0.."),
        (b'{"id":"a","created":1,"seed":1,"tokens":["a"]}', "46", "Expected `int`, got `str`"),
    ],
)
def test_what_cannot_be_gone_on_with(http: httpx.Client, begun: bytes, resume: str, message: str) -> None:
    response = ask(http, json.dumps(BODY).encode() + begun, resume=resume)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_only_streams_of_one_answer_go_on(http: httpx.Client) -> None:
    begun = b'{"id":"a","created":1,"seed":1}'
    policy = {"type": "window", "tokens": 64}
    for other in ({"stream": False}, {"n": 2}, {"logprobs": 1}, {"kv_policy": policy}):
        response = ask(http, json.dumps({**BODY, **other}).encode() + begun, resume=str(len(begun)))
        assert response.status_code == 400
        assert "only a stream of one answer, with a whole context" in response.json()["error"]["message"]
