"""A recorded model bound to weights and KV storage: a flat list of calls that runs one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Binding, Choice, Dispatcher, Kernel, KVStorage, StepState
from penstock.kernels.packing import Weight
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import RopeSpec
from penstock.kernels.tape import Tape


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
    """Bind every recorded operation to an implementation, its weights and its KV planes.

    Raises ConfigurationError where no implementation fits an operation.
    """
    rope_tables: dict[RopeSpec, RopeTable] = {}
    registers = _Registers()
    instructions: list[Instruction] = []
    for step, dying in zip(tape.steps, tape.last_uses(), strict=True):
        reusable = tuple(value.index in dying for value in step.inputs)
        binding = Binding(weights, kv, dtype, reusable, rope_tables)
        implementation = dispatcher.choose(step.operation, binding)
        inputs = tuple(registers.of(value.index) for value in step.inputs)
        outputs = tuple(registers.of(value.index) for value in step.outputs)
        instructions.append(Instruction(implementation.prepare(step.operation, binding), inputs, outputs))
        for index in dying:
            registers.free(index)
    return Program(instructions, registers.count, registers.of(tape.result.index), dispatcher.report())


class _Registers:
    """Gives values places in a list. A dead value's place goes to the next one, which so frees its memory."""

    def __init__(self) -> None:
        self.count = 0
        self._free: list[int] = []
        self._of: dict[int, int] = {}

    def of(self, value: int) -> int:
        """The register of `value`, a free one where it has none yet."""
        if value not in self._of:
            if not self._free:
                self._free.append(self.count)
                self.count += 1
            self._of[value] = self._free.pop()
        return self._of[value]

    def free(self, value: int) -> None:
        """Let another value have the register of `value`, which is not used any more."""
        self._free.append(self._of[value])
