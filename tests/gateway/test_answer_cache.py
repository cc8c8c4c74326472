"""A gateway gives an answer again, where its tenant lets it, and to nobody else."""

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.conftest import ANSWER, Gateway, Start, bearer
from penstock.access.allowances import OwnAllowances
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Bounds, Level, Tenant
from penstock.cli.explain import run_explain
from penstock.gateway.answers import AnswerCacheOptions, OwnAnswers
from penstock.gateway.meters import MINUTE
from penstock.metering.meters import Meter
from support.scripted_http import CLOSE, Received, Script, Step, answer, stream, text_chunk, usage_chunk
from support.waiting import until

MOST = 1024 * 1024


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def caching(gateway: Start, clock: Clock) -> Callable[..., Gateway]:
    """Starts a gateway with the keys "alice" and "bob", whose answers are kept for a minute, and "carol"."""

    def start(script: Script, levels: tuple[Level, ...] = (), **options: Any) -> Gateway:
        tenants = [Tenant(name=name, answer_cache_seconds=60, levels=levels) for name in ("alice", "bob")]
        tenants.append(Tenant(name="carol"))
        keys = Keyring([Key(tenant, hashlib.sha256(tenant.name.encode()).digest()) for tenant in tenants])
        return gateway(script, keys=keys, answers=OwnAnswers(MOST, clock), **options)

    return start


def ask(gateway: Gateway, key: str = "alice", path: str = "/v1/completions", headers: Any = (), **fields: Any) -> Any:
    body = {"model": "scripted", "prompt": "the fox", **fields}
    return gateway.http.post(path, json=body, headers={**bearer(key), **dict(headers)})


def numbered() -> Script:
    """Each answer is another one."""
    numbers = itertools.count(1)

    def script(_request: Received) -> list[Step]:
        usage = {"prompt_tokens": 7, "completion_tokens": 5}
        body = json.dumps({"choices": [{"text": f"number {next(numbers)}"}], "usage": usage})
        return answer(body.encode())

    return script


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def said(response: httpx.Response) -> tuple[str | None, str | None]:
    return response.headers.get("x-penstock-cache"), response.headers.get("age")


def counts(gateway: Gateway) -> dict[str, int]:
    return {name: count for name, count in gateway.dispatch.answers.counts.items() if count}


def test_the_same_request_gets_the_same_answer_until_it_is_too_old(
    caching: Callable[..., Gateway], clock: Clock
) -> None:
    gateway = caching(numbered())
    first = ask(gateway)
    assert text(first) == "number 1" and said(first) == ("miss", None)
    clock.now += 59
    again = ask(gateway)
    assert again.content == first.content and said(again) == ("hit", "59")
    assert again.headers["content-type"] == first.headers["content-type"]
    assert "x-penstock-replica" in first.headers and "x-penstock-replica" not in again.headers
    clock.now += 1
    assert text(ask(gateway)) == "number 2"
    assert gateway.asked == [2] and counts(gateway) == {"hit": 1, "miss": 2}


def test_no_other_tenant_gets_it_nor_another_salt(caching: Callable[..., Gateway]) -> None:
    gateway = caching(numbered())
    assert text(ask(gateway, cache_salt="one")) == "number 1"
    assert text(ask(gateway, "bob", cache_salt="one")) == "number 2"
    assert text(ask(gateway, cache_salt="two")) == "number 3"
    assert text(ask(gateway)) == "number 4"
    # Who has not asked for it gets a new one each time, and is told nothing of a cache.
    assert [text(ask(gateway, "carol", cache_salt="one")) for _ in range(2)] == ["number 5", "number 6"]
    assert said(ask(gateway, "carol")) == (None, None)
    assert (
        text(ask(gateway, cache_salt="one")) == "number 1" and text(ask(gateway, "bob", cache_salt="one")) == "number 2"
    )
    assert counts(gateway) == {"hit": 2, "miss": 4}


def test_a_request_can_want_an_answer_of_its_own(caching: Callable[..., Gateway], clock: Clock) -> None:
    gateway = caching(numbered())
    assert text(ask(gateway)) == "number 1"
    new = ask(gateway, headers={"cache-control": "no-store"})
    assert text(new) == "number 2" and said(new) == ("bypass", None)
    assert text(ask(gateway)) == "number 1"
    # This one is kept instead.
    assert text(ask(gateway, headers={"cache-control": "no-cache"})) == "number 3"
    clock.now += 10
    assert text(ask(gateway, headers={"cache-control": "max-age=11"})) == "number 3"
    assert text(ask(gateway, headers={"cache-control": "max-age=10"})) == "number 4"
    stored = ask(gateway, path="/v1/responses", input="the fox")
    assert said(stored) == ("bypass", None)
    way = gateway.http.get("/v1/requests", headers=bearer("alice")).json()["data"][0]
    assert way["cached"] == {"lookup": "bypass", "why": "its answer is stored by a replica; store is not false"}


def test_a_stream_is_given_again_as_one(caching: Callable[..., Gateway]) -> None:
    gateway = caching(lambda _: stream(text_chunk("a"), text_chunk("b", "stop"), usage_chunk(7, 2), "[DONE]"))
    first = ask(gateway, stream=True)
    again = ask(gateway, stream=True)
    assert said(again)[0] == "hit" and again.headers["content-type"] == "text/event-stream"
    assert again.content == first.content and again.text.endswith("data: [DONE]\n\n")
    # A whole answer is not a stream.
    assert said(ask(gateway))[0] == "miss"


