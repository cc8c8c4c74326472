"""Resolution is pure, gives a reason for every value, and refuses what cannot work with the numbers."""

from typing import Any

import pytest

from penstock.configuration.facts import KeptIntegers, MachineFacts, ModelFacts
from penstock.configuration.options import OPTIONS, EngineOptions
from penstock.configuration.pool_size import WORKSPACE_BYTES
from penstock.configuration.resolve import resolve
from penstock.configuration.speculation import DRAFT_DEPTH
from penstock.core.config import EngineConfig, Reason
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import LayerKV
from penstock.core.speculation import blocks_of_branches

GIB = 2**30
FACTS: dict[str, Any] = {
    "path": "/model",
    "stored_dtype": "bfloat16",
    "num_parameters": 500_000_000,
    "resident_parameters": 600_000_000,
    "body_parameters": 390_000_000,
    "head_parameters": 100_000_000,
    "max_position_embeddings": 4096,
    "kv_layers": (LayerKV(8, 64),) * 16,
}
BLOCK_BYTES = 16 * 16 * 2 * 8 * 64 * 2
# Beside the pool, for trees of drafts.
BRANCH_BYTES = blocks_of_branches(DRAFT_DEPTH, 16, 1) * BLOCK_BYTES


def resolved(
    memory: int = 16 * GIB, *, facts: dict[str, Any] | None = None, **options: Any
) -> tuple[EngineConfig, dict[str, Reason]]:
    machine = MachineFacts(memory, 2, cache_folder="/cache/packed")
    config, reasons = resolve(
        EngineOptions.of(model="/model", **options), ModelFacts(**{**FACTS, **(facts or {})}), machine
    )
    assert all(reason.why for reason in reasons)
    return config, {reason.setting: reason for reason in reasons}


def test_defaults_use_the_memory_that_is_left() -> None:
    config, reasons = resolved()
    assert config.cache.spec.block_bytes == BLOCK_BYTES
    left = 16 * GIB - 2 * FACTS["resident_parameters"] - BRANCH_BYTES - WORKSPACE_BYTES
    assert config.cache.num_blocks == int(0.8 * left) // BLOCK_BYTES
    assert "80%" in reasons["kv cache memory"].why
    assert config.scheduler.max_model_len == 4096
    assert config.threads == 2


def test_weights_are_counted_as_they_lie_in_memory() -> None:
    """A tied head is a second copy of the embedding, which the number of distinct parameters does not show."""
    memory = 2 * 600_000_000 + WORKSPACE_BYTES
    with pytest.raises(InsufficientMemory):
        resolved(memory)
    config, _ = resolved(memory, facts={"resident_parameters": 500_000_000})
    assert config.cache.num_blocks > 0


@pytest.mark.parametrize("api_beside", [True, False])
def test_all_cores_compute(api_beside: bool) -> None:
    facts = ModelFacts(**{**FACTS, "num_parameters": 20_000_000})
    config, reasons = resolve(EngineOptions.of(model="/model"), facts, MachineFacts(16 * GIB, 8, api_beside))
    assert config.threads == 8
    assert any("API process" in reason.why for reason in reasons if reason.setting == "threads") == api_beside


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


@pytest.mark.parametrize(
    ("layers", "quantization", "asked", "expected"),
    [
        ((), "int8", "auto", "bfloat16"),
        ((), "int4", "auto", "bfloat16"),
        ((), "int8", "float32", "float32"),
        ((), "auto", "auto", "float32"),
        (FACTS["kv_layers"], "int8", "auto", "float32"),
    ],
)
def test_encoders_with_rounded_weights_compute_in_bfloat16(
    layers: tuple[LayerKV, ...], quantization: str, asked: str, expected: str
) -> None:
    facts = {"stored_dtype": "float32", "kv_layers": layers, "encodes": not layers}
    config, reasons = resolved(facts=facts, quantization=quantization, dtype=asked)
    assert config.model.dtype == reasons["dtype"].value == expected


def test_a_context_that_does_not_fit_the_pool_is_shortened_and_said() -> None:
    config, reasons = resolved(kv_cache_memory=100 * BLOCK_BYTES)
    assert config.scheduler.max_model_len == 1600
    assert "4096" in reasons["max model len"].why


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokenizer": "/other", "max_num_seqs": 4, "max_num_batched_tokens": 64, "threads": 1, "load_format": "dummy"},
        {"long_prefill_token_threshold": 32, "static_batching": True, "kv_cache_memory": GIB, "max_model_len": 64},
        {"packed_cache": "/elsewhere", "target_itl": 0.025},
        {"packed_cache": "off"},
    ],
)
def test_every_option_has_a_reason(options: dict[str, Any]) -> None:
    _, reasons = resolved(**options)
    names = {name.replace("_", " ") for name in ("model", *OPTIONS)}
    assert names | {"block size", "background tokens", "steps at a time"} == set(reasons)
    for name, value in options.items():
        reason = reasons[name.replace("_", " ")]
        assert "as asked" in reason.why, name
        if name != "kv_cache_memory":
            assert reason.value == str(value)


