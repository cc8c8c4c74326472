"""A dress rehearsal on a GPU: compiles what will be launched and measures what it takes, before there is a KV pool."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from penstock.configuration.pool_size import graphs_bytes
from penstock.core.config import EngineConfig
from penstock.core.devices import MemoryReading, StepMemory
from penstock.core.errors import InsufficientMemory
from penstock.kernels.cuda.memory import memory_ended
from penstock.runtime.rehearsal import decode_rows, largest, rehearsal, rehearsals
from penstock.sampling.sampler import ChooseOnDevice
from penstock.stepping.model import Model


class Memory(Protocol):
    """Reads the memory of the device that computes."""

    def settle(self) -> MemoryReading:
        """What is there with nothing under way and nothing kept for later; the peak begins anew."""

    def read(self) -> MemoryReading:
        """What is there with nothing under way."""


def rehearse(program: Model, encoder: Model, choose: ChooseOnDevice, config: EngineConfig) -> None:
    """Compute a step of every kind, the largest among them, as one that serves would.

    Both programs have a KV cache of at least one block, which is written to. So all kernels are compiled.
    """
    limits, spec = config.scheduler, config.cache.spec
    for batch in rehearsals(limits, config.longest, spec.num_tables, spec.block_size):
        logits = program.run(batch)
        # What is not chosen on the device is brought together there, and then to the processor's memory.
        logits.index_select(0, torch.arange(len(logits), device=logits.device))
    # Makes use of all that a choice may.
    chosen = choose(logits, [(0, 0.8, 20, 0.9, math.log(0.01), (0, 0, 0))] * limits.max_num_seqs)
    del logits
    # A token that is not known here yet.
    batch = rehearsal([(0, 1)], 1, spec.num_tables, spec.block_size)
    program.run(replace(batch, token_ids=torch.tensor([-1]), carried=chosen.tokens))
    prompt = largest(limits, config.longest, 0, spec.num_tables, spec.block_size)
    # Of a prompt that becomes a vector all rows may be wanted, in the last layers too.
    encoder.run(replace(prompt, logit_rows=torch.arange(len(prompt.token_ids))))


def measure(
    program: Model,
    encoder: Model,
    choose: ChooseOnDevice,
    config: EngineConfig,
    memory: Memory,
    graph_sizes: Sequence[int],
) -> StepMemory:
    """The same, and what it took. Raises InsufficientMemory where a step does not fit behind the weights."""
    before = memory.settle()
    try:
        rehearse(program, encoder, choose, config)
        step = memory.read().taken_since(before)
        # All code of kernels is there now, so that what follows is what is computed, and what a graph takes.
        spec = config.cache.spec
        decodes = []
        for size in graph_sizes:
            start = memory.settle()
            rows = decode_rows(config.longest, size)
            program.run(rehearsal(rows, size, spec.num_tables, spec.block_size))
            decodes.append(memory.read().taken_since(start))
        start = memory.settle()
        program.use_idle_time()
        graph = memory.read().beside_since(start)
    except RuntimeError as error:
        if not memory_ended(error):
            raise
        limits = config.scheduler
        raise InsufficientMemory(
            f"A step of {limits.max_num_batched_tokens} positions and {limits.max_num_seqs} sequences does not fit "
            f"into what is free on {config.device} behind the weights, {before.free / 2**30:.2f} GiB: lower "
            "--max-num-batched-tokens or --max-num-seqs, or use a smaller model, or --quantization int8 or int4."
        ) from error
    return StepMemory(before.free, step, graphs_bytes(decodes, graph))
