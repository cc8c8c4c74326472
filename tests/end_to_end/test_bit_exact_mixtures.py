"""The promise of `test_bit_exact.py` for mixtures of experts and latent attention.

Other rows go to other experts, and change no bit. Of the ways to compute, each precision of a family meets every third
one in `make test`, others than the next precision and the next family do, and all of them in `make soak`.
"""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.kernels.cpu.native import OBSTACLE
from penstock.llm import Completion
from support.checkpoints import VOCAB_SIZE, make
from support.quantized import in_mxfp4

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

MODES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
WAYS: dict[str, dict[str, Any]] = {
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 7": {"long_prefill_token_threshold": 7},
    "two threads": {"threads": 2},
    "three threads": {"threads": 3},
    "prefix hits": {"enable_prefix_caching": True},
    "speculation": {"speculative": "ngram"},
}
# More than a block of 16 tokens.
OUTPUT = 20
# Of 16 tokens in float32: keys and values of 2 heads of 24 in 4 and 3 layers; latent vectors and turning keys in 3.
BLOCK_BYTES = {
    "qwen3_moe": 16 * 4 * 2 * 2 * 24 * 4,
    "gpt_oss": 16 * 3 * 2 * 2 * 24 * 4,
    "gpt_oss_mxfp4": 16 * 3 * 2 * 2 * 24 * 4,
    "deepseek_v3": 16 * 3 * (32 + 16) * 4,
    # Two layers with a window and two without, of wider heads; the last two read what others keep.
    "gemma4_moe": 16 * 2 * 2 * (2 * 24 + 32) * 4,
}
# Gemma 4 with experts has what its smaller ones have, too.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma4_moe": {
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "num_kv_shared_layers": 2,
    },
}
# Of each family, how many of them several sequences begin in, and one can end in. In bfloat16 they are half as large.
SMALL_POOL = 9
# The longest window there is.
WINDOW = 29


def prompt(rng: random.Random, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [rng.randrange(4, VOCAB_SIZE) for _ in range(length)]}


SUBJECTS = [prompt(random.Random(seed), length) for seed, length in ((1, 40), (2, 130), (3, 1))]
PARAMS = [
    SamplingParams(temperature=heat, seed=7, max_tokens=OUTPUT, ignore_eos=True, logprobs=3) for heat in (0.0, 1.0)
]
ASKED = [(subject, params) for subject in SUBJECTS for params in PARAMS]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes each model once."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def made(name: str) -> Path:
        family = name.removesuffix("_mxfp4")
        path = make(family, folder / f"made-{name}" / family, **CHANGES.get(family, {}))
        return path if family == name else in_mxfp4(path, folder)[0].rename(folder / name)

    return made


@pytest.fixture
def model(family: str, models: Callable[[str], Path]) -> Path:
    return models(family)


def with_families(*others: Sequence[str], every: int) -> list[object]:
    """Each family with all combinations of `others`; without `--slow`, with every second or third one."""
    return [
        pytest.param(
            family,
            *(values[index] for values, index in zip(others, indexes, strict=True)),
            marks=pytest.mark.slow if (row + sum(indexes)) % every else (),
        )
        for row, family in enumerate(BLOCK_BYTES)
        for indexes in itertools.product(*(range(len(values)) for values in others))
    ]


with_mode = pytest.mark.parametrize(("family", "mode"), with_families(list(MODES), every=2))


def engine(model: Path, mode: str, **options: Any) -> LLM:
    pool = 1000 * BLOCK_BYTES[model.name]
    common = {"threads": 1, "enable_prefix_caching": False, "speculative": "off", "kv_cache_memory": pool}
    return LLM(str(model), **{**common, **MODES[mode], **options})


def bits(outputs: Sequence[Completion]) -> list[tuple[list[int], object]]:
    return [(list(output.token_ids), output.logprobs) for output in outputs]


def generated(llm: LLM, asked: Sequence[tuple[dict[str, list[int]], SamplingParams]]) -> list[Completion]:
    return llm.generate([subject for subject, _ in asked], [params for _, params in asked])


@functools.cache
def expected(model: Path, mode: str) -> list[tuple[list[int], object]]:
    llm = engine(model, mode)
    return [bits(generated(llm, [pair]))[0] for pair in ASKED]


@with_mode
def test_companions_change_nothing(model: Path, mode: str) -> None:
    llm = engine(model, mode)
    for size in (2, 7, 16, 64):
        rng = random.Random(size)
        at_once = min(size // 2, len(ASKED))
        for first in range(0, len(ASKED), at_once):
            mine = ASKED[first : first + at_once]
            places = rng.sample(range(size), len(mine))
            asked = [
                (prompt(rng, rng.randint(1, 90)), SamplingParams(max_tokens=rng.randint(1, OUTPUT), temperature=1.0))
                for _ in range(size)
            ]
            for place, pair in zip(places, mine, strict=True):
                asked[place] = pair
            outputs = bits(generated(llm, asked))
            assert [outputs[place] for place in places] == expected(model, mode)[first : first + at_once]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("family", "mode", "way"), with_families(list(MODES), list(WAYS), every=3))
def test_the_way_changes_nothing(model: Path, mode: str, way: str) -> None:
    llm = engine(model, mode, **WAYS[way])
    first, again = generated(llm, ASKED), generated(llm, ASKED)
    assert bits(first) == bits(again) == expected(model, mode)
    assert way != "prefix hits" or sum(output.cached_tokens for output in again) > 0


@with_mode
def test_preemption_changes_nothing(model: Path, mode: str) -> None:
    """A pool that holds some prompts when they begin, but not what they become."""
    longer = [
        SamplingParams(temperature=heat, seed=seed, max_tokens=50, ignore_eos=True)
        for heat, seed in itertools.product((0.0, 1.0), (7, 8))
    ]
    asked = list(itertools.product((SUBJECTS[0], SUBJECTS[2]), longer))
    pool = SMALL_POOL * BLOCK_BYTES[model.name] // (2 if mode == "bfloat16" else 1)
    llm = engine(model, mode, kv_cache_memory=pool, max_model_len=96)
    found = bits(generated(llm, asked))
    # What is computed again begins before the window.
    assert llm.load.preemptions > 0 and llm.load.recomputed_tokens > WINDOW * llm.load.preemptions
    roomy = engine(model, mode)
    assert found == [bits(generated(roomy, [pair]))[0] for pair in asked]
    assert roomy.load.preemptions == 0
