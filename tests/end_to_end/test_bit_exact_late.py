"""The promise of `test_bit_exact.py` for models whose last layers store nothing, and compute the wanted rows alone.

Where a prompt's log probabilities are asked for, all its rows are wanted. So that is what everything is compared with.
"""

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import LLM, SamplingParams
from penstock.kernels.cpu.native import OBSTACLE
from penstock.llm import Completion
from support.checkpoints import VOCAB_SIZE, make

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

MODES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8 cache": {"kv_cache_dtype": "int8", "dtype": "float32"},
}
WAYS: dict[str, dict[str, Any]] = {
    "as they come": {},
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 7": {"long_prefill_token_threshold": 7},
    "three threads": {"threads": 3},
    "prefix hits": {"enable_prefix_caching": True},
    "speculation": {"speculative": "ngram", "speculative_depth": 3},
    # Its first layers, of which the last ones store nothing either.
    "drafts of its own": {"speculative": "self", "speculative_layers": 4, "speculative_depth": 3},
}
OUTPUT = 20
# Of 16 tokens in float32: one layer with a window and one of wider heads, which the other four read.
BLOCK_BYTES = 16 * 2 * 2 * (24 + 32) * 4


def prompt(seed: int, length: int) -> dict[str, list[int]]:
    rng = random.Random(seed)
    return {"prompt_token_ids": [rng.randrange(4, VOCAB_SIZE) for _ in range(length)]}


SUBJECTS = [prompt(seed, length) for seed, length in ((1, 40), (2, 130), (3, 1))]
PARAMS = [
    SamplingParams(temperature=heat, seed=7, max_tokens=OUTPUT, ignore_eos=True, logprobs=3) for heat in (0.0, 1.0)
]
ASKED = [(subject, params) for subject in SUBJECTS for params in PARAMS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("gemma4", tmp_path_factory.mktemp("models") / "gemma4", num_kv_shared_layers=4)


def engine(model: Path, mode: str, **options: Any) -> LLM:
    common = {"threads": 1, "enable_prefix_caching": False, "speculative": "off", "kv_cache_memory": 8 << 20}
    return LLM(str(model), **{**common, **MODES[mode], **options})


def bits(outputs: Sequence[Completion]) -> list[tuple[list[int], object]]:
    return [(list(sample.token_ids), sample.logprobs) for output in outputs for sample in output.samples]


def generated(llm: LLM, asked: Sequence[tuple[dict[str, list[int]], SamplingParams]]) -> list[Completion]:
    return llm.generate([subject for subject, _ in asked], [params for _, params in asked])


@functools.cache
def of_all_rows(model: Path, mode: str) -> list[Completion]:
    """What comes of each alone, where no row of its prompt is left out."""
    llm = engine(model, mode)
    return [generated(llm, [(subject, replace(params, prompt_logprobs=2))])[0] for subject, params in ASKED]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_left_out_change_nothing(model: Path, mode: str, way: str) -> None:
    llm, expected = engine(model, mode, **WAYS[way]), bits(of_all_rows(model, mode))
    assert bits(generated(llm, ASKED)) == expected
    again = generated(llm, ASKED)
    assert bits(again) == expected
    assert way != "prefix hits" or sum(output.cached_tokens for output in again) > 0


@pytest.mark.parametrize("mode", MODES)
def test_scores_and_tokens_are_computed_in_the_same_steps(model: Path, mode: str) -> None:
    """Of some prompts all rows are wanted, of others in the same chunks the last ones."""
    asked = [
        (subject, replace(params, prompt_logprobs=2 if place % 2 else None))
        for place, (subject, params) in enumerate(ASKED)
    ]
    found = generated(engine(model, mode, max_num_batched_tokens=50, max_num_seqs=4), asked)
    expected = of_all_rows(model, mode)
    assert bits(found) == bits(expected)
    assert [each.prompt_logprobs for each in found[1::2]] == [each.prompt_logprobs for each in expected[1::2]]


@pytest.mark.parametrize("mode", MODES)
def test_samples_of_one_prompt_are_those_that_it_has_alone(model: Path, mode: str) -> None:
    params = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=OUTPUT, ignore_eos=True, logprobs=3)
    found = engine(model, mode).generate([SUBJECTS[0]], [params])
    whole = engine(model, mode).generate([SUBJECTS[0]], [replace(params, prompt_logprobs=2)])
    assert bits(found) == bits(whole) and len({tuple(ids) for ids, _ in bits(found)}) > 1


@pytest.mark.parametrize("mode", MODES)
def test_vectors_are_the_same_bits_however_they_are_computed(model: Path, mode: str) -> None:
    pooled = {pooling: engine(model, mode).embed(SUBJECTS, pooling) for pooling in ("last", "mean")}
    llm = engine(model, mode, long_prefill_token_threshold=7, enable_prefix_caching=True)
    for pooling, expected in pooled.items():
        assert llm.embed(SUBJECTS, pooling) == llm.embed(SUBJECTS, pooling) == expected
    # Of a prompt of one token, the mean is that of the last.
    assert pooled["last"][2] == pytest.approx(pooled["mean"][2], abs=1e-6)


def test_preemption_changes_nothing(model: Path) -> None:
    """A pool that holds the short prompts when they begin, but not what they become."""
    longer = [SamplingParams(temperature=heat, seed=7, max_tokens=40, ignore_eos=True) for heat in (0.0, 1.0)]
    asked = [(subject, params) for subject in (SUBJECTS[0], SUBJECTS[2]) for params in longer]
    llm = engine(model, "float32", kv_cache_memory=11 * BLOCK_BYTES, max_model_len=96)
    found = bits(generated(llm, asked))
    assert llm.load.preemptions > 0
    roomy = engine(model, "float32")
    whole = [(subject, replace(params, prompt_logprobs=0)) for subject, params in asked]
    assert found == [bits(generated(roomy, [pair]))[0] for pair in whole]
