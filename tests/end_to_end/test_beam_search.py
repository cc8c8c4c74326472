"""Beam search over HTTP: by the fields that users of vLLM know, whole and streamed, with the official client."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from penstock import LLM, BeamSearchParams
from support.documented import described_client
from support.live_server import RunningServer

PROMPT = [5 + 7 * place % 300 for place in range(20)]
MESSAGES: Any = [{"role": "user", "content": "one two three"}]


def complete(server: RunningServer, **fields: Any) -> dict[str, Any]:
    with described_client(server.base) as client:
        answer = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 12, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def searched(served_checkpoint: Path) -> Any:
    """What the Python interface finds: outputs, sums of log probabilities, and scores."""
    llm = LLM(str(served_checkpoint), threads=1)
    params = BeamSearchParams(beam_width=4, max_tokens=12, length_penalty=0.5, early_stopping="never", logprobs=1)
    return llm.beam_search({"prompt_token_ids": PROMPT}, params)[0].samples


def test_the_best_come_with_how_likely_they_are(server: RunningServer, searched: Any) -> None:
    asked: dict[str, Any] = {"use_beam_search": True, "length_penalty": 0.5, "early_stopping": "never", "seed": 1}
    whole = complete(server, n=4, return_token_ids=True, logprobs=1, **asked)
    assert [choice["token_ids"] for choice in whole["choices"]] == [each.token_ids for each in searched]
    assert [choice["beam"] for choice in whole["choices"]] == [
        {"cumulative_logprob": each.beam.cumulative_logprob, "score": each.beam.score} for each in searched
    ]
    for choice in whole["choices"]:
        told = choice["logprobs"]["token_logprobs"]
        assert sum(told) == pytest.approx(choice["beam"]["cumulative_logprob"])
    # Of the tokens that were computed, those that come are counted.
    assert whole["usage"]["completion_tokens"] == sum(len(each.token_ids) for each in searched)
    best = complete(server, n=2, best_of=4, return_token_ids=True, **asked)
    assert best["choices"] == [{**each, "logprobs": None} for each in whole["choices"][:2]]


def test_a_stream_has_the_same_once_the_best_are_known(server: RunningServer) -> None:
    asked: dict[str, Any] = {"use_beam_search": True, "n": 3}
    whole = complete(server, **asked)["choices"]
    body = {"prompt": PROMPT, "max_tokens": 12, "stream": True, **asked}
    texts, beams = ["", "", ""], [None] * 3
    with described_client(server.base) as client, client.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["text"]
                beams[choice["index"]] = choice.get("beam")
    assert texts == [choice["text"] for choice in whole]
    assert beams == [choice["beam"] for choice in whole]


def test_chats_have_them_too_and_the_batch_changes_nothing(
    server: RunningServer, client_of: Callable[[RunningServer], OpenAI]
) -> None:
    client = client_of(server)

    def ask(**fields: Any) -> list[str]:
        search = {"use_beam_search": True, "best_of": 4, "length_penalty": 0.0}
        answer = client.chat.completions.create(
            model="tiny-llama", messages=MESSAGES, max_tokens=24, n=2, extra_body=search, **fields
        )
        return [choice.message.model_dump_json() for choice in answer.choices]

    alone = ask()
    with ThreadPoolExecutor(8) as pool:
        others = [
            pool.submit(complete, server, prompt=[9 + place] * 50, max_tokens=40, n=3, temperature=1.0)
            for place in range(6)
        ]
        together = [pool.submit(ask) for _ in range(4)]
        assert [each.result() for each in together] == [alone] * 4
        for other in others:
            other.result()
    # Both are accepted, as nothing is drawn.
    assert ask(temperature=1.0, seed=7) == alone


def test_an_explanation_tells_what_was_searched(server: RunningServer) -> None:
    answer = complete(server, use_beam_search=True, best_of=4, max_tokens=12, ignore_eos=True)
    told = json.loads(server.get(f"/v1/requests/{answer['id']}/explain"))
    # The prompt's step gives the first of each beam; the last one ends the search.
    assert told["decode"]["searched_tokens"] == 4 * 11
    assert told["output_tokens"] == 12
    (decode,) = [phase for phase in told["timeline"] if phase["name"] == "decode"]
    assert "12 tokens, found among 44 of all beams in " in decode["detail"]


def test_an_output_keeps_to_a_schema(server: RunningServer) -> None:
    choices = complete(
        server, use_beam_search=True, n=2, max_tokens=60, structured_outputs={"choice": ["yes", "no", "maybe"]}
    )["choices"]
    assert {choice["text"] for choice in choices} < {"yes", "no", "maybe"}
    assert len({choice["text"] for choice in choices}) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"kv_policy": {"type": "window", "tokens": 256}}, "kv_policy"),
    ],
)
def test_what_has_no_place_beside_it_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str, client_of: Callable[[RunningServer], OpenAI]
) -> None:
    client = client_of(server)
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(
            model="tiny-llama", messages=MESSAGES, max_tokens=5, extra_body={"use_beam_search": True, **fields}
        )
    assert refused.value.param == param
