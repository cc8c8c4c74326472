"""The promise: a request's tokens and logprobs are the same bits whatever else is in the batch, however it is computed.

With the native kernels, on the bundled model, for every precision. Of the ways to compute, each precision meets every
second or third one in `make test`, and all of them in `make soak`.
"""

import functools
import itertools
import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.kernels import rope
from penstock.kernels.cpu import program
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.llm import Completion

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

MODES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8 cache": {"kv_cache_dtype": "int8"},
    "fp8 cache": {"kv_cache_dtype": "fp8", "dtype": "float32", "speculative": "off"},
    "int4 cache": {"kv_cache_dtype": "int4"},
}
# Kernels by hand, of which a processor takes some first.
BY_HAND = ("avx2", "avx512_vnni", "avx512", "amx")
VOCABULARY = 4096
# More than a block, so that each subject ends in another block than it begins in.
OUTPUT = 17
POOLINGS = ("last", "mean")
# Of 16 tokens in 8 layers: keys and values of 2 heads of 64 in bfloat16, in float32, in bytes with a scale, or in half
# bytes with two numbers for each 32, to which a part is added of what the model that drafts keeps.
HEAD_BYTES = {"float32": 64 * 4, "int8 cache": 64 + 4, "fp8 cache": 64 + 4, "int4 cache": 32 + 2 * 4 + 8}
BLOCK_BYTES = {mode: 16 * 8 * 2 * 2 * HEAD_BYTES.get(mode, 64 * 2) for mode in MODES}


def prompt(rng: random.Random, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [rng.randrange(300, VOCABULARY) for _ in range(length)]}


SUBJECTS = [prompt(random.Random(1), 40), prompt(random.Random(2), 130), prompt(random.Random(3), 1)]


def subjects(max_tokens: int = OUTPUT) -> tuple[list[dict[str, list[int]]], list[SamplingParams]]:
    """Each greedy and sampled, both with logprobs."""
    params = [
        SamplingParams(temperature=temperature, seed=7, max_tokens=max_tokens, ignore_eos=True, logprobs=3)
        for temperature in (0.0, 1.0)
    ]
    pairs = list(itertools.product(SUBJECTS, params))
    return [subject for subject, _ in pairs], [params for _, params in pairs]


def with_modes(name: str, ways: Sequence[Any], *, every: int = 3) -> pytest.MarkDecorator:
    """Each mode with each way; without `--slow`, with every third way, or with another part of them."""
    chosen = [
        pytest.param(mode, way, marks=() if (row + column) % every == 0 else pytest.mark.slow)
        for row, mode in enumerate(MODES)
        for column, way in enumerate(ways)
    ]
    return pytest.mark.parametrize(("mode", name), chosen)


def with_some_modes(first: int) -> pytest.MarkDecorator:
    """Each mode; without `--slow`, every second one, from the first or the second on."""
    marked = [pytest.param(mode, marks=() if row % 2 == first else pytest.mark.slow) for row, mode in enumerate(MODES)]
    return pytest.mark.parametrize("mode", marked)


def engine(mode: str, **options: Any) -> LLM:
    pool = {"kv_cache_memory": 1000 * BLOCK_BYTES[mode]}
    return LLM("haiku", **{"threads": 1, "enable_prefix_caching": False, **pool, **MODES[mode], **options})


def bits(outputs: Sequence[Completion]) -> list[tuple[list[int], object]]:
    return [(list(output.token_ids), output.logprobs) for output in outputs]


def alone(llm: LLM) -> list[tuple[list[int], object]]:
    return [bits(llm.generate([subject], [params]))[0] for subject, params in zip(*subjects(), strict=True)]


@functools.cache
def expected_alone(mode: str) -> list[tuple[list[int], object]]:
    return alone(engine(mode))


@pytest.fixture
def expected(mode: str) -> list[tuple[list[int], object]]:
    return expected_alone(mode)


