"""Runs one operation alone, by any of its implementations, on a batch of given shape."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cases import CASES, Case
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import pack_dense
from penstock.kernels.dispatch import Binding, FusedStep, Fusible, Implementation, Kernel, KVLayout, StepState
from penstock.kernels.kv_bytes import kind_of, raw, to_bytes
from penstock.kernels.mixing import route
from penstock.kernels.packing import Weight
from penstock.kernels.program import on_selected
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import Attention, Experts, Positions, Route, Routing, RowAttention, SelectRows, Types
from penstock.kernels.tape import Value
from penstock.kernels.torch.packing import pack_linear, packing_obstacle
from support.layouts import nibbles_of, slots_of, stored, stored_nibbles
from support.stepping import CPU, ShuffledStorage

BLOCK_SIZE = 16
PACKING: dict[str, Callable[[Tensor], Weight]] = {"native": pack_dense, "onednn_packed": pack_linear}


def named(value: object) -> str:
    """Of a test's parameter."""
    return f"{value.op}/{value.name}" if isinstance(value, Case) else str(getattr(value, "name", value))


def obstacle(implementation: Implementation, dtype: torch.dtype) -> str | None:
    """Why an implementation cannot run in this installation."""
    if implementation.name == "onednn_packed":
        return packing_obstacle(dtype)
    return OBSTACLE if implementation.name == "native" else None


def _kind(name: str) -> str:
    """Of a layer's planes, where scales are as they are for either."""
    return "scale" if name.endswith("scale") else name


@functools.cache
def _token_id(place: int) -> int:
    """That of the token at a place of the batch."""
    return random.Random(place).randrange(11)


@dataclass
class Run:
    """What an operation made of its inputs, and of the planes; on the CPU, wherever it ran."""

    outputs: tuple[Tensor, ...]
    planes: tuple[Tensor, ...]


