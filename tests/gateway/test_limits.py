"""What tenants may use by the minute: reserved before a request is sent, and settled whatever becomes of it."""

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.conftest import Gateway, Start
from penstock.access.allowances import OwnAllowances
from penstock.access.errors import BudgetExceeded
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Bounds, Level, Tenant
from penstock.gateway.limits import Limits
from penstock.gateway.meters import MINUTE
from penstock.gateway.options import HoldOptions
from penstock.metering.meters import Meter
from penstock.metering.prices import Price, Prices
from support.scripted_http import CLOSE, Received, Script, Step, answer, stream, text_chunk, usage_chunk
from support.waiting import until

ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}).encode()


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limited(gateway: Start, clock: Clock) -> Callable[..., Gateway]:
    """Starts a gateway with a key "alice" that has limits, and a key "bob" that has none."""

    def start(script: Script, *, options: dict[str, Any] | None = None, **limits: int) -> Gateway:
        levels = (Level("key/alice", Bounds(**limits)),)
        tenants = (Tenant(name="alice", levels=levels), Tenant(name="bob"))
        keys = Keyring([Key(tenant, hashlib.sha256(tenant.name.encode()).digest()) for tenant in tenants])
        return gateway(script, keys=keys, allowances=OwnAllowances(clock), **(options or {}))

    return start


def ask(gateway: Gateway, key: str = "alice", path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "prompt": "the fox", **fields}
    return gateway.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})


def used(gateway: Gateway, unit: Any) -> int:
    """What the tenant's meter says once nothing is under way."""
    allowances = gateway.dispatch.limits.allowances
    assert isinstance(allowances, OwnAllowances)
    seconds = None if unit == "running" else MINUTE
    # An answer can be at its client before its end is noted.
    ways = gateway.dispatch.ways
    until(lambda: all(way.outcome is not None for way in ways.latest("alice", 1000, slowest=False)))
    return allowances.used(Meter("key/alice", unit, 1, seconds))


def test_requests_of_a_minute(limited: Callable[..., Gateway], clock: Clock) -> None:
    gateway = limited(lambda _request: answer(ANSWER), requests_per_minute=3)
    left = [ask(gateway).headers["x-ratelimit-remaining-requests"] for _ in range(3)]
    assert left == ["2", "1", "0"]
    clock.now += 20
    refused = ask(gateway)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.json()["error"]["message"] == (
        "This API key has 3 requests in a minute, of which 3 are used; try again in 41 s."
    )
    assert refused.headers["retry-after"] == "41"
    assert refused.headers["x-ratelimit-limit-requests"] == "3"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "60.5s"
    # Others are not concerned, and what was refused was not sent.
    other = ask(gateway, "bob")
    assert other.status_code == 200 and not any(name.startswith("x-ratelimit") for name in other.headers)
    assert gateway.asked == [4]
    clock.now += 41
    assert ask(gateway).status_code == 200


def counted(*events: Any, used: tuple[int, int, int]) -> list[Step]:
    """A stream of a server of Penstock, which tells what it has used at its end."""
    steps = stream(*events, b": penstock used %d,%d,%d\n\n" % used)
    return [steps[0].replace(b"\r\n\r\n", b"\r\nX-Penstock-Used: events\r\n\r\n"), *steps[1:]]  # type: ignore[union-attr]


MESSAGES = (
    {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4}}},
    {"type": "content_block_delta", "delta": {"text": "one"}},
    {"type": "message_delta", "usage": {"output_tokens": 6}},
)
RESPONSES = (
    {"type": "response.output_text.delta", "delta": "one"},
    {"type": "response.completed", "response": {"usage": {"input_tokens": 8, "output_tokens": 3}}},
)


@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        (lambda _request: answer(ANSWER), 12),
        (lambda _request: answer(json.dumps({"usage": {"input_tokens": 3, "output_tokens": 4}}).encode()), 7),
        (lambda _request: stream(text_chunk("a"), text_chunk("b"), usage_chunk(30, 2), "[DONE]"), 32),
        (lambda _request: stream(*MESSAGES), 19),
        (lambda _request: stream(*RESPONSES), 11),
        (lambda _request: counted(text_chunk("a"), "[DONE]", used=(20, 5, 8)), 28),
        (lambda _request: [answer(b"{}")[0].replace(b"\r\n\r\n", b"\r\nX-Penstock-Used: 21,0,9\r\n\r\n")], 30),
        # Nothing says it: the prompt has 2 tokens by its length, and each event one.
        (lambda _request: stream(text_chunk("a"), text_chunk("b"), text_chunk("c"), "[DONE]"), 5),
        (lambda _request: answer(b"x" * 40), 12),
        (lambda _request: answer(b'{"usage": "none"}'), 6),
        # It was no answer.
        (lambda _request: answer(b'{"error": {}, "usage": {"prompt_tokens": 7}}', 400), 0),
    ],
)
def test_tokens_that_were_used_are_counted(limited: Callable[..., Gateway], script: Script, tokens: int) -> None:
    gateway = limited(script, tokens_per_minute=10_000)
    response = ask(gateway, max_tokens=500)
    # The prompt has 2 tokens by its length; those of the answer are reserved.
    assert response.headers["x-ratelimit-limit-tokens"] == "10000"
    assert response.headers["x-ratelimit-remaining-tokens"] == str(10_000 - 502)
    assert used(gateway, "tokens") == tokens
    assert ": penstock" not in response.text and "x-penstock-used" not in response.headers