@with_modes("size", [2, 7, 16, 64])
def test_companions_change_nothing(mode: str, expected: list[tuple[list[int], object]], size: int) -> None:
    llm = engine(mode)
    rng = random.Random(size)
    asked = list(zip(*subjects(), strict=True))
    at_once = min(size // 2, len(asked))
    for first in range(0, len(asked), at_once):
        places = rng.sample(range(size), at_once)
        prompts = [prompt(rng, rng.randint(1, 90)) for _ in range(size)]
        params = [SamplingParams(max_tokens=rng.randint(1, OUTPUT), temperature=1.0) for _ in range(size)]
        for place, subject in zip(places, asked[first:], strict=False):
            prompts[place], params[place] = subject
        outputs = bits(llm.generate(prompts, params))
        assert [outputs[place] for place in places] == expected[first : first + at_once]


@with_modes("chunk", [1, 7, 64])
def test_chunks_change_nothing(mode: str, expected: list[tuple[list[int], object]], chunk: int) -> None:
    llm = engine(mode, long_prefill_token_threshold=chunk)
    assert alone(llm) == expected
    assert bits(llm.generate(*subjects())) == expected


@with_some_modes(0)
def test_steps_of_measured_length_change_nothing(mode: str, expected: list[tuple[list[int], object]]) -> None:
    """How a prompt is cut depends on how fast the machine was."""
    llm = engine(mode, target_itl=0.001)
    assert bits(llm.generate(*subjects())) == expected
    assert alone(llm) == expected


@with_some_modes(1)
def test_threads_change_nothing(mode: str, expected: list[tuple[list[int], object]]) -> None:
    for threads in (2, 3):
        assert bits(engine(mode, threads=threads).generate(*subjects())) == expected


@pytest.mark.one_in(2)
@with_modes("name", BY_HAND, every=2)
def test_other_kernels_keep_the_promise_too(mode: str, name: str) -> None:
    """Their bits are others, but do not depend on the batch either."""
    if name not in native.instruction_sets()[1:]:
        pytest.skip(f"this processor does not have {name}, or has it first")
    single = alone(engine(mode, instruction_set=name))
    llm = engine(mode, instruction_set=name, threads=2, long_prefill_token_threshold=7)
    assert bits(llm.generate(*subjects())) == single


@with_some_modes(0)
def test_preemption_changes_nothing(mode: str) -> None:
    """A pool that holds the short prompts when they begin, but not what they become."""
    short = [pair for pair in zip(*subjects(max_tokens=40), strict=True) if pair[0] != SUBJECTS[1]]
    llm = engine(mode, kv_cache_memory=10 * BLOCK_BYTES[mode], max_model_len=96)
    found = bits(llm.generate([subject for subject, _ in short], [params for _, params in short]))
    assert llm.load.preemptions > 0
    roomy = engine(mode)
    assert found == [bits(roomy.generate([subject], [params]))[0] for subject, params in short]


@with_some_modes(1)
def test_prefix_hits_change_nothing(mode: str, expected: list[tuple[list[int], object]]) -> None:
    llm = engine(mode, enable_prefix_caching=True)
    first = llm.generate(*subjects())
    again = llm.generate(*subjects())
    assert bits(first) == bits(again) == expected
    assert sum(output.cached_tokens for output in again) > 0


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
def test_positions_beyond_tables_of_angles_change_nothing(
    mode: str, expected: list[tuple[list[int], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables end at 64 positions here: some steps are within, some beyond, and some are both."""
    for module, name in ((rope, "_FIRST_POSITIONS"), (rope, "LONGEST_TABLE"), (program, "LONGEST_TABLE")):
        monkeypatch.setattr(module, name, 64)
    llm = engine(mode)
    assert alone(llm) == bits(llm.generate(*subjects())) == expected


SCORED = SamplingParams(temperature=1.0, seed=7, max_tokens=3, ignore_eos=True, prompt_logprobs=2)


def scores(outputs: Sequence[Completion]) -> list[tuple[list[int], object]]:
    return [(list(output.token_ids), output.prompt_logprobs) for output in outputs]


@functools.cache
def expected_scores(mode: str) -> list[tuple[list[int], object]]:
    return [scores(engine(mode).generate([subject], SCORED))[0] for subject in SUBJECTS]


WAYS: list[dict[str, Any]] = [
    {"long_prefill_token_threshold": 1},
    {"long_prefill_token_threshold": 7, "threads": 2},
    {"max_num_batched_tokens": 50, "max_num_seqs": 4, "threads": 3},
    {"enable_prefix_caching": True},
]


@pytest.mark.one_in(2)
@with_modes("way", WAYS)
def test_a_prompts_scores_are_the_same_bits_however_they_are_computed(mode: str, way: dict[str, Any]) -> None:
    rng = random.Random(5)
    llm = engine(mode, **way)
    others = [prompt(rng, rng.randint(1, 90)) for _ in range(4)]
    params = [SamplingParams(max_tokens=rng.randint(1, OUTPUT), temperature=1.0) for _ in range(4)]
    found = llm.generate([*others, *SUBJECTS], [*params, *[SCORED] * len(SUBJECTS)])
    assert scores(found[4:]) == expected_scores(mode)
    # Their blocks are in the prefix cache now, where there is one.
    assert scores(llm.generate(SUBJECTS, SCORED)) == expected_scores(mode)


@with_some_modes(0)
def test_scores_are_those_of_the_tokens_that_were_generated(mode: str) -> None:
    """What a request was told of its output's tokens, it is told of the same tokens as a prompt."""
    llm = engine(mode)
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=OUTPUT, ignore_eos=True, logprobs=3)
    for done in llm.generate(SUBJECTS, params):
        whole = {"prompt_token_ids": [*done.prompt_token_ids, *done.token_ids]}
        (again,) = llm.generate([whole], SamplingParams(max_tokens=0, prompt_logprobs=3))
        assert again.prompt_logprobs is not None and done.logprobs is not None
        told = again.prompt_logprobs[len(done.prompt_token_ids) :]
        assert [(one.token, one.top_tokens, one.top_logprobs) for one in told if one] == [
            (one.token, one.top_tokens, one.top_logprobs) for one in done.logprobs
        ]
        assert [one.logprob for one in told if one] == pytest.approx([one.logprob for one in done.logprobs], abs=1e-6)


@functools.cache
def expected_vectors(mode: str) -> dict[str, list[list[float]]]:
    llm = engine(mode)
    return {pooling: [llm.embed([subject], pooling)[0] for subject in SUBJECTS] for pooling in POOLINGS}


@pytest.mark.one_in(2)
@with_modes("way", [*WAYS, {"max_model_len": 144}])
def test_vectors_are_the_same_bits_however_they_are_computed(mode: str, way: dict[str, Any]) -> None:
    expected = expected_vectors(mode)
    assert expected["last"] != expected["mean"]
    # The last way is one with a pool that does not hold them all.
    small = {"kv_cache_memory": 12 * BLOCK_BYTES[mode]} if "max_model_len" in way else {}
    llm = engine(mode, **way, **small)
    for pooling in POOLINGS:
        # Again, for what is in the prefix cache by then.
        for _ in range(2):
            assert llm.embed(SUBJECTS, pooling) == expected[pooling]


@with_some_modes(1)
def test_vectors_and_tokens_are_computed_in_the_same_steps(mode: str, expected: list[tuple[list[int], object]]) -> None:
    llm = engine(mode, max_num_batched_tokens=50, max_num_seqs=16)
    vectors = {pooling: llm.embed(SUBJECTS, pooling) for pooling in POOLINGS}
    generating = [
        llm._intake.request(subject["prompt_token_ids"], params) for subject, params in zip(*subjects(), strict=True)
    ]
    pooling = [
        llm._intake.embedding(subject["prompt_token_ids"], kind)
        for subject, kind in itertools.product(SUBJECTS, POOLINGS)
    ]
    mixed = [request for pair in zip(generating, pooling, strict=True) for request in pair]
    outputs = [state.take() for state in llm._run(mixed)]
    tokens = [(output.deltas[0].token_ids, output.deltas[0].logprobs) for output in outputs[::2]]
    assert tokens == expected
    found = [output.embedding for output in outputs[1::2]]
    assert found == [
        array("f", vectors[kind][index]).tobytes() for index, kind in itertools.product(range(len(SUBJECTS)), POOLINGS)
    ]
