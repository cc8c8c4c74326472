"""Runs a model block by block on calibration texts, and shows what each projection is given.

One block is in memory at a time, and the states of all texts between two blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.core.config import BLOCK_SIZE
from penstock.core.kv import build_kv_spec
from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.processor import ProcessorKernels
from penstock.kernels.program import Program, compile_program
from penstock.kernels.signature import GateName, WeightRef
from penstock.kernels.tape import Tape, Value
from penstock.layers.decoder import DecoderBlock
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.storage import KVStorage


class Observer(Protocol):
    """Is shown what projections are given, by the names of their weights."""

    def linear(self, name: str, x: Tensor) -> None:
        """What a projection is given, [rows, inputs]."""
        ...

    def experts(self, name: str, x: Tensor, chosen: Tensor) -> None:
        """What gates and ups of experts are given [rows, width], and the experts that each row has [rows, chosen]."""
        ...


class _Watched(Tape):
    """Remembers what each projection reads, and what experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, Value] = {}
        self.routed: dict[str, tuple[Value, Value]] = {}

    def linear(self, x: Value, weight: WeightRef, width: int, bias: WeightRef | None = None) -> Value:
        """A projection to `width` columns."""
        self.read[weight.name] = x
        return super().linear(x, weight, width, bias)

    def experts(
        self,
        x: Value,
        routed: Value,
        gate_up: WeightRef,
        down: WeightRef,
        experts: int,
        activation: GateName,
        biases: tuple[WeightRef, WeightRef] | None = None,
    ) -> Value:
        """What the experts of each row make of it."""
        self.routed[gate_up.name] = x, routed
        return super().experts(x, routed, gate_up, down, experts, activation, biases)

    @property
    def seen(self) -> list[Value]:
        """All that is remembered, each once."""
        both = (value for pair in self.routed.values() for value in pair)
        return list(dict.fromkeys((*self.read.values(), *both)))

    def show(self, observer: Observer, found: dict[Value, Tensor]) -> None:
        """Show what `seen` has become."""
        for name, value in self.read.items():
            observer.linear(name, found[value])
        for name, (x, routed) in self.routed.items():
            observer.experts(name, found[x], found[routed][:, : routed.width // 2])


@dataclass(frozen=True, slots=True, eq=False)
class BlockRunner:
    """Compiles blocks of a model one at a time.

    Attributes:
        declaration: of the model.
        processor: whose kernels compute.
        storage: for the longest text.
        dtype: what is computed in.
    """

    declaration: ModelDeclaration
    processor: ProcessorKernels
    storage: KVStorage
    dtype: torch.dtype

    @classmethod
    def for_texts(
        cls, declaration: ModelDeclaration, processor: ProcessorKernels, longest: int, dtype: torch.dtype
    ) -> "BlockRunner":
        """For texts of at most `longest` tokens."""
        spec = build_kv_spec(declaration.kv_layers, str(dtype).removeprefix("torch."), BLOCK_SIZE)
        storage = KVStorage(spec, -(-longest // BLOCK_SIZE) + 1, processor.kv_layout(spec, dtype))
        return cls(declaration, processor, storage, dtype)

    def embed(self, weights: dict[str, Weight], texts: Sequence[list[int]]) -> list[Tensor]:
        """The states [tokens, width] of all texts before the first block."""
        tape = Tape()
        tape.finish(self.declaration.decoder.record_embedding(tape))
        program = self._compile(tape, weights)
        return [program.run(self._batch(ids)).to(self.dtype) for ids in texts]

    def run(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[Tensor],
        observer: Observer | None = None,
    ) -> Iterator[Tensor]:
        """The states behind a block, text by text."""
        for after in self._results(block, weights, texts, states, observer, onward=True):
            yield after.to(self.dtype)

    def observe(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[Tensor],
        observer: Observer,
    ) -> None:
        """What a block's projections are given, and nothing that is behind them."""
        for _ in self._results(block, weights, texts, states, observer, onward=False):
            pass

    def _results(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[Tensor],
        observer: Observer | None,
        *,
        onward: bool,
    ) -> Iterator[Tensor]:
        """A result of each text: the states behind the block where they are asked for."""
        tape = _Watched()
        given = tape.input(self.declaration.decoder.width)
        added, residual = block.record(tape, None, given, selects=False)
        read = tape.seen if observer is not None else []
        behind = [residual if added is None else tape.add(added, residual)] if onward else []
        tape.finish(*behind, *read)
        program = self._compile(tape, weights)
        for ids, before in zip(texts, states, strict=True):
            results = program.results(self._batch(ids), before)
            if observer is not None:
                tape.show(observer, dict(zip(read, results[len(behind) :], strict=True)))
            yield results[0]

    def logits(self, weights: dict[str, Weight], texts: Sequence[list[int]]) -> Iterator[Tensor]:
        """The whole model's, [tokens, vocabulary] in float32, text by text."""
        program = self._compile(self.declaration.record(), weights)
        for ids in texts:
            yield program.run(self._batch(ids)).float()

    def _compile(self, tape: Tape, weights: dict[str, Weight]) -> Program:
        return compile_program(tape, weights, self.storage, self.dtype, Dispatcher(self.processor.implementations))

    def _batch(self, ids: list[int]) -> StepBatch:
        places = torch.arange(len(ids))
        table = torch.arange(-(-len(ids) // BLOCK_SIZE), dtype=torch.int32)[None]
        return StepBatch(
            token_ids=torch.tensor(ids),
            positions=places,
            query_lengths=[len(ids)],
            context_lengths=[len(ids)],
            num_decodes=int(len(ids) == 1),
            logit_rows=places,
            block_tables=(table,) * self.storage.spec.num_tables,
            block_size=BLOCK_SIZE,
        )