def test_tokens_are_reserved_before_they_are_used(limited: Callable[..., Gateway], clock: Clock) -> None:
    going = threading.Event()
    gateway = limited(lambda _request: stream(text_chunk("a"), going.is_set, usage_chunk(2, 8)), tokens_per_minute=1000)
    first = threading.Thread(target=lambda: ask(gateway, max_tokens=700))
    first.start()
    until(lambda: gateway.asked == [1])
    refused = ask(gateway, max_tokens=700)
    assert refused.status_code == 429 and refused.headers["retry-after"] == "61"
    assert refused.json()["error"]["message"] == (
        "This API key has 1000 tokens in a minute, of which 514 are used, and this request may take 514; try again "
        "in 61 s."
    )
    going.set()
    first.join()
    until(lambda: used(gateway, "tokens") == 10)
    assert ask(gateway, max_tokens=700).status_code == 200


def test_what_can_never_be_is_said(limited: Callable[..., Gateway]) -> None:
    gateway = limited(lambda _request: answer(ANSWER), tokens_per_minute=100)
    refused = ask(gateway, prompt="fox " * 110)
    assert refused.status_code == 413 and "retry-after" not in refused.headers
    assert refused.json()["error"] == {
        "message": "The prompt has 110 tokens. This API key has 100 in a minute; send a shorter one.",
        "type": "invalid_request_error",
        "param": None,
        "code": "larger_than_limit",
    }
    # An answer may be shorter than expected; what has no answer takes its prompt alone.
    assert ask(gateway, max_tokens=200).headers["x-ratelimit-remaining-tokens"] == "0"
    assert used(gateway, "tokens") == 12
    assert ask(gateway, path="/v1/messages/count_tokens").status_code == 200
    assert ask(gateway, path="/v1/embeddings", input="the fox").headers["x-ratelimit-remaining-tokens"] == "84"


def closing(_request: Received) -> list[Step]:
    return [CLOSE]


def test_what_has_no_answer_gives_its_tokens_back(limited: Callable[..., Gateway]) -> None:
    gateway = limited(closing, requests_per_minute=10, tokens_per_minute=1000)
    assert ask(gateway, max_tokens=500).status_code == 502
    assert used(gateway, "tokens") == 0 and used(gateway, "requests") == 1


def test_what_was_never_sent_is_no_request(limited: Callable[..., Gateway]) -> None:
    nowhere = {"hold": HoldOptions(seconds=0)}
    gateway = limited(lambda _request: answer(ANSWER), options=nowhere, requests_per_minute=10, tokens_per_minute=1000)
    assert ask(gateway, model="another", max_tokens=500).status_code == 404
    assert used(gateway, "tokens") == used(gateway, "requests") == 0


def test_a_client_that_goes_pays_for_what_it_got(limited: Callable[..., Gateway]) -> None:
    gateway = limited(
        lambda _request: stream(text_chunk("a"), text_chunk("b"), lambda: False),
        tokens_per_minute=1000,
        max_concurrent_requests=5,
    )
    headers = {"authorization": "Bearer alice"}
    body = {"model": "scripted", "prompt": "the fox", "stream": True, "max_tokens": 500}
    with gateway.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        lines = response.iter_lines()
        while '"b"' not in next(lines):
            pass
    assert used(gateway, "tokens") == 4


