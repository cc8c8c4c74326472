"""A recorded model bound to weights and KV storage: a flat list of calls that runs one step."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.core.shares import Stripe
from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import (
    Binding,
    Decodes,
    Dispatched,
    Dispatcher,
    FusedStep,
    Fusible,
    Kernel,
    KVPlanes,
    Prepares,
    StepState,
)
from penstock.kernels.packing import Weight
from penstock.kernels.places import RopeSpec
from penstock.kernels.progress import pass_operation
from penstock.kernels.ranks import Ranks
from penstock.kernels.registers import assign_registers, last_uses
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import PLACED
from penstock.kernels.tape import Step, Tape, Value


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One call: `function` reads the registers `inputs` and its results go to the registers `outputs`."""

    function: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Program:
    """Runs a model step by step; make one with `compile_program`.

    Attributes:
        choices: which implementations it is made of.
        given: what `results` has to be brought, [rows, width] each.
        decode: several tokens of each row in one call (`kernels.dispatch.Decodes`), a second result being given to the
            next step; None where a step is more than one native call.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        registers: int,
        given: Sequence[int],
        results: Sequence[int],
        choices: tuple[Dispatched, ...],
    ) -> None:
        whole = instructions[0].function if len(instructions) == 1 and len(results) == 1 + len(given) <= 2 else None
        self.decode: Callable[..., list[tuple[list[int], list[float]]]] | None = (
            whole.decode if isinstance(whole, Decodes) else None
        )
        # Almost every call has one input and one output, and the loop is on the way of every token.
        self._code = tuple(
            (step.function, step.inputs[0], step.outputs[0], None)
            if len(step.inputs) == len(step.outputs) == 1
            else (step.function, 0, 0, step)
            for step in instructions
        )
        self._registers = registers
        self._given = tuple(given)
        self._results = tuple(results)
        self.choices = choices

    @property
    def row_function(self) -> bool:
        """Whether every kernel gives each row a result that depends on that row alone."""
        return all(choice.row_function for choice in self.choices)

    @torch.inference_mode()
    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and makes later steps faster; whether more is left."""
        functions: list[object] = [function for function, *_ in self._code]
        return any(function.use_idle_time() for function in functions if isinstance(function, Prepares))

    def run(self, batch: StepBatch) -> Tensor:
        """Compute one step and store its keys and values; returns logits [len(batch.logit_rows), vocab]."""
        return self.results(batch)[0]

    @torch.inference_mode()
    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """The same with what the tape is `given`; returns all of its results."""
        state = StepState(batch)
        values: list[Any] = [None] * self._registers
        for register, tensor in zip(self._given, given, strict=True):
            values[register] = tensor
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
        return tuple([values[register] for register in self._results])


def compile_program(
    tape: Tape,
    weights: Mapping[str, Weight],
    kv: KVPlanes,
    dtype: torch.dtype,
    dispatcher: Dispatcher,
    ranks: Ranks | None = None,
) -> Program:
    """Bind every recorded operation to an implementation, its weights and its KV planes; fuse those that can be.

    `ranks` are those that compute it together, if there are others.

    Results are in float32 where the kernel that makes them is fused and makes nothing else, else in `dtype`. Raises
    ConfigurationError where no implementation fits an operation.
    """
    rope_tables: dict[RopeSpec, RopeTable] = {}
    bound: list[_Bound] = []
    steps = _needed(tape)
    for step, dying in zip(steps, last_uses(steps, (*tape.given, *tape.results)), strict=True):
        reusable = tuple(value in dying for value in step.inputs)
        selected = isinstance(step.operation, PLACED) and step.inputs[0].selected
        stripe = step.inputs[0].stripe if isinstance(step.operation, PLACED) else None
        binding = Binding(weights, kv, dtype, reusable, rope_tables, selected, ranks, stripe)
        prepared = dispatcher.choose(step.operation, binding).prepare(step.operation, binding)
        if selected and callable(prepared):
            prepared = on_selected(prepared)
        if stripe is not None and callable(prepared):
            prepared = on_share(prepared, stripe)
        bound.append(_Bound(prepared, step.inputs, step.outputs))
    calls = _fuse(bound, tape.results, dtype)
    # A dead value's register goes to the next one, which so frees its memory.
    registers = assign_registers(calls, [(None,) * len(call.outputs) for call in calls], tape.given, tape.results)
    instructions: list[Instruction] = []
    for call in calls:
        if not callable(call.prepared):
            raise TypeError(f"{call.prepared!r} is left of a fusion and cannot be called")
        inputs = tuple(registers[value] for value in call.inputs)
        instructions.append(Instruction(call.prepared, inputs, tuple(registers[value] for value in call.outputs)))
    given, results = ([registers[value] for value in values] for values in (tape.given, tape.results))
    return Program(instructions, 1 + max(registers.values()), given, results, dispatcher.report())


def on_selected(kernel: Kernel) -> Kernel:
    """The same kernel for rows whose logits are wanted."""
    return lambda state, *values: kernel(state.selected, *values)


def on_share(kernel: Kernel, stripe: Stripe) -> Kernel:
    """The same kernel for rows of a rank's share."""
    return lambda state, *values: kernel(state.of_share(stripe), *values)


def _needed(tape: Tape) -> list[Step]:
    """The steps that store something, or make what a result comes from."""
    kept: list[Step] = []
    read = set(tape.results)
    for step in reversed(tape.steps):
        if not step.outputs or not read.isdisjoint(step.outputs):
            kept.append(step)
            read.update(step.inputs)
    kept.reverse()
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """What was made of an operation, or of several, with the values that it reads and makes."""

    prepared: Kernel | Fusible
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def _fuse(calls: Sequence[_Bound], results: Sequence[Value], dtype: torch.dtype) -> list[_Bound]:
    """The same calls with every run of fusible ones as one."""
    fused: list[_Bound] = []
    for run, members in itertools.groupby(enumerate(calls), lambda call: type(call[1].prepared)):
        group = list(members)
        if not hasattr(run, "fuse"):
            fused.extend(call for _, call in group)
            continue
        steps = [FusedStep(call.prepared, call.inputs, call.outputs) for _, call in group]
        later = {value for call in calls[group[-1][0] + 1 :] for value in call.inputs} | set(results)
        made = dict.fromkeys(value for step in steps for value in step.outputs)
        given = tuple(dict.fromkeys(value for step in steps for value in step.inputs if value not in made))
        wanted = tuple(value for value in made if value in later)
        last = set(wanted) <= set(results)
        if last:
            wanted = tuple(value for value in results if value in made)
        kernel = run.fuse(steps, given, wanted, torch.float32 if last else dtype)
        fused.append(_Bound(kernel, given, wanted))
    return fused
