"""The whole engine against transformers: greedy tokens of every family, however they were scheduled."""

import functools
import random
from pathlib import Path

import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.assembly.results import Completion
from support.checkpoints import (
    FAMILIES,
    NEWER,
    VOCAB_SIZE,
    load_reference,
    make,
    reference_logits,
    reference_states,
)

LENGTHS = (1, 2, 15, 16, 17, 33, 100, 300)
OUTPUT = 64
TIE = 1e-4

SETTINGS = {
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 16": {"long_prefill_token_threshold": 16},
    "unlimited": {},
    "a budget of 20": {"max_num_batched_tokens": 20, "max_num_seqs": 8},
}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp(request.param))


def prompts(seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(4, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


# Of each checkpoint: greedy tokens are the same under each setting, so that most is computed for one of them only.
reference_of = functools.cache(load_reference)


@functools.cache
def logits_of(path: Path, ids: tuple[int, ...]) -> torch.Tensor:
    return reference_logits(reference_of(path), list(ids))


@functools.cache
def states_of(path: Path, ids: tuple[int, ...]) -> torch.Tensor:
    return reference_states(reference_of(path), list(ids)).double()


def count_excused(path: Path, completions: list[Completion]) -> int:
    """Every token must be the reference's best one; returns how many were not, but within a tie."""
    excused = 0
    for completion in completions:
        ids = completion.prompt_token_ids + completion.token_ids
        assert len(completion.token_ids) == OUTPUT
        logits = logits_of(path, tuple(ids[:-1]))[len(completion.prompt_token_ids) - 1 :]
        best = logits.topk(2)
        for position, token in enumerate(completion.token_ids):
            if token != best.indices[position, 0]:
                gap = best.values[position, 0] - best.values[position, 1]
                assert gap < TIE, f"token {position} after {len(completion.prompt_token_ids)} prompt tokens"
                assert token == best.indices[position, 1]
                excused += 1
    return excused


def greedy(llm: LLM, batch: list[list[int]]) -> list[Completion]:
    return llm.generate(batch, SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True))


@pytest.mark.parametrize("setting", SETTINGS)
def test_greedy_tokens_equal_transformers(checkpoint: Path, setting: str) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=512, **SETTINGS[setting])
    fresh = greedy(llm, prompts())
    assert count_excused(checkpoint, fresh) <= 2
    # The same prompts again are hits, and nothing may change.
    again = greedy(llm, prompts())
    assert sum(completion.cached_tokens for completion in again) > 300
    assert count_excused(checkpoint, again) <= 2


@pytest.mark.parametrize("family", NEWER)
def test_greedy_tokens_of_the_other_families(family: str, tmp_path: Path) -> None:
    """In chunks, and then by what the prefix cache has of them."""
    path = make(family, tmp_path)
    llm = LLM(str(path), threads=1, max_model_len=512, **SETTINGS["chunks of 16"])
    for _ in range(2):
        completions = greedy(llm, prompts())
        assert count_excused(path, completions) <= 2
    assert sum(completion.cached_tokens for completion in completions) > 300


def test_greedy_tokens_of_requests_alone(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=512)
    assert count_excused(checkpoint, [greedy(llm, [prompt])[0] for prompt in prompts(1)]) <= 2


@pytest.mark.parametrize("setting", SETTINGS)
def test_prompt_logprobs_equal_transformers(checkpoint: Path, setting: str) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=512, **SETTINGS[setting])
    params = [
        SamplingParams(seed=1, max_tokens=index % 3, ignore_eos=True, prompt_logprobs=index, repetition_penalty=1.5)
        for index in range(len(LENGTHS))
    ]
    completions = llm.generate(prompts(), params)
    for completion, chosen in zip(completions, params, strict=True):
        assert len(completion.token_ids) == chosen.max_tokens
        ids = completion.prompt_token_ids
        expected = logits_of(checkpoint, tuple(ids)).double().log_softmax(-1)
        assert completion.prompt_logprobs is not None
        first, *scores = completion.prompt_logprobs
        assert first is None and len(scores) == len(ids) - 1
        for position, score in enumerate(scores):
            assert score is not None and score.token == ids[position + 1]
            row = expected[position]
            assert abs(score.logprob - float(row[score.token])) < TIE
            above = int((row > row[score.token] + TIE).sum())
            level = int((row > row[score.token] - TIE).sum())
            assert above < (score.rank or 0) <= level
            best = row.topk(chosen.prompt_logprobs or 0).values.tolist()
            assert score.top_logprobs == pytest.approx(best, abs=TIE)


@pytest.mark.parametrize("setting", SETTINGS)
def test_vectors_equal_transformers(checkpoint: Path, setting: str) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=512, **SETTINGS[setting])
    states = [states_of(checkpoint, tuple(prompt)) for prompt in prompts()]
    # What is in the prefix cache after the first time may help "last", and must not disturb "mean".
    for _ in range(2):
        for pooling, expected in (
            ("last", [state[-1] for state in states]),
            ("mean", [state.mean(0) for state in states]),
        ):
            for vector, state in zip(llm.embed(prompts(), pooling), expected, strict=True):
                assert torch.linalg.vector_norm(torch.tensor(vector).double()) == pytest.approx(1.0, abs=1e-6)
                assert (torch.tensor(vector) - state / state.norm()).abs().max() < TIE
    assert llm.load.prefix_hit_tokens > 300


def test_greedy_tokens_survive_preemption(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=400, enable_prefix_caching=False)
    spec = llm._prepared.config.cache.spec
    blocks = spec.blocks_for(400, 64) + 2 * spec.num_tables
    llm = LLM(
        str(checkpoint),
        threads=1,
        max_model_len=400,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        kv_cache_memory=blocks * spec.block_bytes,
        enable_prefix_caching=False,
    )
    completions = greedy(llm, prompts())
    assert llm.load.preemptions > 0
    assert count_excused(checkpoint, completions) <= 2
    assert llm.load.blocks_used == 0
