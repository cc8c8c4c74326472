"""Bounded contexts through all layers: each dialect, each policy, what usage says, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from penstock import LLM, KVPolicy, SamplingParams
from penstock.core.errors import InvalidParameter
from penstock.kernels.cpu.native import OBSTACLE
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

SYSTEM = "Answer in one word."
TEXT = "The quick brown fox jumps over the lazy dog and runs away into the woods. " * 20
POLICIES: dict[str, dict[str, Any]] = {
    "window": {"type": "window", "tokens": 64},
    "h2o": {"type": "h2o", "tokens": 64, "recent": 16},
    "scissorhands": {"type": "scissorhands", "tokens": 64, "recent": 16, "patience": 8},
    "snapkv": {"type": "snapkv", "tokens": 64, "recent": 16},
}
COMPLETION: dict[str, Any] = {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
TURNS = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TEXT}]
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 8},
    "/v1/responses": {"instructions": SYSTEM, "input": TEXT, "max_output_tokens": 8, "store": False},
    "/v1/messages": {"system": SYSTEM, "messages": TURNS[1:], "max_tokens": 8},
}


@pytest.fixture(scope="module")
def bounding() -> Iterator[RunningServer]:
    with serving(None, "--threads", "1", "--speculative", "ngram", "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="module")
def http(bounding: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=bounding.base, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("haiku", threads=1, speculative="off", kv_policy="window:64")


def told(answer: httpx.Response) -> dict[str, Any]:
    """What usage says of the context."""
    assert answer.status_code == 200, answer.text
    policy: dict[str, Any] = answer.json()["usage"]["kv_policy"]
    return policy


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("kind", POLICIES)
def test_what_is_dropped_is_told(http: httpx.Client, path: str, kind: str) -> None:
    protect = {} if path == "/v1/completions" else {"protect": "none"}
    body = {**DIALECTS[path], "kv_policy": {**POLICIES[kind], **protect}}
    policy = told(http.post(path, json=body))
    assert policy["type"] == kind and policy["dropped_tokens"] > 0 and policy["exact"] is False
    # Whole blocks are.
    assert policy["dropped_tokens"] % 16 == 0


@pytest.mark.parametrize("path", DIALECTS)
def test_streams_tell_it_with_their_usage(http: httpx.Client, path: str) -> None:
    options = {"stream_options": {"include_usage": True}} if "completions" in path else {}
    body = {**DIALECTS[path], "kv_policy": {**POLICIES["h2o"], "tokens": 112}, "stream": True, **options}
    found = []
    for line in http.post(path, json=body).text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or (event.get("response") or event.get("message") or {}).get("usage")
            found += [usage] if usage else []
    policy = found[-1]["kv_policy"]
    assert policy["type"] == "h2o" and policy["dropped_tokens"] > 0 and policy["exact"] is False


@pytest.mark.parametrize("kind", POLICIES)
def test_an_answer_without_a_loss_is_exact(http: httpx.Client, kind: str) -> None:
    body = {**COMPLETION, "prompt": "The sky is", "max_tokens": 40}
    bounded = http.post("/v1/completions", json={**body, "kv_policy": POLICIES[kind]})
    assert told(bounded) == {"type": kind, "dropped_tokens": 0, "exact": True}
    assert bounded.json()["choices"][0]["text"] == http.post("/v1/completions", json=body).json()["choices"][0]["text"]


def test_a_window_goes_on_beyond_the_context(http: httpx.Client) -> None:
    context = http.get("/v1/models").json()["data"][0]["max_model_len"]
    body = {**COMPLETION, "prompt": "The sky is", "max_tokens": context + 100}
    answer = http.post("/v1/completions", json={**body, "kv_policy": POLICIES["window"]})
    assert told(answer)["dropped_tokens"] > context - 100
    assert answer.json()["usage"]["completion_tokens"] == context + 100
    long = http.post("/v1/completions", json={**COMPLETION, "prompt": TEXT * 3, "kv_policy": POLICIES["window"]})
    assert long.status_code == 200 and long.json()["usage"]["prompt_tokens"] > context
    assert http.post("/v1/completions", json={**COMPLETION, "prompt": TEXT * 3}).status_code == 400


def test_nothing_of_what_follows_a_loss_is_shared(http: httpx.Client) -> None:
    """The same prompt is computed whole, from what was published before."""
    prompt = f"This has not been sent before. {TEXT}"
    body = {**COMPLETION, "prompt": prompt, "temperature": 0}
    assert told(http.post("/v1/completions", json={**body, "kv_policy": POLICIES["h2o"]}))["dropped_tokens"] > 0
    first = http.post("/v1/completions", json=body).json()
    again = http.post("/v1/completions", json={**body, "cache_salt": "another"}).json()
    assert first["choices"][0]["text"] == again["choices"][0]["text"]


@pytest.mark.parametrize(
    ("policy", "further", "says"),
    [
        ({"type": "window", "tokens": 8}, {}, "8 tokens are less than a KV block, which has 16 and is dropped whole"),
        ({"type": "window", "tokens": 64, "sinks": 64}, {}, "64 sinks, which are never dropped, leave nothing"),
        ({"type": "window", "tokens": 47}, {}, "47 tokens cannot hold 16 sinks and two KV blocks of 16"),
        ({"type": "h2o", "tokens": 64}, {}, "64 tokens cannot hold 16 sinks, 128 recent tokens and two KV blocks"),
        ({"type": "h2o", "tokens": 64, "recent": 8}, {}, "8 is less than a KV block; give at least 16"),
        ({"type": "h2o", "tokens": 10**6}, {}, "1000000 tokens are more than this server's context of"),
        ({"type": "h2o", "tokens": 64, "recent": 16}, {"n": 2}, "one sample, and n is 2"),
        ({"type": "h2o", "tokens": 64, "recent": "16"}, {}, "expected int or null, got str"),
        ({"type": "h2o", "tokens": 64, "size": 16}, {}, "is not a field of this request"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(
    http: httpx.Client, policy: dict[str, Any], further: dict[str, Any], says: str
) -> None:
    answer = http.post("/v1/completions", json={**COMPLETION, "kv_policy": policy, **further})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"].startswith("kv_policy") and says in error["message"]


def test_beside_a_model_that_drafts(bundled: RunningServer) -> None:
    """Nothing is drafted for a bounded context."""
    answer = httpx.post(
        f"{bundled.base}/v1/completions", json={**COMPLETION, "kv_policy": POLICIES["h2o"]}, timeout=PATIENCE
    )
    assert answer.status_code == 200
    assert answer.json()["usage"]["kv_policy"]["dropped_tokens"] > 0


def test_the_account_and_the_metrics_say_what_was_dropped(bounding: RunningServer, http: httpx.Client) -> None:
    before = bounding.metric("penstock_kv_dropped_tokens_total")
    answer = http.post("/v1/completions", json={**COMPLETION, "kv_policy": POLICIES["window"]})
    dropped = told(answer)["dropped_tokens"]
    bounding.wait_for("penstock_requests_in_flight", 0)
    assert bounding.metric("penstock_kv_dropped_tokens_total") == before + dropped
    account = http.get(f"/v1/requests/{answer.headers['x-request-id']}/explain").json()
    assert account["context"] == {"type": "window", "tokens": 64, "dropped_tokens": dropped, "exact": False}


def test_a_servers_policy_holds_for_requests_that_say_nothing() -> None:
    with serving(None, "--threads", "1", "--kv-policy", "h2o:128,recent=16") as running:
        for path, body in DIALECTS.items():
            answer = httpx.post(running.base + path, json=body, timeout=PATIENCE)
            assert told(answer)["type"] == "h2o" and told(answer)["dropped_tokens"] > 0
            whole = httpx.post(running.base + path, json={**body, "kv_policy": "full"}, timeout=PATIENCE)
            assert whole.status_code == 200 and "kv_policy" not in whole.json()["usage"]


def test_calls_of_python_say_what_was_dropped(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, temperature=0.0)
    policy = KVPolicy(kind="h2o", tokens=64, recent=16)
    [default], [asked] = llm.generate(TEXT, params), llm.generate(TEXT, params, kv_policy=policy)
    [whole], [short] = llm.generate(TEXT, params, kv_policy="full"), llm.generate("The sky is", params)
    assert default.dropped_tokens > 0 and asked.dropped_tokens > 0
    assert whole.dropped_tokens == short.dropped_tokens == 0


def test_python_never_drops_the_system_messages_of_a_chat(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, temperature=0.0)
    [answer] = llm.chat(TURNS, params)
    assert answer.dropped_tokens > 0
    long = [{"role": "system", "content": TEXT}, {"role": "user", "content": "Hello"}]
    with pytest.raises(InvalidParameter, match="its system messages and tools, which are never dropped, have"):
        llm.chat(long, params)
    [whole] = llm.chat(long, params, kv_policy="full")
    assert whole.dropped_tokens == 0


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (KVPolicy(kind="h2o", tokens=64), "128 recent tokens"),
        (KVPolicy(kind="h2o", tokens=True), "must be an integer"),
        ("window:64", "must be a KVPolicy"),
    ],
)
def test_what_is_no_policy_is_refused_in_python(llm: LLM, policy: Any, says: str) -> None:
    with pytest.raises(InvalidParameter, match=says) as caught:
        llm.generate(TEXT, SamplingParams(max_tokens=4), kv_policy=policy)
    assert str(caught.value.param).startswith("kv_policy")
