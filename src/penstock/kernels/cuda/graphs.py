"""Decode steps that are launched as one: captured for a ladder of batch sizes, and replayed with other numbers.

A step of few rows takes the processor longer to launch than the GPU to compute. A graph is launched at once, but reads
and writes where it did when it was captured, so that a step's numbers are brought to the same place, and its rows
padded to a size that there is a graph of. Padding has no context, stores nothing, and its results are not read.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cuda.memory import memory_ended
from penstock.kernels.cuda.place import Place
from penstock.kernels.cuda.step import DeviceStep, Staging, arrays_of, before_tables, carry, int32s_for, step_of

# Batch sizes that there are graphs of: steps of a batch between two take as long as those of the larger.
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Steps between two captures while there is no idle time: each of these is a short wait for the rows of the step.
_STEPS_BETWEEN = 64

_log = logging.getLogger(__name__)


def sizes_for(most_rows: int) -> tuple[int, ...]:
    """The batch sizes that there will be graphs of, where a step has at most `most_rows` rows."""
    return tuple(sorted({size for size in (*LADDER, most_rows) if size <= min(most_rows, LADDER[-1])}))


Launch = Callable[[DeviceStep], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class _Captured:
    """A graph of one size, and where it reads its step, and the tables of each KV group [size, blocks]."""

    memory: Tensor
    tables: tuple[Tensor, ...]
    replay: Callable[[], tuple[Tensor, ...]]


def _empty_batch(groups: int, block_size: int) -> StepBatch:
    """A batch of no rows, to be padded."""
    nothing = torch.empty(0, dtype=torch.int64)
    return StepBatch(
        token_ids=nothing,
        positions=nothing,
        query_lengths=[],
        context_lengths=[],
        num_decodes=0,
        logit_rows=nothing,
        block_tables=(torch.empty((0, 1), dtype=torch.int32),) * groups,
        block_size=block_size,
    )


class DecodeGraphs:
    """Graphs of one program's decode steps, captured one at a time while no request waits.

    Args:
        place: where it runs. Where that is this process's memory, nothing can be captured and steps are launched again,
            with their numbers in the same place all the same.
        launch: carries out a step.
        groups, block_size: of the KV cache.
        share: as `carry` takes it. Ranks capture the same graphs at the same time, or none of them.
    """

    def __init__(
        self,
        place: Place,
        launch: Launch,
        groups: int,
        block_size: int,
        share: Callable[[Tensor], None] | None = None,
    ) -> None:
        self._place, self._launch = place, launch
        self._groups, self._block_size = groups, block_size
        self._share = share
        self._staging = Staging(place.device)
        self._captured: dict[int, _Captured] = {}
        self._left = list(sizes_for(place.most_rows))
        self._steps = 0
        self._pool: Any = None
        # Where all graphs leave what they compute, as large as the largest needs it: a vocabulary wide for each row.
        self._outputs: tuple[Tensor, ...] = ()

    def fits(self, batch: StepBatch) -> int | None:
        """The size of the smallest graph that can carry the batch out; None where there is none."""
        rows = len(batch.query_lengths)
        whole = batch.num_decodes == rows == len(batch.logit_rows) and not len(batch.shared)
        # What is weighed, and angles of positions that the model was not made for, are left to launches.
        whole = whole and batch.weighing is None and max(batch.context_lengths, default=0) <= self._place.longest
        return min((size for size in self._captured if size >= rows), default=None) if whole else None

    def replay(self, batch: StepBatch, size: int) -> tuple[Tensor, ...]:
        """The batch's outputs; what reads them is to be launched before the next replay."""
        captured = self._captured[size]
        arrays, first = arrays_of(batch, (), size), before_tables(self._groups)
        token_ids, *_ = self._staging.send(arrays[:first], captured.memory)
        carry(token_ids, batch.carried, self._share)
        # Blocks behind the batch's contexts are not read, so that what was there may stay.
        for table, found in zip(captured.tables, self._staging.send(arrays[first:]), strict=True):
            table[:, : found.shape[1]].copy_(found)
        return tuple(output[: len(batch.query_lengths)] for output in captured.replay())

    def step_done(self, batch: StepBatch) -> None:
        """Count a step that no graph carried out; after many, capture one for batches like this."""
        self._steps += 1
        if self._steps % _STEPS_BETWEEN == 0:
            self.capture_next(len(batch.query_lengths))

    def capture_next(self, rows: int = 1) -> bool:
        """Capture the smallest size that is left for `rows` rows; whether any is left then.

        Where memory ends, no more are captured, and larger batches are launched as before.
        """
        size = min((size for size in self._left if size >= rows), default=None)
        if size is None:
            return False
        self._left.remove(size)
        ended = False
        try:
            self._capture_size(size)
        except RuntimeError as error:
            # Other ranks would wait in vain for this one.
            if self._share is not None or not memory_ended(error):
                raise
            ended = True
        if ended:
            _log.warning("No memory is left for a graph of %d rows: steps of that size are launched one by one.", size)
            self._left.clear()
            # Only now does no frame hold what the attempt has made.
            torch.cuda.empty_cache()
        return bool(self._left)

    def _capture_size(self, size: int) -> None:
        arrays = arrays_of(_empty_batch(self._groups, self._block_size), (), size)
        fixed = arrays[: before_tables(self._groups)]
        device, width = self._place.device, -(-self._place.longest // self._block_size)
        memory = torch.empty(int32s_for(fixed), dtype=torch.int32, device=device)
        tables = tuple(torch.zeros((size, width), dtype=torch.int32, device=device) for _ in range(self._groups))
        step = step_of([*self._staging.send(fixed, memory), *tables], self._groups, (), self._place.longest)
        self._captured[size] = _Captured(memory, tables, self._capture(step))

    def _capture(self, step: DeviceStep) -> Callable[[], tuple[Tensor, ...]]:
        # Once as it is, so that all kernels are compiled and all memory is found before anything is recorded.
        made = self._launch(step)
        if not self._outputs:
            most = max(sizes_for(self._place.most_rows))
            self._outputs = tuple(each.new_empty((most, *each.shape[1:])) for each in made)
        outputs = tuple(whole[: len(each)] for whole, each in zip(self._outputs, made, strict=True))
        del made

        def launch() -> None:
            for target, each in zip(outputs, self._launch(step), strict=True):
                target.copy_(each)

        record: Callable[[], None] = launch
        if self._place.device.type == "cuda":
            torch.cuda.synchronize(self._place.device)
            graph = torch.cuda.CUDAGraph()
            # Graphs are replayed one at a time, so that they may share the memory of what they compute.
            with torch.cuda.graph(graph, pool=self._pool):
                launch()
            self._pool = graph.pool()
            record = graph.replay

        def replay() -> tuple[Tensor, ...]:
            record()
            return outputs

        return replay
