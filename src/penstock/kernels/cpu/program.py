"""Operations that run one after another in native code: one call for a run of them, without Python in between."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.kernels.batch import NOTHING_SHARED, StepBatch
from penstock.kernels.cpu.native import native
from penstock.kernels.cpu.row_wise import Piece, pieces_of
from penstock.kernels.dispatch import FusedStep, Kernel, StepState
from penstock.kernels.registers import Reuses, assign_registers
from penstock.kernels.rope import LONGEST_TABLE, RopeTable
from penstock.kernels.signature import GateName
from penstock.kernels.tape import Value

_NOTHING = NOTHING_SHARED.numpy()


@dataclass(slots=True)
class ProgramBuilder:
    """A native program while operations are added to it, with the rope tables that grow with the context."""

    program: "native.Program"
    ropes: dict[int, tuple[int, RopeTable]] = field(default_factory=dict)

    def rope(self, table: RopeTable) -> int:
        """The number under which the program knows `table`."""
        if id(table) not in self.ropes:
            self.ropes[id(table)] = self.program.add_rope(table.entries.float()), table
        return self.ropes[id(table)][0]


Registers = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class NativeCall:
    """One operation of a native program.

    Attributes:
        add: (builder, registers of the inputs, registers of the outputs) → None: adds it to a program.
        reuses: for each output the input whose register it may take, or None.
        with_gate: for a projection to [gates | ups], what it is together with the gate behind it.
        gate: for a gate, its activation.
        by_row: whether each row of its outputs depends on that row of its inputs alone.
        weight_bytes: how large the weights are that it reads for all rows.
        unpacks: whether it makes its weights larger before they meet many rows, once for all of these.
    """

    add: Callable[[ProgramBuilder, Registers, Registers], None]
    reuses: Reuses = (None,)
    with_gate: "Callable[[GateName], NativeCall] | None" = None
    gate: GateName | None = None
    by_row: bool = True
    weight_bytes: int = 0
    unpacks: bool = False

    @staticmethod
    def fuse(steps: Sequence[FusedStep], given: Sequence[Value], wanted: Sequence[Value], dtype: torch.dtype) -> Kernel:
        """A kernel that carries out all steps in one native call."""
        steps = _with_gates(steps, wanted)
        pieces = pieces_of(steps, wanted)
        # A wanted value is computed in the memory of its tensor, which is large enough for it alone; what is given is
        # copied into its register, which may so be overwritten.
        registers = assign_registers(pieces, [_reuses(piece) for piece in pieces], given, wanted)
        own = [_own_registers(piece) for piece in pieces]
        numbers = [number for each in (registers, *own) for number in each.values()]
        builder = ProgramBuilder(native.Program(1 + max(numbers, default=0)))
        for piece, within in zip(pieces, own, strict=True):
            if within:
                builder.program.begin_rows(
                    [(registers[value], within[value]) for value in piece.inputs],
                    [(registers[value], within[value], value.width) for value in piece.outputs],
                )
            for step in piece.steps:
                places = within or registers
                inputs = tuple(places[value] for value in step.inputs)
                step.part.add(builder, inputs, tuple(places[value] for value in step.outputs))
            if within:
                builder.program.end_rows()
        return _Runner(
            builder, [registers[value] for value in given], [(registers[value], value) for value in wanted], dtype
        )


def _reuses(piece: Piece) -> Reuses:
    """As assign_registers wants them: a run has the rows of others' registers, and leaves them as they are."""
    return piece.steps[0].part.reuses if len(piece.steps) == 1 else (None,) * len(piece.outputs)


def _own_registers(piece: Piece) -> dict[Value, int]:
    """The registers of a run; a single step has those of the program."""
    if len(piece.steps) == 1:
        return {}
    reuses = [step.part.reuses for step in piece.steps]
    return assign_registers(piece.steps, reuses, (), (*piece.outputs, *piece.inputs))


def _with_gates(steps: Sequence[FusedStep], wanted: Sequence[Value]) -> list[FusedStep]:
    """The same steps, with projections and the gates behind them as one where nothing else reads between them."""
    readers = Counter(value for step in steps for value in step.inputs)
    readers.update(wanted)
    merged: list[FusedStep] = []
    for step in steps:
        before = merged[-1] if merged else None
        if (
            before is not None
            and before.part.with_gate is not None
            and step.part.gate is not None
            and step.inputs == before.outputs
            and readers[step.inputs[0]] == 1
        ):
            merged[-1] = FusedStep(before.part.with_gate(step.part.gate), before.inputs, step.outputs)
        else:
            merged.append(step)
    return merged


