"""Whole engines on a GPU, or on its kernels as Triton interprets them, against the CPU's."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import LLM, SamplingParams
from support.device import DEVICE, INTERPRETED
from support.waiting import PATIENCE

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.cuda

TESTS = Path(__file__).parent.parent
QUESTIONS = ("Write a haiku about rain.", "12 + 30?")
SIZES = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "speculative": "off"}
# Keys and values of 2 layers with a head of 64 numbers, of 16 tokens.
BLOCK_BYTES = 16 * 2 * 2 * 64 * 4
# Interpreted, a step takes seconds.
PARAMS = {"max_tokens": 3 if INTERPRETED else 24, "temperature": 0.0, "logprobs": 2}

# A line for each engine that is asked for.
PROGRAM = """
import json, sys
import support.interpreter
from penstock import LLM, SamplingParams
for line in sys.stdin:
    asked = json.loads(line)
    llm = LLM(asked["model"], **asked["options"])
    answers = []
    for batch in asked["batches"]:
        chats = [[{"role": "user", "content": question}] for question in batch]
        found = llm.chat(chats, SamplingParams(**asked["params"]))
        answers.append([[each.token_ids, [token.logprob for token in each.logprobs or []]] for each in found])
    load, steps = llm.load, llm.totals
    counts = [load.preemptions, load.recomputed_tokens, steps.swapped_out, steps.swapped_in, steps.not_swapped]
    memory = load.shelf("memory")
    counts += [memory.written, memory.read]
    print(json.dumps([answers, counts]), flush=True)
"""

Answers = list[list[Any]]


class Counts(NamedTuple):
    """What an engine has counted: sequences, positions, blocks, blocks, sequences, blocks, blocks."""

    preemptions: int
    recomputed: int
    swapped_out: int
    swapped_in: int
    not_swapped: int
    kept: int = 0
    read: int = 0


class Process:
    """A process that makes engines, one after the other, until the block ends."""

    def __enter__(self) -> "Process":
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def ask(self, asked: dict[str, Any]) -> tuple[list[Answers], Counts]:
        """What an engine gives, and what it has counted; why it gives nothing is on standard error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        answers, counts = json.loads(self._process.stdout.readline())
        return answers, Counts(*counts)


# Interpreted, for all engines: it takes longer to start than most of them to run.
SHARED = Process()


@pytest.fixture(autouse=True, scope="module")
def _shared() -> Iterator[None]:
    if not INTERPRETED:
        yield
        return
    with SHARED:
        yield


def on_gpu(batches: list[list[str]], params: dict[str, Any] = PARAMS, **options: Any) -> list[Answers]:
    """Of each batch the tokens, and their log probabilities, of each answer."""
    return counted(batches, params, **options)[0]


def counted(batches: list[list[str]], params: dict[str, Any] = PARAMS, **options: Any) -> tuple[list[Answers], Counts]:
    """The same, and what the engine has counted."""
    device = "cuda" if INTERPRETED else str(DEVICE)
    asked = {
        "model": "haiku-draft",
        "options": SIZES | options | {"device": device},
        "batches": batches,
        "params": params,
    }
    if INTERPRETED:
        return SHARED.ask(asked)
    # One of its own each time, as a server's engine is: what one leaves on the device is not there for the next.
    with Process() as own:
        return own.ask(asked)


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
    params = PARAMS | {"max_tokens": 2 if INTERPRETED else 24}
    first, *others = on_gpu([list(QUESTIONS), *alone], params, deterministic=True)
    small = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "enable_prefix_caching": False}
    (cut,) = on_gpu([list(QUESTIONS)], params, deterministic=True, **small)
    assert [answer for (answer,) in others] == first == cut
    assert [tokens for tokens, _ in first] == [tokens[: params["max_tokens"]] for tokens, _ in expected]


def test_preempted_requests_go_on_where_they_were() -> None:
    """Both answers need two blocks and there are three: what is swapped out is not computed again."""
    params = PARAMS | {"max_tokens": 9, "ignore_eos": True}
    small = {"kv_cache_memory": 3 * BLOCK_BYTES, "max_model_len": 32, "enable_prefix_caching": False}
    undisturbed = on_cpu(list(QUESTIONS), params)
    (found,), counts = counted([list(QUESTIONS)], params, **small, swap_space=2 * BLOCK_BYTES)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in undisturbed]
    for (_, mine), (_, right) in zip(found, undisturbed, strict=True):
        assert mine == pytest.approx(right, abs=1e-4)
    assert counts == Counts(preemptions=1, recomputed=0, swapped_out=2, swapped_in=2, not_swapped=0)
    # The same without: its context is computed again.
    llm = LLM("haiku-draft", threads=1, **(SIZES | small))
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    again = llm.chat(chats, SamplingParams(**params))
    assert [each.token_ids for each in again] == [tokens for tokens, _ in undisturbed]
    assert (llm.load.preemptions, llm.totals.swapped_out) == (1, 0) and llm.load.recomputed_tokens > 16


def test_prefixes_that_the_pool_has_lost_come_from_the_processors_memory() -> None:
    """The pool has room for one question at a time; the first is asked again behind the second."""
    long = [f"{question} Say it once more. {question}" for question in QUESTIONS]
    alone, params = [[long[each]] for each in (0, 1, 0)], PARAMS | {"max_tokens": 2}
    small = {"kv_cache_memory": 2 * BLOCK_BYTES, "max_model_len": 32, "max_num_seqs": 1, "deterministic": True}
    found, counts = counted(alone, params, **small, kv_host_memory=8 * BLOCK_BYTES)
    assert found == on_gpu(alone, params, **small)
    assert [tokens for ((tokens, _),) in found] == [on_cpu(batch, params)[0][0] for batch in alone]
    assert counts.read == 1 and counts.kept >= 2 and counts.swapped_out == counts.swapped_in == 0


@pytest.mark.parametrize(
    ("options", "most"),
    [({"kv_cache_dtype": "int8"}, 0.01), ({"kv_cache_dtype": "fp8"}, 0.01), ({"quantization": "int8"}, 0.1)],
)
def test_fewer_bits_are_those_of_the_cpu(options: dict[str, str], most: float) -> None:
    """Rounded alike: what is left are values between two integers, which the last bit of a sum decides on.

    In int8 these are activations, several times in each layer.
    """
    params = PARAMS | {"max_tokens": 1}
    (found,) = on_gpu([list(QUESTIONS)], params, **options)
    for (tokens, mine), (right, theirs) in zip(found, on_cpu(list(QUESTIONS), params, **options), strict=True):
        assert tokens == right
        assert mine == pytest.approx(theirs, abs=most)


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
