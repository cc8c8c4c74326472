"""A recorded model bound to weights and KV storage: a flat list of calls that runs one step."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Binding, Choice, Dispatcher, FusedStep, Fusible, Kernel, KVStorage, StepState
from penstock.kernels.packing import Weight
from penstock.kernels.progress import pass_operation
from penstock.kernels.registers import assign_registers, last_uses
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import RopeSpec
from penstock.kernels.tape import Tape, Value


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One call: `function` reads the registers `inputs` and its results go to the registers `outputs`."""

    function: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Program:
    """Runs a model step by step; make one with `compile_program`."""

    def __init__(
        self, instructions: Sequence[Instruction], registers: int, result: int, choices: tuple[Choice, ...]
    ) -> None:
        # Almost every call has one input and one output, and the loop is on the way of every token.
        self._code = tuple(
            (step.function, step.inputs[0], step.outputs[0], None)
            if len(step.inputs) == len(step.outputs) == 1
            else (step.function, 0, 0, step)
            for step in instructions
        )
        self._registers = registers
        self._result = result
        self.choices = choices

    @property
    def row_function(self) -> bool:
        """Whether every kernel gives each row a result that depends on that row alone."""
        return all(choice.row_function for choice in self.choices)

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> Tensor:
        """Compute one step and store its keys and values; returns logits [len(batch.logit_rows), vocab]."""
        state = StepState(batch)
        values: list[Any] = [None] * self._registers
        for function, source, target, general in self._code:
            pass_operation()
            if general is None:
                values[target] = function(state, values[source])
                continue
            made = function(state, *[values[index] for index in general.inputs])
            if len(general.outputs) == 1:
                values[general.outputs[0]] = made
            elif made is not None:
                for index, value in zip(general.outputs, made, strict=True):
                    values[index] = value
        logits: Tensor = values[self._result]
        return logits


def compile_program(
    tape: Tape, weights: Mapping[str, Weight], kv: KVStorage, dtype: torch.dtype, dispatcher: Dispatcher
) -> Program:
    """Bind every recorded operation to an implementation, its weights and its KV planes; fuse those that can be.

    The result is in float32 where the kernel that makes it is fused, else in `dtype`. Raises ConfigurationError where
    no implementation fits an operation.
    """
    rope_tables: dict[RopeSpec, RopeTable] = {}
    bound: list[_Bound] = []
    for step, dying in zip(tape.steps, last_uses(tape.steps, (tape.result,)), strict=True):
        reusable = tuple(value in dying for value in step.inputs)
        binding = Binding(weights, kv, dtype, reusable, rope_tables)
        prepared = dispatcher.choose(step.operation, binding).prepare(step.operation, binding)
        bound.append(_Bound(prepared, step.inputs, step.outputs))
    calls = _fuse(bound, tape.result, dtype)
    # A dead value's register goes to the next one, which so frees its memory.
    registers = assign_registers(calls, [(None,) * len(call.outputs) for call in calls], (), (tape.result,))
    instructions: list[Instruction] = []
    for call in calls:
        if not callable(call.prepared):
            raise TypeError(f"{call.prepared!r} is left of a fusion and cannot be called")
        inputs = tuple(registers[value] for value in call.inputs)
        instructions.append(Instruction(call.prepared, inputs, tuple(registers[value] for value in call.outputs)))
    return Program(instructions, 1 + max(registers.values()), registers[tape.result], dispatcher.report())


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """What was made of an operation, or of several, with the values that it reads and makes."""

    prepared: Kernel | Fusible
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def _fuse(calls: Sequence[_Bound], result: Value, dtype: torch.dtype) -> list[_Bound]:
    """The same calls with every run of fusible ones as one."""
    fused: list[_Bound] = []
    for run, members in itertools.groupby(enumerate(calls), lambda call: type(call[1].prepared)):
        group = list(members)
        if not hasattr(run, "fuse"):
            fused.extend(call for _, call in group)
            continue
        steps = [FusedStep(call.prepared, call.inputs, call.outputs) for _, call in group]
        later = {value for call in calls[group[-1][0] + 1 :] for value in call.inputs} | {result}
        made = dict.fromkeys(value for step in steps for value in step.outputs)
        given = tuple(dict.fromkeys(value for step in steps for value in step.inputs if value not in made))
        wanted = tuple(value for value in made if value in later)
        kernel = run.fuse(steps, given, wanted, torch.float32 if wanted == (result,) else dtype)
        fused.append(_Bound(kernel, given, wanted))
    return fused