class _Runner:
    """Calls a native program with the arrays of a step."""

    def __init__(
        self, builder: ProgramBuilder, given: Sequence[int], wanted: Sequence[tuple[int, Value]], dtype: torch.dtype
    ) -> None:
        self._program = builder.program
        self._ropes = tuple(builder.ropes.values())
        self._reach = self._shortest_rope()
        # Whether it has the angles of its last step's positions only.
        self._is_far = False
        self._given, self._wanted, self._dtype = tuple(given), tuple(wanted), dtype

    def __call__(self, state: StepState, *values: Tensor) -> Any:
        batch = state.batch
        self._reach_angles(batch, batch.context_lengths)
        tokens, selected = batch.token_ids.shape[0], batch.logit_rows.shape[0]
        outputs = [
            _empty(_rows(value, tokens, selected), value.width, torch.float32 if value.exact else self._dtype)
            for _, value in self._wanted
        ]
        self._program.run(
            *_arrays(batch),
            list(zip(self._given, values, strict=True)),
            [(register, memory) for (register, _), (_, memory) in zip(self._wanted, outputs, strict=True)],
            *_rest(batch),
        )
        if len(outputs) == 1:
            return outputs[0][0]
        return tuple(output for output, _ in outputs) if outputs else None

    def decode(
        self, batch: StepBatch, tokens: Sequence[int], ranks: Sequence[int], choices: Sequence[Any], *given: Tensor
    ) -> list[tuple[list[int], list[float]]]:
        """See `kernels.dispatch.Decodes`."""
        (register, logits), *made = self._wanted
        feedback = None
        if given:
            feedback = self._given[0], made[0][0], given[0]
        ends = [context + more - 1 for context, more in zip(batch.context_lengths, tokens, strict=True)]
        self._reach_angles(batch, ends)
        return self._program.decode(
            *_arrays(batch),
            register,
            logits.width,
            tokens,
            choices,
            ranks,
            feedback,
        )

    def _shortest_rope(self) -> int | None:
        return min((table.entries.shape[0] for _, table in self._ropes), default=None)

    def _reach_angles(self, batch: StepBatch, ends: Sequence[int]) -> None:
        """The program has the angles of all positions of a step, whose contexts have these ends when it is over."""
        if self._reach is None or (max(ends) <= self._reach and not self._is_far):
            return
        begins = zip(batch.context_lengths, batch.query_lengths, strict=True)
        spans = [(context - added, end) for (context, added), end in zip(begins, ends, strict=True)]
        for index, table in self._ropes:
            self._program.set_rope(index, table.spanning(spans))
        self._reach = self._shortest_rope()
        self._is_far = max(ends) > LONGEST_TABLE


Int64s = NDArray[np.int64]


def _rows(value: Value, tokens: int, selected: int) -> int:
    """How many it has in a step."""
    if value.stripe is None:
        return selected if value.selected else tokens
    own = value.stripe.rows(tokens)
    return int(own.stop - own.start)


def _empty(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | NDArray[np.float32]]:
    """A tensor, and its memory for native code: numpy, where it knows the type, hands it on several times faster."""
    if dtype != torch.float32:
        tensor = torch.empty((rows, width), dtype=dtype)
        return tensor, tensor
    memory = np.empty((rows, width), np.float32)
    return torch.from_numpy(memory), memory


_Rest = tuple[Sequence[Int64s], list[int], Sequence[NDArray[np.float32]], Int64s | None, list[int], Int64s | None]


def _rest(batch: StepBatch) -> _Rest | tuple[()]:
    """What few steps have, as native programs take it behind all else.

    It is what was dropped, what is weighed, types, how long sources are, and how many tokens of rows are seen.
    """
    weighing, types, seen = batch.weighing, batch.types, batch.seen
    if weighing is None and types is None and seen is None and not batch.dropped and not batch.sources:
        return ()
    queries, masses = ([], ()) if weighing is None else (weighing.queries, weighing.masses)
    of_tokens, of_rows = (None if each is None else each.numpy() for each in (types, seen))
    return batch.dropped, queries, masses, of_tokens, batch.sources, of_rows


def _arrays(
    batch: StepBatch,
) -> tuple[Int64s, Int64s, list[int], list[int], Int64s, tuple[NDArray[np.int32], ...], int, Int64s]:
    """A step as native programs take it: their first arguments, in order."""
    return (
        batch.token_ids.numpy(),
        batch.positions.numpy(),
        batch.query_lengths,
        batch.context_lengths,
        batch.logit_rows.numpy(),
        tuple([table.numpy() for table in batch.block_tables]),
        batch.block_size,
        _NOTHING if batch.shared is NOTHING_SHARED else batch.shared.numpy(),
    )
