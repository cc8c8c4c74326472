"""How much of the processor's memory preempted sequences get, and prefixes that the pool has lost."""

from typing import Any

import pytest

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.resolve import resolve
from penstock.core.config import EngineConfig, Reason
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import LayerKV

GIB = 2**30
MODEL = ModelFacts("/model", "bfloat16", 10**8, 10**8, 10**8, 0, 4096, (LayerKV(8, 64),) * 16)
BLOCK_BYTES = 16 * 16 * 2 * 8 * 64 * 2


def resolved(swap_space: int | None, **options: Any) -> tuple[EngineConfig, Reason]:
    """On a GPU with more memory than the processor has."""
    gpus = GpuFacts((Gpu(0, "Made-up 100", (9, 0), 80 * GIB, 79 * GIB),))
    config, reasons = resolve(
        EngineOptions.of(model="/model", swap_space=swap_space, **{"device": "cuda"} | options),
        MODEL,
        MachineFacts(8 * GIB, 2, gpus=gpus),
    )
    return config, next(reason for reason in reasons if reason.setting == "swap space")


@pytest.mark.parametrize("nothing", [None, 0])
def test_nothing_is_taken_that_was_not_asked_for(nothing: int | None) -> None:
    for device in ("cuda", "cpu"):
        config, reason = resolved(nothing, device=device)
        assert config.cache.swap_blocks == 0
        assert (reason.value, "computed again" in reason.why) == ("none", True)


def test_the_size_is_in_whole_blocks() -> None:
    config, reason = resolved(5 * BLOCK_BYTES + 1)
    assert config.cache.swap_blocks == 5
    assert "5 blocks" in reason.value and "as asked" in reason.why
    assert resolved(5 * BLOCK_BYTES, kv_cache_dtype="int8")[0].cache.swap_blocks == 9, "with their scales"


@pytest.mark.parametrize(
    ("size", "error", "says"),
    [
        (BLOCK_BYTES - 1, ConfigurationError, f"holds no KV block of this model; it must be at least {BLOCK_BYTES}"),
        (9 * GIB, InsufficientMemory, "--swap-space 9.00 GiB does not fit: of the processor's memory 8.00 GiB"),
    ],
)
def test_what_cannot_work_is_refused(size: int, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        resolved(size)


def host_blocks(size: int | None, **options: Any) -> int:
    return resolved(options.pop("swap_space", None), kv_host_memory=size, **options)[0].cache.host_blocks


def test_prefixes_have_blocks_beside_those_of_preempted_sequences() -> None:
    assert host_blocks(None) == host_blocks(0) == host_blocks(None, device="cpu") == 0
    assert host_blocks(5 * BLOCK_BYTES + 1) == 5
    config, _ = resolved(3 * GIB, kv_host_memory=5 * GIB)
    assert (config.cache.swap_blocks, config.cache.host_blocks) == (3 * GIB // BLOCK_BYTES, 5 * GIB // BLOCK_BYTES)


@pytest.mark.parametrize(
    ("size", "options", "error", "says"),
    [
        (GIB, {"device": "cpu"}, ConfigurationError, "--kv-host-memory is of GPUs alone: on the CPU"),
        (GIB, {"enable_prefix_caching": False}, ConfigurationError, "--no-enable-prefix-caching keeps no prefix"),
        (BLOCK_BYTES - 1, {}, ConfigurationError, f"it must be at least {BLOCK_BYTES}"),
        (-1, {}, ConfigurationError, "--kv-host-memory is -1"),
        (9 * GIB, {}, InsufficientMemory, "--kv-host-memory 9.00 GiB does not fit"),
        (6 * GIB, {"swap_space": 3 * GIB}, InsufficientMemory, "5.00 GiB are available beside --swap-space"),
    ],
)
def test_memory_for_prefixes_that_cannot_work_is_refused(
    size: int, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        host_blocks(size, **options)


def test_a_disk_and_a_store_are_beside_a_gpus_pool_too() -> None:
    beside = {"kv_disk": "kv", "kv_store": "file:///kv", "kv_host_memory": GIB}
    cache = resolved(None, **beside)[0].cache
    assert cache.disk == "kv" and cache.store is not None and cache.host_blocks == GIB // BLOCK_BYTES
    with pytest.raises(ConfigurationError, match="--kv-disk kv is of no use: --no-enable-prefix-caching keeps no"):
        resolved(None, kv_disk="kv", enable_prefix_caching=False)
