"""Operations on contexts of which blocks were given up, and attention that is weighed."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.kernels.batch import StepBatch, Weighing
from penstock.kernels.cases import Case
from penstock.kernels.dispatch import Implementation
from support.operations import BLOCK_SIZE, CPU, Bench


def moved_up(batch: StepBatch) -> StepBatch:
    """The same tables behind positions that have no slots any more, of each row others unless rows share tokens."""
    spread = 1 if len(batch.shared) else 3
    dropped = np.array([BLOCK_SIZE * (1 + row % spread) for row in range(len(batch.query_lengths))], dtype=np.int64)
    more = torch.from_numpy(dropped).repeat_interleave(torch.tensor(batch.query_lengths))
    return replace(
        batch,
        positions=batch.positions + more,
        context_lengths=[context + int(each) for context, each in zip(batch.context_lengths, dropped, strict=True)],
        dropped=(dropped,),
    )


def asked_of(case: Case) -> list[int]:
    """All queries of some of a case's rows, the last of others, and of some nothing."""
    return [(added, 1, 0, -(-added // 2))[row % 4] for row, (added, _) in enumerate(case.rows)]


def weighed(
    bench: Bench,
    entry: Implementation,
    queries: list[int],
    *,
    moved: bool = False,
    device: torch.device = CPU,
    selected: bool = False,
) -> tuple[NDArray[np.float32], list[Tensor]]:
    """What is weighed of the last `queries` of each row, and the outputs; options are as in `Bench.run`."""
    masses = np.zeros((len(queries), -(-max(context for _, context in bench.case.rows) // BLOCK_SIZE)), np.float32)
    weighing = Weighing(queries, (masses,))

    def change(batch: StepBatch) -> StepBatch:
        return replace(moved_up(batch) if moved else batch, weighing=weighing)

    made = bench.run(entry, change=change, device=device, selected=selected)
    return weighing.read()[0], list(made.outputs)
