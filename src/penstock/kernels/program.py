"""A recorded model bound to weights and KV storage: a flat list of calls that runs one step."""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Binding, Choice, Dispatcher, Kernel, KVStorage, StepState
from penstock.kernels.packing import Weight
from penstock.kernels.tape import Tape

Instruction = tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""(function, registers read, registers written, registers freed afterwards)"""


class Program:
    """Runs a model step by step; make one with `compile_program`."""

    def __init__(self, code: tuple[Instruction, ...], registers: int, result: int, choices: tuple[Choice, ...]) -> None:
        self._code = code
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
        step = StepState(batch)
        values: list[Tensor | None] = [None] * self._registers
        for function, inputs, outputs, freed in self._code:
            if len(inputs) == 1:
                made = function(step, values[inputs[0]])
            else:
                made = function(step, *[values[index] for index in inputs])
            if len(outputs) == 1:
                values[outputs[0]] = made
            else:
                for index, value in zip(outputs, made or (), strict=True):
                    values[index] = value
            for index in freed:
                values[index] = None
        logits = values[self._result]
        assert logits is not None
        return logits


def compile_program(
    tape: Tape, weights: Mapping[str, Weight], kv: KVStorage, dtype: torch.dtype, dispatcher: Dispatcher
) -> Program:
    """Bind every recorded operation to an implementation, its weights and its KV planes.

    Raises ConfigurationError where no implementation fits an operation.
    """
    shared = Binding(weights, kv, dtype)
    code: list[Instruction] = []
    for step, dying in zip(tape.steps, tape.last_uses(), strict=True):
        reusable = tuple(value.index in dying for value in step.inputs)
        binding = Binding(weights, kv, dtype, reusable, shared.rope_tables)
        implementation = dispatcher.choose(step.operation, binding)
        inputs = tuple(value.index for value in step.inputs)
        outputs = tuple(value.index for value in step.outputs)
        code.append((implementation.prepare(step.operation, binding), inputs, outputs, dying))
    return Program(tuple(code), tape.num_values, tape.result.index, dispatcher.report())
