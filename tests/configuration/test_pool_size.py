"""The pool's size follows from what was measured, and what does not fit is refused with the numbers."""

from typing import Any

import pytest

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.pool_size import fit_pool, graphs_bytes, longest_context
from penstock.configuration.resolve import resolve
from penstock.configuration.swapping import STAGING_BYTES
from penstock.core.config import EngineConfig, Reason
from penstock.core.devices import Gpu, GpuFacts, MemoryReading, StepMemory
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import LayerKV

GIB = 2**30
# 16 GiB of weights in bfloat16, and 2 MiB to a block.
LARGE = ModelFacts("/model", "bfloat16", 8 * GIB, 8 * GIB, 7 * GIB, GIB, 131_072, (LayerKV(8, 128),) * 32, 128_256)
BLOCK_BYTES = 16 * 32 * 2 * 8 * 128 * 2
MEASURED = StepMemory(free=6 * GIB, step=GIB, graphs=GIB // 4)


def resolved(memory: int = 22 * GIB, **options: Any) -> tuple[EngineConfig, dict[str, Reason]]:
    """On a GPU with so much memory."""
    gpus = GpuFacts((Gpu(0, "Made-up 100", (9, 0), 24 * GIB, memory),))
    machine = MachineFacts(8 * GIB, 2, api_beside=True, gpus=gpus)
    config, reasons = resolve(EngineOptions.of(model="/model", device="cuda", **options), LARGE, machine)
    return config, {reason.setting: reason for reason in reasons}


def fitted(measured: StepMemory, **options: Any) -> tuple[EngineConfig, dict[str, Reason]]:
    config, reasons = fit_pool(resolved(**options)[0], measured)
    return config, {reason.setting: reason for reason in reasons}


def test_before_anything_is_loaded_the_pool_is_an_estimate() -> None:
    config, reasons = resolved()
    estimate = int(0.8 * (22 * GIB - 16 * GIB - 1536 * 2**20))
    assert config.cache.num_blocks == estimate // BLOCK_BYTES
    assert config.scheduler.max_model_len == config.cache.num_blocks * 16
    assert all("estimated" in reasons[name].why for name in ("kv cache memory", "max model len"))
    # All that the memory could hold is prepared for, and no more.
    assert config.longest == 6 * GIB // BLOCK_BYTES * 16 > config.scheduler.max_model_len


def test_the_measured_pool_takes_most_of_the_rest() -> None:
    config, reasons = fitted(MEASURED)
    assert config.cache.num_blocks == int(0.9 * 4.75 * GIB) // BLOCK_BYTES
    assert config.cache.wish is None
    assert config.scheduler.max_model_len == config.longest == config.cache.num_blocks * 16
    told = reasons["kv cache memory"].why
    assert "90%" in told and "6.00 GiB" in told and "1.00 GiB" in told and "256 MiB" in told
    assert "made for 131072" in reasons["max model len"].why


def test_what_swaps_keeps_its_blocks_and_has_room_on_their_way() -> None:
    config, _ = fitted(MEASURED, swap_space=GIB)
    assert config.cache.swap_blocks == GIB // BLOCK_BYTES
    assert config.cache.num_blocks == int(0.9 * (4.75 * GIB - STAGING_BYTES)) // BLOCK_BYTES
    # What goes to a disk or a store has room of its own.
    config, _ = fitted(MEASURED, swap_space=GIB, kv_disk="kv", kv_store="file:///kv")
    assert config.cache.num_blocks == int(0.9 * (4.75 * GIB - 2 * STAGING_BYTES)) // BLOCK_BYTES


def test_no_context_is_longer_than_what_was_prepared_for() -> None:
    """Where others have left the GPU since, there is room for more than tables were made for."""
    before, _ = resolved(memory=17 * GIB)
    config, reasons = fit_pool(before, MEASURED)
    assert config.scheduler.max_model_len == before.longest < config.cache.num_blocks * 16
    assert before.longest < LARGE.max_position_embeddings
    told = {reason.setting: reason for reason in reasons}["max model len"]
    assert told.value == str(before.longest) and "was free before" in told.why


def test_a_pool_is_no_larger_than_what_can_be_filled() -> None:
    config, reasons = fitted(MEASURED, max_model_len=1024, max_num_seqs=2)
    assert config.cache.num_blocks == 2 * 1024 // 16
    assert "2 sequences of 1024" in reasons["kv cache memory"].why


def test_what_was_asked_for_is_taken_where_it_fits() -> None:
    config, reasons = fitted(MEASURED, kv_cache_memory=4 * GIB)
    assert config.cache.num_blocks == 4 * GIB // BLOCK_BYTES
    assert config.scheduler.max_model_len == 4 * GIB // BLOCK_BYTES * 16
    assert "as asked" in reasons["kv cache memory"].why
    with pytest.raises(InsufficientMemory, match="memory 5.00 GiB does not fit.* at most 4.75 GiB are left"):
        fitted(MEASURED, kv_cache_memory=5 * GIB)


def test_a_context_that_was_asked_for_is_not_shortened() -> None:
    fits = int(0.9 * 4.75 * GIB) // BLOCK_BYTES * 16
    assert fitted(MEASURED, max_model_len=fits)[0].scheduler.max_model_len == fits
    with pytest.raises(InsufficientMemory, match=f"lower --max-model-len to at most {fits}"):
        fitted(MEASURED, max_model_len=fits + 1)


def test_a_policy_that_bounds_no_context_that_fits_is_refused() -> None:
    before, _ = resolved(kv_policy="h2o:32768")
    assert before.scheduler.max_model_len < 32768 <= fitted(MEASURED, kv_policy="h2o:32768")[0].scheduler.max_model_len
    with pytest.raises(ConfigurationError, match="--kv-policy: .*8192 tokens are more than this server's context"):
        resolved(max_model_len=4096, kv_policy="h2o:8192")
    with pytest.raises(ConfigurationError, match="--kv-policy: .*8192 tokens are more than this server's context"):
        fitted(StepMemory(2 * GIB, GIB), kv_policy="h2o:8192")


@pytest.mark.parametrize("step", [5, 6, 9])
def test_where_a_step_takes_all_the_start_says_so(step: int) -> None:
    with pytest.raises(InsufficientMemory, match="no room for a KV pool.*--max-num-batched-tokens"):
        fitted(StepMemory(5 * GIB, step * GIB))


def test_branches_of_drafts_have_blocks_beside_the_pool() -> None:
    plain, wide = (
        fitted(MEASURED, speculative="ngram", speculative_depth=4, **more)[0] for more in ({}, {"speculative_width": 2})
    )
    assert plain.cache.num_blocks > wide.cache.num_blocks > plain.cache.num_blocks - 200


def test_before_loading_only_what_cannot_fit_is_refused() -> None:
    assert resolved(memory=16 * GIB + 600 * 2**20)[0].cache.num_blocks > 0
    with pytest.raises(InsufficientMemory, match="The weights take 16.00 GiB, but only 15.00 GiB"):
        resolved(memory=15 * GIB)
    assert resolved(kv_cache_memory=5 * GIB)[0].cache.num_blocks == 5 * GIB // BLOCK_BYTES
    with pytest.raises(InsufficientMemory, match="at most 6.00 GiB are left"):
        resolved(kv_cache_memory=7 * GIB)


def test_what_a_step_takes_is_the_allocators_peak_and_what_came_beside_it() -> None:
    before = MemoryReading(free=100, reserved=40, peak=40)
    # The allocator had 30 more at its peak and gave 10 back; CUDA keeps 5.
    after = MemoryReading(free=75, reserved=60, peak=70)
    assert (after.taken_since(before), after.beside_since(before)) == (35, 5)
    # Others have given some back meanwhile, of which nothing is taken to be ours.
    assert MemoryReading(free=120, reserved=60, peak=60).taken_since(before) == 20


def test_graphs_take_what_each_keeps_and_what_they_compute() -> None:
    assert graphs_bytes([100, 200, 400, 800], each=10) == 40 + 1500
    assert graphs_bytes([], each=10) == 0


def test_the_longest_context_is_the_last_that_fits() -> None:
    spec = resolved()[0].cache.spec
    for blocks in (1, 7, 500):
        fits = longest_context(spec, blocks, 131_072, 2048)
        assert spec.blocks_for(fits, 2048) <= blocks < spec.blocks_for(fits + 1, 2048)
    assert longest_context(spec, 0, 100, 2048) == 0