@pytest.mark.parametrize(
    "script",
    [
        lambda _: stream(text_chunk("a"), CLOSE),
        lambda _: stream(text_chunk("a"), text_chunk("b")),
        lambda _: stream(text_chunk("a"), {"error": {"message": "broke"}}, "[DONE]"),
        lambda _: answer(b'{"error": {"message": "no"}}', 400),
        lambda _: answer(b'{"choices": [], "error": {"message": "no"}}'),
        lambda _: answer(ANSWER[:-1]),
        lambda _: [b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\n{}"],
        lambda _: [b"HTTP/1.1 200 OK\r\nCache-Control: private, no-store\r\nContent-Length: 2\r\n\r\n{}"],
        lambda _: [b"HTTP/1.1 200 OK\r\nVary: X-Mood\r\nContent-Length: 2\r\n\r\n{}"],
        lambda _: answer(b'{"choices": [], "text": "' + b"x" * 5000 + b'"}'),
    ],
)
def test_what_is_not_whole_or_not_for_others_is_not_kept(caching: Callable[..., Gateway], script: Script) -> None:
    gateway = caching(script, answer_cache=AnswerCacheOptions(max_answer_bytes=5000))
    for _ in range(2):
        assert said(ask(gateway, stream=True))[0] == "miss"
    assert gateway.dispatch.answers.answers.size == 0 and gateway.asked == [2]


def test_of_a_stream_that_is_left_nothing_is_kept(caching: Callable[..., Gateway]) -> None:
    going = list[bool]()
    gateway = caching(lambda _: stream(text_chunk("a"), lambda: bool(going), text_chunk("b", "stop"), "[DONE]"))
    body = {"model": "scripted", "prompt": "the fox", "stream": True}
    with gateway.http.stream("POST", "/v1/completions", json=body, headers=bearer("alice")) as left:
        # One that nobody holds closes its connection.
        lines = left.iter_lines()
        assert '"a"' in next(lines)
        # What has come is held, in the room that there is for that.
        assert gateway.dispatch.answers._coming > 0
    until(lambda: gateway.servers[0].left == 1)
    until(lambda: gateway.dispatch.figures.requests["cancelled"] == 1)
    assert gateway.dispatch.answers._coming == 0 and gateway.dispatch.answers.answers.size == 0
    going.append(True)
    assert said(ask(gateway, stream=True))[0] == "miss" and said(ask(gateway, stream=True))[0] == "hit"


def test_what_comes_at_the_moment_has_a_bound(caching: Callable[..., Gateway]) -> None:
    gateway = caching(numbered(), answer_cache=AnswerCacheOptions(max_bytes=100, max_answer_bytes=50))
    assert [said(ask(gateway))[0] for _ in range(2)] == ["miss", "miss"]
    assert gateway.dispatch.answers.room_for(25) and not gateway.dispatch.answers.room_for(1)


def test_a_request_counts_and_tokens_do_not(caching: Callable[..., Gateway]) -> None:
    levels = (Level("project/p", Bounds(requests_per_minute=3, tokens_per_minute=15)),)
    allowances = OwnAllowances(Clock())
    gateway = caching(lambda _: answer(ANSWER), levels, allowances=allowances)
    assert said(ask(gateway, max_tokens=5))[0] == "miss"
    until(lambda: allowances.used(Meter("project/p", "tokens", 15, MINUTE)) == 12)
    # There is no room for another answer, but this one has been given.
    other = ask(gateway, max_tokens=5, prompt="the cat")
    assert other.status_code == 429 and "15 tokens in a minute" in other.json()["error"]["message"]
    again = ask(gateway, max_tokens=5)
    assert said(again)[0] == "hit" and again.headers["x-ratelimit-remaining-requests"] == "1"
    until(lambda: gateway.dispatch.figures.requests["cached"] == 1)
    assert allowances.used(Meter("project/p", "tokens", 15, MINUTE)) == 12
    assert said(ask(gateway, max_tokens=5))[0] == "hit"
    refused = ask(gateway, max_tokens=5)
    assert refused.status_code == 429 and "3 requests in a minute" in refused.json()["error"]["message"]


def test_metrics_and_the_account_say_it(caching: Callable[..., Gateway], capsys: pytest.CaptureFixture[str]) -> None:
    gateway = caching(numbered())
    ask(gateway)
    again = ask(gateway)
    until(lambda: gateway.dispatch.figures.requests["cached"] == 1)
    metrics = gateway.http.get("/metrics", headers=bearer("alice")).text
    assert 'penstock_gateway_answers_total{lookup="hit"} 1.0\n' in metrics
    assert 'penstock_gateway_answers_total{lookup="miss"} 1.0\n' in metrics
    assert 'penstock_gateway_requests_total{outcome="cached"} 1.0\n' in metrics
    assert f"penstock_gateway_answer_bytes {gateway.dispatch.answers.answers.size}.0\n" in metrics
    identifier = again.headers["x-request-id"]
    told = gateway.http.get(f"/v1/requests/{identifier}/explain", headers=bearer("alice")).json()["gateway"]
    assert told["outcome"] == "cached" and told["cached"] == {"lookup": "hit", "age": 0.0} and "tries" not in told
    run_explain(identifier, gateway.url, "alice", None, slowest=False, limit=5, as_json=False)
    assert "it was given an answer of the answer cache" in capsys.readouterr().out
