"""Whole engines on a GPU, or on its kernels as Triton interprets them, against the CPU's."""

import json
import subprocess
import sys
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from support.device import DEVICE, INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.cuda

QUESTIONS = ("Write a haiku about rain.", "12 + 30?")
SIZES = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "speculative": "off"}
# Interpreted, a step takes seconds.
PARAMS = {"max_tokens": 3 if INTERPRETED else 24, "temperature": 0.0, "logprobs": 2}

# A process of its own each time, as a server's engine is: what one leaves on the device is not there for the next.
PROGRAM = """
import json, sys
from penstock import LLM, SamplingParams
asked = json.loads(sys.stdin.read())
llm = LLM(asked["model"], **asked["options"])
for batch in asked["batches"]:
    chats = [[{"role": "user", "content": question}] for question in batch]
    found = llm.chat(chats, SamplingParams(**asked["params"]))
    print(json.dumps([[each.token_ids, [token.logprob for token in each.logprobs or []]] for each in found]))
"""

Answers = list[list[Any]]


def on_gpu(batches: list[list[str]], params: dict[str, Any] = PARAMS, **options: Any) -> list[Answers]:
    """Of each batch the tokens, and their log probabilities, of each answer."""
    device = "cuda" if INTERPRETED else str(DEVICE)
    asked = {
        "model": "haiku-draft",
        "options": SIZES | options | {"device": device},
        "batches": batches,
        "params": params,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def on_cpu(batch: list[str], params: dict[str, Any] = PARAMS, **options: Any) -> Answers:
    llm = LLM("haiku-draft", device="cpu", threads=1, **(SIZES | options))
    chats = [[{"role": "user", "content": question}] for question in batch]
    found = llm.chat(chats, SamplingParams(**params))
    return [[each.token_ids, [token.logprob for token in each.logprobs or []]] for each in found]


@pytest.fixture(scope="module")
def expected() -> Answers:
    return on_cpu(list(QUESTIONS))


def test_greedy_tokens_are_those_of_the_cpu(expected: Answers) -> None:
    found, again = on_gpu([list(QUESTIONS), list(QUESTIONS)])
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    for (_, mine), (_, right) in zip(found, expected, strict=True):
        assert mine == pytest.approx(right, abs=1e-4)
    # The second time from the prefix cache.
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]


def test_deterministic_is_the_same_bits_in_any_batch(expected: Answers) -> None:
    """Alone and together, in one chunk and in several, computed and from the cache."""
    alone = [[question] for question in QUESTIONS]
    first, *others = on_gpu([list(QUESTIONS), *alone], deterministic=True)
    cut = on_gpu(
        [list(QUESTIONS)], deterministic=True, max_num_batched_tokens=5, max_num_seqs=2, enable_prefix_caching=False
    )[0]
    assert [answer for (answer,) in others] == first == cut
    assert [tokens for tokens, _ in first] == [tokens for tokens, _ in expected]


def test_preempted_requests_go_on_alike(expected: Answers) -> None:
    (found,) = on_gpu([list(QUESTIONS)], kv_cache_memory=13 * 16 * 8 * 4 * 256 * 2 // 4, max_model_len=64)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}, {"quantization": "int8"}])
def test_fewer_bits_change_little(options: dict[str, str], expected: Answers) -> None:
    (found,) = on_gpu([list(QUESTIONS)], PARAMS | {"max_tokens": 1}, **options)
    for (tokens, mine), (right, theirs) in zip(found, expected, strict=True):
        assert tokens == right[:1]
        assert mine == pytest.approx(theirs[:1], abs=0.03)


def test_a_step_planned_before_the_last_is_known_changes_nothing() -> None:
    """With nothing that keeps tokens from staying on the device."""
    params = {"max_tokens": 4, "temperature": 0.8, "seed": 5, "n": 2}
    (found,) = on_gpu([list(QUESTIONS)], params)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in on_cpu(list(QUESTIONS), params)]


def test_sampled_tokens_and_drafts_from_text(expected: Answers) -> None:
    sampled = PARAMS | {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 5}
    (found,) = on_gpu([list(QUESTIONS)], sampled)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in on_cpu(list(QUESTIONS), sampled)]
    (drafted,) = on_gpu([list(QUESTIONS)], speculative="ngram")
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in expected]
