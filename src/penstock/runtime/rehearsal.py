"""Steps without requests: one of every kind that there may be, and the largest, before there is a KV pool."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from penstock.core.config import SchedulerConfig
from penstock.core.kv_policy import WEIGHED
from penstock.kernels.batch import StepBatch, Weighing
from penstock.kernels.cuda.weights import ROW_STEPS


def rehearsals(limits: SchedulerConfig, longest: int, groups: int, block_size: int) -> Iterator[StepBatch]:
    """Batches whose kernels, and whose memory, are those of all that a scheduler of such `limits` plans.

    A single token in the shortest context and in the longest, then steps of as many positions, and of as many logits,
    as there are kernels for (`ROW_STEPS`), and the largest. These have all positions that a
    step can have, first in decodes and then in prompts, and the most logits that are ever wanted. One of the contexts
    has `longest` tokens, by which what attention keeps is sized, and the others are short, so that it takes no time.
    What it keeps depends on the number of decodes, too: these numbers grow by a quarter. All read and write block 0 of
    a pool.
    """
    yield rehearsal([(0, 1)], 1, groups, block_size)
    yield rehearsal([(longest - 1, 1)], 1, groups, block_size)
    for positions in ROW_STEPS:
        yield filled(limits, longest, 0, min(positions, limits.max_num_batched_tokens), groups, block_size)
    most = limits.max_num_seqs - 1
    decodes = min(1, most)
    while True:
        yield largest(limits, longest, decodes, groups, block_size)
        if decodes == most:
            break
        decodes = min(most, max(decodes + 1, decodes * 5 // 4))
    yield from _bounded(limits, longest, groups, block_size)


def _bounded(limits: SchedulerConfig, longest: int, groups: int, block_size: int) -> Iterator[StepBatch]:
    """What there is besides where contexts are bounded: attention that is weighed, and positions behind `longest`."""
    kinds = limits.kv_policies.kinds
    if not set(kinds).isdisjoint(WEIGHED):
        yield weighed(rehearsal([(0, 1)], 1, groups, block_size))
        yield weighed(rehearsal([(longest - 1, 1)], 1, groups, block_size))
        yield weighed(largest(limits, longest, min(1, limits.max_num_seqs - 1), groups, block_size))
    if "window" in kinds:
        for positions in (1, ROW_STEPS[1] + 1):
            yield rehearsal([(longest, min(positions, limits.max_num_batched_tokens))], 1, groups, block_size)


def weighed(batch: StepBatch) -> StepBatch:
    """The same batch; all its attention is weighed."""
    masses = tuple(np.zeros(table.shape, np.float32) for table in batch.block_tables)
    return replace(batch, weighing=Weighing(batch.query_lengths, masses))


def largest(limits: SchedulerConfig, longest: int, decodes: int, groups: int, block_size: int) -> StepBatch:
    """The largest step that has `decodes` decodes."""
    return filled(limits, longest, decodes, limits.max_num_batched_tokens, groups, block_size)


def filled(
    limits: SchedulerConfig, longest: int, decodes: int, positions: int, groups: int, block_size: int
) -> StepBatch:
    """A step of `decodes` decodes, and of prompts that fill it up to `positions`, if there may be enough of them."""
    rows = decode_rows(longest, decodes)
    left = positions - decodes
    while left > 0 and len(rows) < limits.max_num_seqs:
        count = min(left, longest)
        rows.append((0, count))
        left -= count
    # Rows of one token are decodes, which come first.
    rows.sort(key=lambda row: row[1] > 1)
    wanted = limits.max_num_seqs * (1 + limits.draft_depth + limits.draft_width) + limits.max_scored_positions
    return rehearsal(rows, min(wanted, sum(count for _, count in rows)), groups, block_size)


def decode_rows(longest: int, count: int) -> list[tuple[int, int]]:
    """`count` decodes, as `rehearsal` takes them: one behind the longest context, and the others in short ones."""
    return [(longest - 1, 1), *[(0, 1)] * (count - 1)] if count else []


def rehearsal(rows: Sequence[tuple[int, int]], wanted: int, groups: int, block_size: int) -> StepBatch:
    """A batch of `rows`, each with its first position and its number of positions; `wanted` logits are computed.

    Rows of one position come first.
    """
    counts = [count for _, count in rows]
    contexts = [start + count for start, count in rows]
    table = torch.zeros((len(rows), -(-max(contexts) // block_size)), dtype=torch.int32)
    return StepBatch(
        token_ids=torch.zeros(sum(counts), dtype=torch.int64),
        positions=torch.cat([torch.arange(start, start + count) for start, count in rows]),
        query_lengths=counts,
        context_lengths=contexts,
        num_decodes=counts.count(1),
        logit_rows=torch.arange(wanted),
        block_tables=(table,) * groups,
        block_size=block_size,
    )
