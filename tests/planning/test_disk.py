"""What a plan tells of a disk beside the KV pool."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.planning.disk import Disk, disk_told
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, prefill_step
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
LLAMA = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("epyc 9755"), weights=FORMATS["int4"])
DISK = Disk(200e9, 3e9, 1e9)


def test_bytes_are_those_of_keys_and_values() -> None:
    told = disk_told(LLAMA, TYPICAL, DISK)
    # 32 layers, keys and values, 8 heads of 128 values, 2 bytes.
    assert told.token_bytes == 32 * 2 * 8 * 128 * 2 and told.record_bytes == 0
    assert told.tokens == int(200e9 / told.token_bytes)
    assert told.written_per_second == pytest.approx(1e9 / told.token_bytes)


@pytest.mark.parametrize("split", [1, 4, 16])
def test_devices_that_share_a_model_keep_it_once_or_copies_of_heads(split: int) -> None:
    told = disk_told(replace(LLAMA, device=device_of("h100"), split=split), TYPICAL, DISK)
    assert told.token_bytes == 131072 * (2 if split == 16 else 1)


def test_reading_takes_the_bytes_and_the_last_block() -> None:
    told = disk_told(LLAMA, TYPICAL, DISK)
    assert [each.tokens for each in told.prefixes] == [256, 1024, 4096, 16384]
    for each in told.prefixes:
        last = prefill_step(LLAMA, TYPICAL, 16, each.tokens).seconds
        assert each.read_ms == pytest.approx(1e3 * (each.tokens * 131072 / 3e9 + last))
    whole = sum(prefill_step(LLAMA, TYPICAL, count, start).seconds for start, count in ((0, 2048), (2048, 2048)))
    rest = prefill_step(LLAMA, TYPICAL, 16, 4096).seconds
    assert told.prefixes[2].computed_ms == pytest.approx(1e3 * (whole + rest))


@pytest.mark.parametrize("read", [3e7, 3e8, 3e9])
def test_it_pays_from_the_shortest_prefix_that_is_read_faster(read: float) -> None:
    short = replace(LLAMA, shape=replace(LLAMA.shape, max_context=4096), device=device_of("h100"))
    for deployment in (short, replace(short, device=device_of("epyc 9755"))):
        told = disk_told(deployment, TYPICAL, Disk(1e12, read, read))
        faster = []
        for length in range(16, 4096, 16):
            computed = sum(
                prefill_step(deployment, TYPICAL, min(2048, length + 16 - start), start).seconds
                for start in range(0, length + 16, 2048)
            )
            if length * 131072 / read + prefill_step(deployment, TYPICAL, 16, length).seconds < computed:
                faster.append(length)
        assert told.pays_from == (faster[0] if faster else None)


def test_recurrent_states_are_read_with_every_prefix() -> None:
    deployment = Deployment(shape_of(MODELS["Qwen3.5-397B-A17B"]), device_of("epyc 9755"))
    told = disk_told(deployment, TYPICAL, DISK)
    assert told.record_bytes > 0
    first, second = told.prefixes[:2]
    lasts = [prefill_step(deployment, TYPICAL, 16, each.tokens).seconds for each in (first, second)]
    reading = [each.read_ms / 1e3 - last for each, last in zip((first, second), lasts, strict=True)]
    assert reading[0] == pytest.approx((told.record_bytes + 256 * told.token_bytes) / DISK.read)
    assert reading[1] - reading[0] == pytest.approx(768 * told.token_bytes / DISK.read)
