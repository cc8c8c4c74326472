"""What a model reaches at best is arithmetic on its size and the machine's ceilings."""

import msgspec
import pytest

from penstock.configuration.facts import KeptIntegers
from penstock.core.ceilings import Ceilings
from penstock.core.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.doctor.finding import Finding
from penstock.doctor.machine import Disk
from penstock.doctor.model_rules import ModelSize, judge_model, prompt_seconds, step_seconds

CEILINGS = Ceilings(10.0, {"int8": 400.0, "bfloat16": 200.0, "float32": 100.0})
# Two layers with 8 heads of 64: 4 KiB of keys and values a token in bfloat16, a block of 16 tokens 64 KiB.
SPEC = build_kv_spec([LayerKV(8, 64)] * 2, "bfloat16")
CONFIG = EngineConfig(
    model=ModelConfig("/models/made-up", "/models/made-up", "bfloat16", packed_cache="/cache"),
    cache=CacheConfig(SPEC, 4096),
    scheduler=SchedulerConfig(max_num_seqs=64, max_model_len=4096, target_itl=0.1),
    threads=2,
)
SIZE = ModelSize(body=900_000_000, head=100_000_000, config=CONFIG)
INT4 = msgspec.structs.replace(
    SIZE,
    config=msgspec.structs.replace(
        CONFIG, model=msgspec.structs.replace(CONFIG.model, quantization="int4", quantize_head="int8")
    ),
)


def judged(size: ModelSize, ceilings: Ceilings | None = CEILINGS, disk: Disk | None = None) -> dict[str, Finding]:
    return {finding.subject: finding for finding in judge_model(size, ceilings, disk)}


def test_bytes_are_those_of_a_step() -> None:
    assert SIZE.read == 2e9 and SIZE.format == "bfloat16"
    assert INT4.read == pytest.approx(900e6 * 4.25 / 8 + 100e6) and INT4.format == "int4"
    assert SIZE.on(CEILINGS).cache_bytes(512) == 512 * 4096


def test_a_sequence_alone_is_bound_by_reads() -> None:
    assert step_seconds(SIZE, CEILINGS, 1, 512) == pytest.approx((2e9 + 512 * 4096) / 10e9)
    finding = judged(SIZE)["decoding at best"]
    assert finding.figure == "4.99 tokens/s for one sequence"
    assert finding.advice is not None and "9.98 with --quantization int8" in finding.advice
    assert judged(INT4)["decoding at best"].advice is None or "int8" not in str(judged(INT4)["decoding at best"].advice)


def test_layers_with_a_window_read_no_more_than_it() -> None:
    spec = build_kv_spec([LayerKV(8, 64), LayerKV(8, 64, 256)], "bfloat16")
    size = msgspec.structs.replace(SIZE, config=msgspec.structs.replace(CONFIG, cache=CacheConfig(spec, 4096)))
    assert step_seconds(size, CEILINGS, 1, 1024) == pytest.approx((2e9 + (1024 + 256) * 2048) / 10e9)


def test_of_a_gpu_the_processors_arithmetic_says_nothing() -> None:
    on_gpu = msgspec.structs.replace(SIZE, config=msgspec.structs.replace(CONFIG, device="cuda:0"))
    findings = judged(on_gpu)
    assert not {"decoding at best", "prompts at best"} & set(findings)
    assert findings["speed at best"].figure == "not told of cuda:0" and "room for sequences" in findings
    assert "speed at best" not in judged(SIZE)


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    assert step_seconds(SIZE, CEILINGS, 64, 16) == pytest.approx(64 * 2 * 1e9 / 200e9), (
        "the head is computed for each of them"
    )


def test_weights_that_are_integers_in_part_are_computed_as_fast_as_integers() -> None:
    mixed = KeptIntegers(body=300_000_000, body_bytes=300_000_000)
    model = msgspec.structs.replace(CONFIG.model, quantization="own")
    size = msgspec.structs.replace(SIZE, integers=mixed, config=msgspec.structs.replace(CONFIG, model=model))
    assert size.read == 300e6 + 2 * 600e6 + 2 * 100e6
    assert prompt_seconds(size, CEILINGS, 1000) == pytest.approx((2 * 900e6 * 1000 + 2 * 100e6) / 400e9)


def test_prompts_are_bound_by_arithmetic() -> None:
    assert prompt_seconds(SIZE, CEILINGS, 1000) == pytest.approx((2 * 900e6 * 1000 + 2 * 100e6) / 200e9), (
        "the head is computed for the last token"
    )
    assert prompt_seconds(INT4, CEILINGS, 1000) == pytest.approx((2 * 900e6 * 1000 + 2 * 100e6) / 400e9), (
        "int4 is computed in int8"
    )
    finding = judged(SIZE)["prompts at best"]
    assert finding.figure == "111 tokens/s" and "--target-itl" in finding.meaning


def test_late_projections_are_computed_for_the_last_token_of_a_prompt() -> None:
    size = msgspec.structs.replace(SIZE, late=600_000_000)
    assert size.read == SIZE.read
    assert prompt_seconds(size, CEILINGS, 1000) == pytest.approx((2 * 300e6 * 1000 + 2 * 700e6) / 200e9)
    assert step_seconds(size, CEILINGS, 64, 16) == pytest.approx(step_seconds(SIZE, CEILINGS, 64, 16))


def test_room_is_told_in_sequences() -> None:
    finding = judged(SIZE)["room for sequences"]
    assert finding.level == "ok" and finding.figure == "128 sequences of 512 tokens"
    assert "128 of 512 tokens, 32 of 2,048 tokens, 16 of 4,096 tokens" in finding.meaning
    small = msgspec.structs.replace(CONFIG, cache=CacheConfig(SPEC, 1024))
    short = judged(msgspec.structs.replace(SIZE, config=small))["room for sequences"]
    assert short.level == "note" and short.advice is not None


def test_packed_weights_fit_or_do_not() -> None:
    room = Disk(folder="/cache", total=10**12, free=10**11, room=3 * 10**9, kept=0)
    assert judged(SIZE, disk=room)["second start"].level == "ok"
    assert judged(SIZE, disk=msgspec.structs.replace(room, room=10**9))["second start"].level == "warning"
    off = msgspec.structs.replace(CONFIG, model=msgspec.structs.replace(CONFIG.model, packed_cache=None))
    assert "second start" not in judged(msgspec.structs.replace(SIZE, config=off), disk=room)


def test_without_ceilings_the_room_is_told_alone() -> None:
    assert set(judged(SIZE, None)) == {"room for sequences"}
