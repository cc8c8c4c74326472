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


def test_each_token_but_the_last_is_told(http: httpx.Client, engine: ScriptedEngine) -> None:
    response = ask(http, json.dumps(BODY).encode(), track="1")
    assert response.headers["x-penstock-track"] == "1"
    opening, *told = [line[11:] for line in response.text.split("\n") if line.startswith(": penstock ")]
    first = json.loads(next(line for line in response.text.split("\n") if line.startswith("data: "))[6:])
    assert json.loads(opening) == {"id": first["id"], "created": first["created"], "seed": 42}
    assert [int(token) for token in ",".join(told).split(",")] == engine.reply[:2]
    assert response.text.startswith(": penstock ") and response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    "other", [{"stream": False}, {"n": 2}, {"logprobs": 1}, {"echo": True}, {"prompt": [[5], [6]]}]
)
def test_what_nobody_could_go_on_with_is_not_tracked(http: httpx.Client, other: dict[str, Any]) -> None:
    response = ask(http, json.dumps({**BODY, **other}).encode(), track="1")
    assert response.status_code == 200
    assert "x-penstock-track" not in response.headers and ": penstock" not in response.text


def test_without_the_header_nothing_is_told(http: httpx.Client) -> None:
    response = ask(http, json.dumps(BODY).encode())
    assert response.status_code == 200 and ": penstock" not in response.text


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
    for other in ({"stream": False}, {"n": 2}, {"logprobs": 1}):
        response = ask(http, json.dumps({**BODY, **other}).encode() + begun, resume=str(len(begun)))
        assert response.status_code == 400
        assert "only a stream of one answer without log probabilities" in response.json()["error"]["message"]
