"""A model's operations on a GPU, one launch after another: what is staged for a step, and where values are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cuda.graphs import DecodeGraphs
from penstock.kernels.cuda.place import Place
from penstock.kernels.cuda.step import DeviceStep, Staging, arrays_of, asked_rows, carry, step_of, told, weighing_of
from penstock.kernels.dispatch import FusedStep, Kernel, StepState
from penstock.kernels.progress import pass_operation
from penstock.kernels.registers import last_uses
from penstock.kernels.tape import Value


@dataclass(frozen=True, slots=True, eq=False)
class DevicePart:
    """One operation of a device program.

    Attributes:
        place: where it runs.
        run: (step, inputs …) → the output, a tuple of them, or None where there is none. Inputs stay as they are.
        queries: of a sequence, that a tile of attention takes; 0 where it needs no tiles.
        storing: for a rotation, what it is together with the storing of its keys and values behind it.
        stores: for such a storing, where it stores.
        selected: whether it is carried out on the rows whose logits are wanted, and has to know where these are.
        share: for what several devices do together, what gives all of them the first one's tokens.
    """

    place: Place
    run: Callable[..., Any]
    queries: int = 0
    storing: "Callable[[Any], DevicePart] | None" = None
    stores: Any = None
    selected: bool = False
    share: Callable[[Tensor], None] | None = None

    @staticmethod
    def fuse(steps: Sequence[FusedStep], given: Sequence[Value], wanted: Sequence[Value], dtype: torch.dtype) -> Kernel:
        """A kernel that carries out all steps on the device."""
        return DeviceProgram(_with_stores(steps), given, wanted, dtype)


def _with_stores(steps: Sequence[FusedStep]) -> list[FusedStep]:
    """The same steps, with rotations and the storing of what they turned as one."""
    merged: list[FusedStep] = []
    for step in steps:
        before = merged[-1] if merged else None
        if (
            before is not None
            and before.part.storing is not None
            and step.part.stores is not None
            and step.inputs == before.outputs
        ):
            merged[-1] = FusedStep(before.part.storing(step.part.stores), before.inputs, before.outputs)
        else:
            merged.append(step)
    return merged


class DeviceProgram:
    """Launches the steps' kernels; called with a step's state and what is given, all in the device's memory."""

    def __init__(
        self, steps: Sequence[FusedStep], given: Sequence[Value], wanted: Sequence[Value], dtype: torch.dtype
    ) -> None:
        self._steps = [
            (step.part.run, step.part.selected, step.inputs, step.outputs, dying)
            for step, dying in zip(steps, last_uses(steps, (*given, *wanted)), strict=True)
        ]
        self._given, self._wanted, self._dtype = tuple(given), tuple(wanted), dtype
        self._queries = tuple(sorted({step.part.queries for step in steps} - {0}))
        self._selects = any(step.part.selected for step in steps)
        self._place = steps[0].part.place
        self._share = next((step.part.share for step in steps if step.part.share is not None), None)
        self._staging = Staging(self._place.device)
        self._graphs: DecodeGraphs | None = None

    def __call__(self, state: StepState, *values: Tensor) -> Any:
        batch = state.batch
        if self._graphs is None and not self._given:
            groups = len(batch.block_tables)
            self._graphs = DecodeGraphs(self._place, self.launch, groups, batch.block_size, self._share)
        with self._place.current():
            outputs = self._replayed(batch) or self._launched(batch, *values)
        if len(outputs) == 1:
            return outputs[0]
        return outputs or None

    def use_idle_time(self) -> bool:
        """Capture a graph while no request waits; whether any is left."""
        with self._place.current():
            return self._graphs is not None and self._graphs.capture_next()

    def _replayed(self, batch: StepBatch) -> tuple[Tensor, ...]:
        """What a graph makes of the batch; nothing where there is none for it."""
        size = None if self._graphs is None else self._graphs.fits(batch)
        return () if self._graphs is None or size is None else self._graphs.replay(batch, size)

    def _launched(self, batch: StepBatch, *values: Tensor) -> tuple[Tensor, ...]:
        arrays, asked = arrays_of(batch, self._queries), asked_rows(batch)
        selected = batch.selected if self._selects else batch
        further = [] if selected is batch else arrays_of(selected, self._queries)
        views = self._staging.send([*arrays, *further, *asked])
        carry(views[0], batch.carried, self._share)
        groups, end = len(batch.block_tables), len(arrays) + len(further)
        far = max(batch.context_lengths) > self._place.longest
        step = step_of(views[: len(arrays)], groups, self._queries, int(batch.places.max()), far)
        step = replace(step, weighing=weighing_of(batch, views[end:]))
        if further:
            wanted = step_of(views[len(arrays) : end], groups, self._queries, int(selected.places.max(initial=0)), far)
            step = replace(step, selected=wanted)
        outputs = self.launch(step, *values)
        if step.weighing is not None:
            told(batch, step.weighing)
        if self._graphs is not None:
            self._graphs.step_done(batch)
        return outputs

    def launch(self, step: DeviceStep, *given: Tensor) -> tuple[Tensor, ...]:
        """Carry out all steps; returns the wanted values."""
        values: dict[Value, Tensor] = dict(zip(self._given, given, strict=True))
        for run, selected, inputs, outputs, dying in self._steps:
            # The first time each kernel is compiled, which may take long and is no hang.
            pass_operation()
            made = run((step.selected or step) if selected else step, *[values[value] for value in inputs])
            if len(outputs) == 1:
                values[outputs[0]] = made
            elif made is not None:
                values.update(zip(outputs, made, strict=True))
            for value in dying:
                # What a step makes and no later one reads is not kept either.
                values.pop(value, None)
        return tuple(values[value].to(self._dtype) for value in self._wanted)