def test_answers_get_the_room_that_earlier_ones_took(limited: Callable[..., Gateway]) -> None:
    """Without a bound in the request."""
    gateway = limited(lambda _request: answer(ANSWER), tokens_per_minute=100_000)
    reserved = []
    for _ in range(60):
        before = used(gateway, "tokens")
        response = ask(gateway)
        reserved.append(100_000 - int(response.headers["x-ratelimit-remaining-tokens"]) - before)
    assert reserved[0] == 514 and 7 <= reserved[-1] < 514


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[1, 2], [3, 4], [5]]}, 3),
        ({"prompt": [1, 2, 3]}, 1),
        # Replicas say what is wrong with these.
        ({"prompt": []}, 1),
        ({"n": "3"}, 1),
    ],
)
def test_all_answers_of_a_request_are_reserved(
    limited: Callable[..., Gateway], fields: dict[str, Any], answers: int
) -> None:
    """`n` of each prompt: each as long as its bound, or as usual without one."""
    gateway = limited(lambda _request: answer(ANSWER), tokens_per_minute=100_000)
    prompt = max(1, len(json.dumps(fields.get("prompt", "the fox"), separators=(",", ":"))) // 4)
    for bound, each in (({}, 512), ({"max_tokens": 100}, 100)):
        before = used(gateway, "tokens")
        left = ask(gateway, **fields, **bound).headers["x-ratelimit-remaining-tokens"]
        assert 100_000 - int(left) - before == prompt + answers * each


def test_what_is_under_way_is_counted_until_it_ends(limited: Callable[..., Gateway]) -> None:
    """However it does: answered, refused by a replica, never sent, broken, left before and after its answer began."""
    went = threading.Event()
    scripts: dict[str, Callable[[], list[Step]]] = {
        "answer": lambda: answer(ANSWER),
        "no": lambda: answer(b"{}", 400),
        "close": lambda: [CLOSE],
        "never": lambda: [lambda: went.set() or False],
        "stream": lambda: stream(text_chunk("a"), lambda: False),
    }
    gateway = limited(
        lambda request: scripts[request.body["user"]](),
        options={"hold": HoldOptions(seconds=0)},
        max_concurrent_requests=1,
        tokens_per_minute=1000,
    )
    headers = {"authorization": "Bearer alice"}
    for user, status in (("answer", 200), ("no", 400), ("close", 502)):
        assert ask(gateway, user=user).status_code == status
        assert used(gateway, "running") == 0
    assert ask(gateway, model="another").status_code == 404
    before = used(gateway, "tokens")
    with socket.create_connection((urlsplit(gateway.url).hostname, urlsplit(gateway.url).port)) as client:
        body = json.dumps({"model": "scripted", "prompt": "the fox", "user": "never"}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer alice"
        )
        client.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        until(went.is_set)
        assert ask(gateway, user="answer").status_code == 429
    # Its prompt was computed, or may have been.
    until(lambda: used(gateway, "running") == 0)
    assert used(gateway, "tokens") == before + 2
    fields = {"model": "scripted", "prompt": "the fox", "user": "stream", "stream": True}
    with gateway.http.stream("POST", "/v1/completions", json=fields, headers=headers) as response:
        next(response.iter_lines())
    until(lambda: used(gateway, "running") == 0)
    assert ask(gateway, user="answer").status_code == 200


def test_calls_without_answers_say_nothing_of_answers(limited: Callable[..., Gateway]) -> None:
    gateway = limited(lambda _request: answer(b'{"usage": {"prompt_tokens": 1}}'), tokens_per_minute=100_000)
    for path in ("/v1/embeddings", "/tokenize", "/v1/messages/count_tokens") * 10:
        ask(gateway, path=path, input="x")
    # Nor do such as were cut off.
    for _ in range(30):
        ask(gateway, max_tokens=0)
    until(lambda: used(gateway, "tokens") > 0)
    assert gateway.dispatch.limits.lengths.expect("alice", None) == 512


def test_what_goes_on_elsewhere_is_counted_once(limited: Callable[..., Gateway]) -> None:
    answers = [[CLOSE], answer(ANSWER)]
    gateway = limited(lambda _request: answers.pop(0), requests_per_minute=9, tokens_per_minute=1000)
    assert ask(gateway).status_code == 200
    assert used(gateway, "requests") == 1 and used(gateway, "tokens") == 12


def test_short_answers_of_before_let_no_long_ones_through_a_budget(clock: Clock) -> None:
    """An answer without a bound may fill the context; what is usual says nothing of what it may cost."""
    prices = Prices([Price(model="m", input=Decimal(1), output=Decimal(2))])
    limits = Limits(OwnAllowances(clock), prices, clock=clock)
    # 2,000 millionths, in billionths.
    tenant = Tenant(name="alice", levels=(Level("key/alice", Bounds(budget_per_day=2_000_000)),))
    for _ in range(100):
        limits.lengths.observe("alice", 1)

    def admitted(most: int | None, context: int) -> bool:
        async def ask() -> bool:
            try:
                return await limits.admit(tenant, "/v1/completions", "m", 10, most, context=context) is not None
            except BudgetExceeded:
                return False

        return asyncio.run(ask())

    assert not admitted(None, 1100), "10 + 2 * 1,090 millionths"
    assert admitted(500, 1100), "10 + 2 * 500 millionths"
    assert not admitted(500, 1100) and admitted(490, 1100)
    # Of a model whose context is not known, the usual length is all that there is.
    assert not admitted(None, 0)
