"""Resolution is pure, gives a reason for every value, and refuses what cannot work with the numbers."""

from typing import Any

import pytest

from penstock.core.config import WORKSPACE_BYTES, EngineConfig, EngineOptions, MachineFacts, ModelFacts, Reason, resolve
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import LayerKV

GIB = 2**30
FACTS: dict[str, Any] = {
    "path": "/model",
    "stored_dtype": "bfloat16",
    "num_parameters": 500_000_000,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "kv_layers": (LayerKV(8, 64),) * 16,
}
BLOCK_BYTES = 16 * 16 * 2 * 8 * 64 * 2


def resolved(
    memory: int = 16 * GIB, *, facts: dict[str, Any] | None = None, **options: Any
) -> tuple[EngineConfig, dict[str, Reason]]:
    config, reasons = resolve(
        EngineOptions(model="/model", **options), ModelFacts(**{**FACTS, **(facts or {})}), MachineFacts(memory, 2)
    )
    assert all(reason.why for reason in reasons)
    return config, {reason.setting: reason for reason in reasons}


def test_defaults_use_the_memory_that_is_left() -> None:
    config, reasons = resolved()
    assert config.cache.spec.block_bytes == BLOCK_BYTES
    left = 16 * GIB - 2 * FACTS["num_parameters"] - WORKSPACE_BYTES
    assert config.cache.num_blocks == int(0.8 * left) // BLOCK_BYTES
    assert "80%" in reasons["kv cache memory"].why
    assert config.scheduler.max_model_len == 4096
    assert config.threads == 2


@pytest.mark.parametrize(
    ("parameters", "cores", "api_beside", "threads"),
    [
        (20_000_000, 2, True, 1),
        (20_000_000, 8, True, 7),
        (20_000_000, 1, True, 1),
        (20_000_000, 2, False, 2),
        (1_000_000_000, 2, True, 2),
    ],
)
def test_a_small_model_leaves_a_core_to_the_api_process(
    parameters: int, cores: int, api_beside: bool, threads: int
) -> None:
    facts = ModelFacts(**{**FACTS, "num_parameters": parameters})
    config, _ = resolve(EngineOptions(model="/model"), facts, MachineFacts(16 * GIB, cores, api_beside))
    assert config.threads == threads


def test_the_pool_is_no_larger_than_what_can_be_filled() -> None:
    config, reasons = resolved(max_num_seqs=2)
    assert config.cache.num_blocks == 2 * 4096 // 16
    assert "2 sequences of 4096" in reasons["kv cache memory"].why


def test_the_same_arguments_give_the_same_answer() -> None:
    assert resolved() == resolved()


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "auto", "float32"),
        ("float16", "auto", "float32"),
        ("float16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_dtype_is_the_checkpoints_own_unless_asked(stored: str, asked: str, expected: str) -> None:
    config, _ = resolved(facts={"stored_dtype": stored}, dtype=asked)
    assert config.model.dtype == expected
    assert config.cache.spec.planes[0].dtype == expected


def test_a_context_that_does_not_fit_the_pool_is_shortened_and_said() -> None:
    config, reasons = resolved(kv_cache_memory=100 * BLOCK_BYTES)
    assert config.scheduler.max_model_len == 1600
    assert "4096" in reasons["max model len"].why


@pytest.mark.parametrize(
    ("options", "memory", "error", "says"),
    [
        ({"dtype": "float16"}, 16 * GIB, ConfigurationError, "float16"),
        ({"max_model_len": 5000}, 16 * GIB, ConfigurationError, "4096"),
        ({"max_model_len": 0}, 16 * GIB, ConfigurationError, "max-model-len"),
        ({"max_num_seqs": 0}, 16 * GIB, ConfigurationError, "max-num-seqs"),
        ({"threads": -1}, 16 * GIB, ConfigurationError, "threads"),
        ({"long_prefill_token_threshold": 0}, 16 * GIB, ConfigurationError, "long-prefill-token-threshold"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, 16 * GIB, ConfigurationError, "64"),
        ({"kv_cache_memory": 20 * GIB}, 16 * GIB, InsufficientMemory, "20.00 GiB"),
        ({"kv_cache_memory": BLOCK_BYTES, "max_model_len": 4096}, 16 * GIB, InsufficientMemory, "at most 16"),
        ({}, GIB, InsufficientMemory, "1.00 GiB"),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers(
    options: dict[str, Any], memory: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        resolved(memory, **options)