def test_the_reason_of_prefix_caching_depends_on_its_value() -> None:
    reasons = [resolved(enable_prefix_caching=value)[1]["enable prefix caching"] for value in (True, False)]
    assert [reason.value for reason in reasons] == ["True", "False"]
    assert "share" in reasons[0].why and "share" not in reasons[1].why


@pytest.mark.parametrize(("api_beside", "expected"), [(True, 0.1), (False, None)])
def test_steps_are_short_where_somebody_waits_for_them(api_beside: bool, expected: float | None) -> None:
    machine = MachineFacts(16 * GIB, 2, api_beside=api_beside)
    config, _ = resolve(EngineOptions.of(model="/model"), ModelFacts(**FACTS), machine)
    assert config.scheduler.target_itl == expected


def test_a_hub_name_and_where_it_was_found() -> None:
    _, reasons = resolve(EngineOptions.of(model="org/name"), ModelFacts(**FACTS), MachineFacts(16 * GIB, 2))
    reason = next(reason for reason in reasons if reason.setting == "model")
    assert reason.value == "/model" and "org/name" in reason.why


@pytest.mark.parametrize(
    ("options", "memory", "error", "says"),
    [
        ({"dtype": "float16"}, 16 * GIB, ConfigurationError, "float16"),
        ({"max_model_len": 5000}, 16 * GIB, ConfigurationError, "4096"),
        ({"max_model_len": 0}, 16 * GIB, ConfigurationError, "max-model-len"),
        ({"max_num_seqs": 0}, 16 * GIB, ConfigurationError, "max-num-seqs"),
        ({"threads": -1}, 16 * GIB, ConfigurationError, "threads"),
        ({"long_prefill_token_threshold": 0}, 16 * GIB, ConfigurationError, "long-prefill-token-threshold"),
        ({"target_itl": 0}, 16 * GIB, ConfigurationError, "target-itl"),
        ({"target_itl": "0.1"}, 16 * GIB, ConfigurationError, "target-itl"),
        ({"target_itl": True}, 16 * GIB, ConfigurationError, "target-itl"),
        ({"target_itl": float("nan")}, 16 * GIB, ConfigurationError, "target-itl"),
        ({"load_format": "pickle"}, 16 * GIB, ConfigurationError, "pickle"),
        ({"kv_cache_memory": 10**320}, 16 * GIB, ConfigurationError, "kv-cache-memory"),
        ({"swap_space": 10**320}, 16 * GIB, ConfigurationError, "swap-space"),
        ({"swap_space": -1}, 16 * GIB, ConfigurationError, "swap-space is -1"),
        ({"swap_space": True}, 16 * GIB, ConfigurationError, "swap-space"),
        ({"swap_space": GIB}, 16 * GIB, ConfigurationError, "--swap-space is of GPUs alone"),
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


@pytest.mark.parametrize("value", ["4GiB", 1.5, True])
def test_a_size_that_is_not_a_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="kv-cache-memory"):
        resolved(kv_cache_memory=value)


def test_quantized_weights_leave_more_memory() -> None:
    for body, head, size in (("int8", None, 1.0), ("int4", None, 4.25 / 8), ("int4", "int8", None)):
        config, reasons = resolved(quantization=body, quantize_head=head)
        assert (config.model.quantization, config.model.quantize_head) == (body, head or body)
        body_bytes = FACTS["body_parameters"] * (1.0 if body == "int8" else 4.25 / 8)
        head_bytes = FACTS["head_parameters"] * (size or 1.0)
        rest = FACTS["num_parameters"] - FACTS["body_parameters"] - FACTS["head_parameters"]
        left = 16 * GIB - int(body_bytes + head_bytes) - rest * 2 - BRANCH_BYTES - WORKSPACE_BYTES
        assert config.cache.num_blocks == int(0.8 * left) // BLOCK_BYTES
        assert "as asked" in reasons["quantization"].why


@pytest.mark.parametrize(
    "options, message",
    [
        ({"quantization": "int3"}, "none, int8, int4"),
        ({"quantization": "int8", "quantize_head": "int4"}, "--quantize-head int4"),
        ({"quantize_head": "int8"}, "needs --quantization"),
    ],
)
def test_quantizations_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolved(**options)


def test_a_head_is_not_rounded_beside_fp8_that_an_older_gpu_makes_numbers_of() -> None:
    old = Gpu(0, "Made-up 10", (8, 0), 80 * GIB, 79 * GIB)
    options = EngineOptions.of(model="/model", quantize_head="int8", device="cuda")
    machine = MachineFacts(16 * GIB, 2, gpus=GpuFacts((old,)))
    with pytest.raises(ConfigurationError, match=r"whose integers the kernels keep.*7 weights in FP8 become numbers"):
        resolve(options, ModelFacts(**FACTS, fp8_numbers=7), machine)


@pytest.mark.parametrize("head", [None, "int8"])
def test_the_head_of_a_checkpoint_with_integers_may_be_rounded(head: str | None) -> None:
    body, rounded = FACTS["body_parameters"], FACTS["head_parameters"]
    own = KeptIntegers(body=body, body_bytes=body // 2, head=rounded, head_bytes=rounded // 4)
    options = EngineOptions.of(model="/model", quantize_head=head)
    config, reasons = resolve(options, ModelFacts(**FACTS, integers=own), MachineFacts(16 * GIB, 2))
    assert (config.model.quantization, config.model.quantize_head) == ("own", head or "own")
    # Where head and embedding stay what they are, an embedding of its own is in the model's precision.
    rest = FACTS["num_parameters"] - body - rounded
    plain = (FACTS["resident_parameters"] - body - rounded if head is None else rest) * 2
    weights = plain + body // 2 + (rounded // 4 if head is None else rounded)
    left = 16 * GIB - weights - BRANCH_BYTES - WORKSPACE_BYTES
    assert config.cache.num_blocks == int(0.8 * left) // BLOCK_BYTES
    told = {reason.setting: reason for reason in reasons}
    assert told["quantize head"].why == ("as the other weights" if head is None else "as asked")


def test_where_packed_weights_are_kept() -> None:
    assert resolved()[0].model.packed_cache == "/cache/packed"
    assert resolved(packed_cache="/elsewhere")[0].model.packed_cache == "/elsewhere"
    assert resolved(packed_cache="off")[0].model.packed_cache is None
    config, reasons = resolved(packed_cache="/elsewhere", load_format="dummy")
    assert config.model.packed_cache is None and "random" in reasons["packed cache"].why
    for value in ("", 3):
        with pytest.raises(ConfigurationError, match="--packed-cache"):
            resolved(packed_cache=value)


def test_without_kernels_to_pack_for_nothing_is_kept() -> None:
    options = EngineOptions.of(model="/model", packed_cache="/elsewhere")
    config, reasons = resolve(options, ModelFacts(**FACTS), MachineFacts(16 * GIB, 2))
    assert config.model.packed_cache is None
    assert next(reason for reason in reasons if reason.setting == "packed cache").value == "off"


@pytest.mark.parametrize(
    ("options", "facts", "exact", "expected"),
    [
        ({"speculative": "draft"}, {}, True, "int8"),
        ({"speculative": "draft", "draft_quantization": "none"}, {}, True, "none"),
        ({"speculative": "draft", "draft_quantization": "int4"}, {}, True, "int4"),
        # Without native kernels nothing is rounded, and integers that kernels take stay as they are.
        ({"speculative": "draft"}, {}, False, "none"),
        ({"speculative": "draft"}, {"integers": KeptIntegers(body=100, body_bytes=60)}, True, "own"),
        ({"speculative": "eagle"}, {}, True, "none"),
    ],
)
def test_what_those_who_draft_are_rounded_to(
    options: dict[str, Any], facts: dict[str, Any], exact: bool, expected: str
) -> None:
    draft = ModelFacts(**{**FACTS, **facts})
    machine = MachineFacts(16 * GIB, 2, exact=exact)
    config, reasons = resolve(EngineOptions.of(model="/model", **options), ModelFacts(**FACTS), machine, [draft])
    assert config.speculation is not None and config.speculation.draft is not None
    assert config.speculation.draft.quantization == expected
    assert next(each.value for each in reasons if each.setting == "draft quantization") == expected


def test_layers_that_store_nothing_count_where_first_layers_draft() -> None:
    facts = {"blocks": 20, "kv_layers": (LayerKV(8, 64),) * 12}
    _, reasons = resolved(facts=facts, speculative="self", speculative_layers=15)
    assert (reasons["speculative layers"].value, reasons["speculative layers"].why) == (
        "15",
        "of 20; with --speculative self, they draft",
    )
