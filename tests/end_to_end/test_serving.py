"""The whole product over HTTP: the openai client, shared prefixes, clients that leave, bad input."""

import asyncio
import contextlib
import json
import socket
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import psutil
import pytest

from support.live_server import RunningServer
from support.waiting import PATIENCE, until


@pytest.fixture
def client(server: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]) -> openai.OpenAI:
    return client_of(server)


def test_chat_streams_what_it_answers_at_once(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "say something"}],
        "max_tokens": 12,
        "temperature": 0.7,
        "seed": 3,
    }
    whole = client.chat.completions.create(**request)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason in ("length", "stop")
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert (chunks[-1].usage.prompt_tokens_details.cached_tokens or 0) >= 16


def test_completions_stream_what_they_answer_at_once(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "tiny-llama", "prompt": ["one", "two"], "max_tokens": 9, "temperature": 0}
    whole = client.completions.create(**request)
    texts = ["", ""]
    for chunk in client.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_models_lists_what_is_served(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny-llama"]
    with pytest.raises(openai.NotFoundError, match="other"):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])


def test_a_common_prefix_is_computed_once(server: RunningServer) -> None:
    # 100 requests at a time, each 500 common tokens and 10 of its own.
    common = [5 + index % 300 for index in range(500)]
    prompts = [[*common, *(10 + (17 * user + index) % 290 for index in range(10))] for user in range(100)]
    before = server.metric("penstock_prefill_tokens_total")

    async def ask(client: httpx.AsyncClient, prompt: list[int]) -> int:
        body = {"prompt": prompt, "max_tokens": 2, "cache_salt": "common", "ignore_eos": True}
        answer = await client.post(server.base + "/v1/completions", json=body)
        answer.raise_for_status()
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def ask_all() -> list[int]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(limits=limits, timeout=PATIENCE) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    cached = asyncio.run(ask_all())
    prefilled = server.metric("penstock_prefill_tokens_total") - before
    # 31 full blocks of the prefix are shared; its last 4 tokens are in a block with the user's own.
    assert sorted(cached)[1:] == [496] * 99
    assert prefilled == 510 + 99 * (510 - 496)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(server: RunningServer, stream: bool) -> None:
    body = json.dumps(
        {"prompt": [7] * 40, "max_tokens": 1900, "ignore_eos": True, "stream": stream, "temperature": 0}
    ).encode()
    host, port = server.base.removeprefix("http://").split(":")
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    before = server.metric("penstock_decode_tokens_total")
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(head.encode() + body)
        server.wait_for("penstock_requests_running", 8)
    server.wait_for("penstock_requests_running", 0)
    server.wait_for("penstock_kv_blocks_used", 0)
    # Left alone, they would have made 8 · 1900 tokens.
    assert server.metric("penstock_decode_tokens_total") - before < 8 * 600


BAD = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [-1]}, "-1"),
    ({"prompt": [320]}, "0..319"),
    ({"prompt": "x", "n": 1_000_000}, "n"),
    ({"prompt": "x", "temperature": -1}, "temperature"),
    ({"prompt": "x", "top_p": "much"}, "top_p"),
    ({"prompt": "x" * 5000}, "2048"),
    ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "x", "suffix": "y"}, "suffix"),
    ({"prompt": "x", "made_up": 1}, "made_up"),
]


@pytest.mark.parametrize(("body", "says"), BAD)
def test_bad_input_is_one_clear_400_and_the_server_goes_on(
    server: RunningServer, body: dict[str, object], says: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post("/v1/completions", body)
    assert caught.value.code == 400
    error = json.load(caught.value)["error"]
    assert says in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})["object"] == "text_completion"


def test_nan_is_not_a_number_here(server: RunningServer) -> None:
    answer = httpx.post(
        server.base + "/v1/completions",
        content=b'{"prompt": "x", "temperature": NaN}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    assert "message" in answer.json()["error"]


def test_the_api_answers_while_the_engine_computes(server: RunningServer) -> None:
    (engine,) = psutil.Process(server.process.pid).children()
    body = {"prompt": [9] * 40, "max_tokens": 4, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        # It takes no message, as in the midst of a long step.
        engine.suspend()
        try:
            asked = pool.submit(server.post, "/v1/completions", body)
            until(lambda: server.metric("penstock_requests_in_flight") == 1)
            for path in ("/metrics", "/v1/models", "/version"):
                assert httpx.get(server.base + path, timeout=PATIENCE).status_code == 200
            assert httpx.post(server.base + "/tokenize", json={"prompt": "x"}, timeout=PATIENCE).json()["tokens"]
        finally:
            # If that took long, it counts as stopped, and another one computes.
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.resume()
        assert asked.result(PATIENCE)["usage"]["completion_tokens"] == 4  # type: ignore[index]


def test_metrics_agree_with_the_client(server: RunningServer) -> None:
    names = ("penstock_requests_total", "penstock_generation_tokens_total", "penstock_prompt_tokens_total")
    before = [server.metric(name) for name in names]
    server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 11, "ignore_eos": True, "n": 2})
    after = [server.metric(name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 22, 3]
    for name in (
        "penstock_time_to_first_token_seconds_count",
        "penstock_inter_token_latency_seconds_count",
        "penstock_prefix_cache_hit_tokens_total",
        "penstock_preemptions_total",
        "penstock_requests_waiting",
    ):
        assert server.metric(name) >= 0


def test_prompts_are_scored_as_their_tokens_were_when_they_were_generated(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "tiny-llama", "temperature": 0, "logprobs": 2, "echo": True}
    ids = {"return_token_ids": True}
    first = client.completions.create(prompt="one two three", max_tokens=9, extra_body=ids, **request).choices[0]
    tokens = [*first.model_extra["prompt_token_ids"], *first.model_extra["token_ids"]]  # type: ignore[index]
    again = client.completions.create(prompt=tokens, max_tokens=0, **request)
    assert again.usage is not None and again.usage.completion_tokens == 0
    told, before = again.choices[0].logprobs, first.logprobs
    assert told is not None and told.token_logprobs is not None and told.top_logprobs is not None
    assert before is not None and before.token_logprobs is not None
    assert len(told.token_logprobs) == len(tokens) and told.token_logprobs[0] is None
    assert told.token_logprobs[1:] == pytest.approx(before.token_logprobs[1:], abs=1e-5)
    # Greedy tokens are the most likely ones, to the bit: this is how lm-evaluation-harness finds them.
    for value, tops in list(zip(told.token_logprobs, told.top_logprobs, strict=True))[-9:]:
        assert value == max(tops.values())


def test_vectors_are_those_of_each_text_alone(client: openai.OpenAI) -> None:
    texts = ["one two three", "four", "five six " * 100]
    together = client.embeddings.create(model="tiny-llama", input=texts)
    assert [item.index for item in together.data] == [0, 1, 2]
    for text, item in zip(texts, together.data, strict=True):
        alone = client.embeddings.create(model="tiny-llama", input=text, encoding_format="float")
        assert item.embedding == pytest.approx(alone.data[0].embedding, abs=0)
        assert sum(value * value for value in item.embedding) == pytest.approx(1.0, abs=1e-5)
    mean = client.embeddings.create(model="tiny-llama", input=texts[0], extra_body={"pooling": "mean"})
    assert mean.data[0].embedding != together.data[0].embedding
