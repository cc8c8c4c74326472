"""An engine for a GPU whose pool follows from a rehearsed step; the readings of its memory are made up."""

from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.assembly import build
from penstock.assembly.backend import on_gpu
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig, PoolWish
from penstock.core.devices import MemoryReading
from penstock.core.errors import InsufficientMemory
from penstock.engine.worker import BuiltEngine
from support.checkpoints import make
from support.launches import launched

MIB = 2**20


class Readings:
    """A GPU of which 100 MiB are free behind the weights, and whose steps take 20 MiB."""

    def settle(self) -> MemoryReading:
        return MemoryReading(100 * MIB, 300 * MIB, 300 * MIB)

    def read(self) -> MemoryReading:
        return MemoryReading(83 * MIB, 316 * MIB, 319 * MIB)


class Full(Readings):
    """One that has no memory left for a step."""

    def read(self) -> MemoryReading:
        raise torch.OutOfMemoryError("CUDA out of memory")


def config(tmp_path: Path) -> EngineConfig:
    options = EngineOptions.of(
        model=str(make("llama", tmp_path)),
        device="cuda",
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=20,
        load_format="dummy",
        threads=1,
    )
    found = prepare(options, api_beside=False).config
    assert found.cache.wish is None, "of the interpreter nothing is measured"
    wish = PoolWish(None, 64, 64, strict=True)
    return msgspec.structs.replace(found, cache=msgspec.structs.replace(found.cache, wish=wish))


def built(given: EngineConfig, memory: Readings) -> BuiltEngine:
    with launched():
        return build.build_engine(given, lambda done, total: None, backend=on_gpu(given, memory))


def test_the_pool_is_what_a_measured_step_leaves(tmp_path: Path) -> None:
    engine = built(config(tmp_path), Readings())
    assert "compile kernels, measure a step" in [stage.stage for stage in engine.stages]
    pool, longest = engine.settled
    assert "the largest step takes 20 MiB" in pool.why and longest.value == "64"
    limits = engine.core.scheduler.limits
    assert (limits.num_blocks, limits.max_model_len) == (2 * 4, 64)


def test_where_a_step_does_not_fit_the_start_says_what_would(tmp_path: Path) -> None:
    with pytest.raises(InsufficientMemory, match="step of 20 positions and 2 sequences does not fit.*--max-num-seqs"):
        built(config(tmp_path), Full())