class Bench:
    """The inputs of a case in `dtype`, the same for every implementation, on whichever device it runs."""

    def __init__(self, case: Case, dtype: torch.dtype, kept: str = "auto") -> None:
        self.case, self.dtype = case, dtype
        generator = torch.Generator().manual_seed(len(case.name))
        self.inputs = [self._normal((case.tokens, width), generator) for width in case.widths]
        self.weights = {name: self._normal(shape, generator) for name, shape in case.weights.items()}
        if isinstance(case.operation, Experts):
            # Rows go to experts that there are.
            logits = torch.randn((case.tokens, case.operation.experts), generator=generator)
            routed = route(logits, None, Routing(case.operation.experts, case.widths[1] // 2))
            self.inputs[1] = routed
        self.context = self._normal((sum(case.stored), 2, case.kv.kv_heads, case.kv.head_dim), generator)
        if case.kv.latent:
            self.context[:, 1] = self.context[:, 0]
        longest = max(case.stored)
        self.storage = ShuffledStorage([case.kv], dtype, longest, len(case.rows), BLOCK_SIZE, kept=kept)
        self._planes = self.storage.planes(0)
        # Which versions of which tensors the cache was filled from last, these tensors, and the bytes.
        self._full: tuple[object, list[Tensor], Tensor] | None = None
        # The slots of every row's positions; of the blocks that rows have, of their contexts, and of the step's tokens.
        slots = (self.storage.tables[0].long()[:, :, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten(1)
        spans = list(zip(slots, case.stored, strict=True))
        self._owned = torch.cat([of[: -(-stored // BLOCK_SIZE) * BLOCK_SIZE] for of, stored in spans])
        self._filled = torch.cat([of[:stored] for of, stored in spans])
        own = zip(slots, case.rows, strict=True)
        self._added = torch.cat([of[context - added : context] for of, (added, context) in own])

    def run(
        self,
        implementation: Implementation,
        *,
        reusable: bool = True,
        only: int | None = None,
        device: torch.device = CPU,
        selected: bool = False,
        change: Callable[[StepBatch], StepBatch] | None = None,
    ) -> Run:
        """Carry the operation out on `device`, its matrices packed as it wants.

        With `only`, for that row of the batch alone. With `selected`, it is given the case's wanted tokens alone. The
        batch is what `change` makes of it.
        """
        chosen = range(len(self.case.rows)) if only is None else [only]
        self.place_on(device, "tiles" if implementation.name == "native" else "slots")
        batch, tokens = self._batch(list(chosen))
        if change is not None:
            batch = change(batch)
        pack = PACKING.get(implementation.name)
        weights = {
            name: pack(weight) if pack is not None and self._packs(weight) else weight.clone().to(device)
            for name, weight in self.weights.items()
        }
        reusables = (reusable,) * len(self.case.widths)
        binding = Binding(weights, self.storage, self.dtype, reusables, selected=selected)
        assert implementation.supports(self.case.operation, binding) is None
        kernel = self._kernel(implementation.prepare(self.case.operation, binding), selected)
        tokens = tokens[batch.logit_rows] if selected else tokens
        inputs = [value[tokens].clone().to(device) for value in self.inputs]
        with torch.inference_mode():
            made = kernel(StepState(batch), *inputs)
        outputs = () if made is None else made if isinstance(made, tuple) else (made,)
        if not reusable:
            for value, given in zip(inputs, self.inputs, strict=True):
                assert torch.equal(value.cpu(), given[tokens]), "an input that is needed afterwards was overwritten"
        planes = tuple(self._read(name).cpu().clone() for name in self._planes)
        return Run(tuple(output.cpu().clone() for output in outputs), planes)

    def place_on(self, device: torch.device, layout: KVLayout) -> None:
        """Put the cache, filled with every row's context, into a device's memory."""
        self.storage.layout = layout
        self.storage.move(device)
        self._planes = self.storage.planes(0)
        sources = [self.context, *self.inputs]
        made_of = (layout, [(id(source), source._version) for source in sources])
        if self._full is not None and self._full[0] == made_of:
            self.storage.restore(self._full[2])
        else:
            self._fill_planes()
            self._full = made_of, sources, self.storage.copy()

    def _packs(self, weight: Tensor) -> bool:
        """Whether it is a matrix that kernels take packed, and not rows to be looked up."""
        return weight.dim() == 2 and not isinstance(self.case.operation, Positions | Types | Attention | RowAttention)

    def _kernel(self, prepared: Kernel | Fusible, given_selected: bool) -> Kernel:
        """What an implementation made of the operation; a part of a fused kernel becomes one of its own."""
        if callable(prepared):
            return on_selected(prepared) if given_selected else prepared
        inputs = tuple(Value(index, width, given_selected) for index, width in enumerate(self.case.widths))
        selected = given_selected or isinstance(self.case.operation, SelectRows)
        exact = isinstance(self.case.operation, Route)
        outputs = tuple(
            Value(len(inputs) + index, width, selected, exact) for index, width in enumerate(self.case.output_widths)
        )
        return prepared.fuse([FusedStep(prepared, inputs, outputs)], inputs, outputs, self.dtype)

    def _normal(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=generator).to(self.dtype)

    def _fill_planes(self) -> None:
        """Every row's context into its blocks; what nobody owns holds NaN."""
        planes = self._planes
        shape = (planes["key"].shape[0] * BLOCK_SIZE, planes["key"].shape[2], self.case.kv.head_dim)
        keys, values = (torch.full(shape, torch.nan, dtype=self.dtype) for _ in "kv")
        keys[self._owned], values[self._owned] = 0, 0
        keys[self._filled], values[self._filled] = self.context.unbind(1)
        if isinstance(self.case.operation, Attention):
            self._write_own(keys, values)
        for name, heads in (("key", keys), ("value", values)):
            if name not in planes:
                continue
            if kind_of(planes) == "plain":
                self._store(name, heads)
            else:
                found, scales = to_bytes(heads, planes[name].dtype)
                self._store(name, raw(found))
                self._store(f"{name}_scale", scales)

    def _store(self, name: str, slots: Tensor) -> None:
        plane = self._planes[name]
        write = stored_nibbles if self._shares(name) else stored
        raw(plane).copy_(write(slots, _kind(name), self.storage.layout, self._multiplied()).view(plane.shape))

    def _read(self, name: str) -> Tensor:
        plane = raw(self._planes[name]).flatten(0, 1)
        read = nibbles_of if self._shares(name) else slots_of
        return read(plane, _kind(name), self.storage.layout, self._multiplied())

    def _multiplied(self) -> int:
        """Bytes of what attention multiplies: integers are in pairs, like values of two bytes."""
        return 2 if kind_of(self._planes) == "int8" else self.dtype.itemsize

    def _shares(self, name: str) -> bool:
        """Whether two values share a byte."""
        return kind_of(self._planes) == "int4" and _kind(name) != "scale"

    def _write_own(self, keys: Tensor, values: Tensor) -> None:
        """The step's own keys and values, which are written before attention reads them."""
        if self.case.operation.borrows:
            return
        heads = self.case.operation.heads
        own = self.inputs[0][:, heads.query_width :].unflatten(1, (-1, heads.kv_heads, heads.head_dim))
        keys[self._added], values[self._added] = own[:, 0], own[:, -1]

    def _batch(self, rows: list[int]) -> tuple[StepBatch, Tensor]:
        firsts = [sum(added for added, _ in self.case.rows[:row]) for row in range(len(self.case.rows))]
        positions, tokens = [], []
        for row in rows:
            added, context = self.case.rows[row]
            span = range(context - added, context)
            positions.extend(span)
            tokens.extend(range(firsts[row], firsts[row] + added))
        longest = max(self.case.stored[row] for row in rows)
        tables = torch.zeros((len(rows), -(-longest // BLOCK_SIZE)), dtype=torch.int32)
        for index, row in enumerate(rows):
            held = -(-self.case.stored[row] // BLOCK_SIZE)
            tables[index, :held] = self.storage.tables[0][row, :held]
        shared = self.case.shared if len(rows) == len(self.case.rows) else ()
        batch = StepBatch(
            token_ids=torch.tensor(list(map(_token_id, tokens))),
            positions=torch.tensor(positions),
            query_lengths=[self.case.rows[row][0] for row in rows],
            context_lengths=[self.case.rows[row][1] for row in rows],
            num_decodes=sum(self.case.rows[row][0] == 1 for row in rows),
            logit_rows=torch.tensor([index for index, token in enumerate(tokens) if token in self.case.wanted]).long(),
            block_tables=(tables,),
            block_size=BLOCK_SIZE,
            shared=torch.tensor([place for pair in shared for place in pair], dtype=torch.int64),
            types=torch.tensor([self.case.types[token] for token in tokens]) if self.case.types else None,
            sources=[self.case.sources[row] for row in rows] if self.case.sources else [],
            seen=torch.tensor([self.case.seen[row] for row in rows]) if self.case.seen else None,
        )
        return batch, torch.tensor(tokens)


# Tokens that are wanted of a case's rows: the last of some, runs of some, of most nothing, or none at all.
WANTED = {
    "scattered": tuple(token for token in range(3000) if token % 7 in (0, 3, 4)),
    "far apart": tuple(range(4, 3000, 61)),
    "all but one": tuple(range(1, 3000)),
    "none": (),
}


def assert_selected_rows_are_the_same(
    bench: Bench, implementation: Implementation, device: torch.device = CPU, *, exact: bool = True
) -> None:
    """The rows of wanted tokens alone become what they become among all: to the bit, if `exact`."""
    whole, found = (bench.run(implementation, device=device, selected=only) for only in (False, True))
    wanted = [token for token in bench.case.wanted if token < bench.case.tokens]
    expected = whole.outputs[0][torch.tensor(wanted, dtype=torch.int64)]
    assert found.outputs[0].shape == expected.shape
    atol = 0.0 if exact else {torch.float32: 2e-5, torch.bfloat16: 4e-2}[bench.dtype] * 10
    torch.testing.assert_close(found.outputs[0], expected, rtol=0, atol=atol)


@functools.cache
def _referred(op: str, name: str, dtype: torch.dtype) -> Run:
    case = next(case for case in CASES if (case.op, case.name) == (op, name))
    return Bench(case, dtype).run(next(entry for entry in REFERENCE if entry.operation is type(case.operation)))


def referred(case: Case, dtype: torch.dtype) -> Run:
    """What the reference makes of one of the cases; computed once, for all implementations."""
    return _referred(case.op, case.name, dtype)


def assert_rows_are_alone(bench: Bench, implementation: Implementation, device: torch.device = CPU) -> None:
    """A row alone gives the same bits as in the batch."""
    case, together = bench.case, bench.run(implementation, device=device)
    tokens, selected = 0, 0
    for row, (added, _) in enumerate(case.rows):
        alone = bench.run(implementation, only=row, device=device)
        for whole, part in zip(together.outputs, alone.outputs, strict=True):
            first = selected if case.operation.op == "select_rows" else tokens
            assert torch.equal(whole[first : first + part.shape[0]], part)
            selected += part.shape[0]
        tokens += added
