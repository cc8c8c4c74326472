"""The executor with a real model: what lies in unused memory never matters, and steps are measured."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.core.plan import BeginRow, BlockUpdate, Place, RowPlan, StepPlan, Transfer
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.executor import ModelExecutor
from penstock.runtime.handles import CompletedStep
from penstock.runtime.parts import ExecutorParts
from penstock.runtime.storage import KVStorage
from support.checkpoints import FAMILIES, make
from support.fitted import fitted


def poisoned(parts: ExecutorParts) -> ExecutorParts:
    storage = parts.computing.storage
    assert isinstance(storage, KVStorage)
    for layer in range(len(storage.spec.pieces)):
        for plane in storage.planes(layer).values():
            plane.fill_(math.nan)
    return parts


@pytest.mark.parametrize("family", FAMILIES)
def test_garbage_in_unused_blocks_changes_nothing(family: str, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, n=2)
    prompts = [[7, 8, 9] * 30, [11, 12], list(range(5, 38))]
    path = make(family, tmp_path)
    tokens = []
    for poison in (False, True):
        options: dict[str, Any] = {"threads": 1, "max_model_len": 256, "max_num_batched_tokens": 48, "max_num_seqs": 8}
        llm = fitted(str(path), poisoned, **options) if poison else LLM(str(path), **options)
        tokens.append([[sample.token_ids for sample in done.samples] for done in llm.generate(prompts, params)])
    assert tokens[0] == tokens[1]
    assert all(len(ids) == 40 for samples in tokens[1] for ids in samples)


def test_a_step_says_how_long_it_took(tmp_path: Path) -> None:
    llm = LLM(str(make("llama", tmp_path)), threads=1, max_model_len=256)
    executor, seconds = llm._core._executor, []
    execute = executor.execute

    def observed(plan: StepPlan) -> CompletedStep:
        started = time.perf_counter()
        step = execute(plan)
        seconds.append((step.result().seconds, time.perf_counter() - started))
        return step

    executor.execute = observed  # type: ignore[method-assign]
    llm.generate([[7, 8, 9] * 30], SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(seconds) == 4
    assert all(0 < told <= whole for told, whole in seconds)


def swapping_executor(tmp_path: Path) -> tuple[DeviceKVStorage, ModelExecutor]:
    """An executor whose pool can swap, and that pool; its model reads and writes another one."""
    swapping: list[tuple[DeviceKVStorage, ModelExecutor]] = []

    def fit(parts: ExecutorParts) -> ExecutorParts:
        storage = parts.computing.storage
        assert isinstance(storage, KVStorage)
        pool = DeviceKVStorage(storage.spec, 8, torch.device("cpu"), host_blocks=2)
        other = replace(parts, computing=replace(parts.computing, storage=pool))
        swapping.append((pool, ModelExecutor(other)))
        return parts

    fitted(str(make("llama", tmp_path)), fit, threads=1, max_model_len=64, max_num_seqs=2)
    return swapping[0]


def test_blocks_are_swapped_before_they_are_copied_and_written(tmp_path: Path) -> None:
    """In one plan a block goes out and comes back elsewhere, is copied from there, and is given to another row."""
    pool, executor = swapping_executor(tmp_path)
    blocks = [pool._memory]
    for memory in blocks:
        memory.copy_(torch.randint(1, 256, memory.shape, dtype=torch.uint8))
    before = [memory[3].clone() for memory in blocks]
    params = SamplingParams(max_tokens=1, temperature=0.0)
    result = executor.execute(
        StepPlan(
            number=0,
            rows=(RowPlan(0, 0, 2, [7, 8], None, (0,), (BlockUpdate(0, 0, [3]),)),),
            begin=(BeginRow(0, 0, [7, 8], params, ()),),
            transfers=(
                Transfer(4, 0, Place("pool", (5,)), Place("pool", (6,))),
                Transfer(5, 0, Place("host", (1,)), Place("pool", (5,))),
                Transfer(6, 0, Place("pool", (3,)), Place("host", (1,))),
            ),
        )
    ).result()
    assert len(result.samples[0].gained.tokens) == 1 and not result.failed
    assert [(each.id, each.done) for each in result.transfers] == [(each, True) for each in (4, 5, 6)]
    # What comes from the processor's memory is timed: it is worth its while or not.
    assert [each.seconds > 0 for each in result.transfers] == [False, True, False]
    for memory, expected in zip(blocks, before, strict=True):
        assert torch.equal(memory[5], expected) and torch.equal(memory[6], expected)
        assert not memory[3].any(), "what the next holder finds is cleared"
