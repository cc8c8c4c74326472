"""Runs a model block by block on calibration texts, and shows what each projection is given.

One block is in memory at a time, and the states of all texts between two blocks. What tokens give a block beside the
residual stream is computed anew for each block: kept, it would be as wide as all of them together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from penstock.compression.texts import blocks_for, blocks_of, whole_text
from penstock.core.config import BLOCK_SIZE
from penstock.core.kv import build_kv_spec
from penstock.core.shares import Placement
from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.places import WeightRef
from penstock.kernels.processor import ProcessorKernels
from penstock.kernels.program import Program, compile_program
from penstock.kernels.signature import GateName
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
        biases: tuple[WeightRef, WeightRef | None] | None = None,
        placement: Placement | None = None,
    ) -> Value:
        """What the experts of each row make of it."""
        self.routed[gate_up.name] = x, routed
        return super().experts(x, routed, gate_up, down, experts, activation, biases, placement)

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
class TextState:
    """A text between two blocks.

    Attributes:
        stream: [tokens, width], the residual stream.
        lent: by the layer that has stored them, the planes that later blocks read too, [slots, …] each.
    """

    stream: Tensor
    lent: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)


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
        storage = KVStorage(spec, blocks_for(longest, spec.num_tables), processor.kv_layout(spec, dtype))
        return cls(declaration, processor, storage, dtype)

    def embed(self, weights: dict[str, Weight], texts: Sequence[list[int]]) -> list[TextState]:
        """The states of all texts before the first block."""
        tape = Tape()
        tape.finish(self.declaration.decoder.record_embedding(tape))
        program = self._compile(tape, weights)
        return [TextState(program.run(self._batch(ids)).to(self.dtype)) for ids in texts]

    def run(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[TextState],
        observer: Observer | None = None,
    ) -> Iterator[TextState]:
        """The states behind a block, text by text; `weights` are its own and the decoder's `input_weights`."""
        layer = block.attention.layer
        lends = block.attention.kv is not None and layer in self._read_later
        results = self._results(block, weights, texts, states, observer, onward=True)
        for ids, before, after in zip(texts, states, results, strict=True):
            lent = {**before.lent, layer: self._stored(layer, len(ids))} if lends else before.lent
            yield TextState(after.to(self.dtype), lent)

    def observe(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[TextState],
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
        states: Sequence[TextState],
        observer: Observer | None,
        *,
        onward: bool,
    ) -> Iterator[Tensor]:
        """A result of each text: the states behind the block where they are asked for."""
        tape = _Watched()
        given = tape.input(self.declaration.decoder.width)
        inputs = None if block.layer_input is None else self.declaration.decoder.record_inputs(tape)
        added, residual = block.record(tape, None, given, selects=False, inputs=inputs)
        read = tape.seen if observer is not None else []
        behind = [residual if added is None else tape.add(added, residual)] if onward else []
        tape.finish(*behind, *read)
        program = self._compile(tape, weights)
        for ids, before in zip(texts, states, strict=True):
            # An encoder's layers store nothing, and borrow nothing.
            if block.attention.kv is None and self.declaration.causal:
                self._lend(block.attention.layer, before)
            results = program.results(self._batch(ids), before.stream)
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
        return whole_text(ids, self.storage.spec.num_tables)

    @property
    def _read_later(self) -> set[int]:
        """The layers whose keys and values blocks read that store none."""
        attentions = (block.attention for block in self.declaration.decoder.blocks)
        return {attention.layer for attention in attentions if attention.kv is None}

    def _blocks(self, layer: int, tokens: int) -> Tensor:
        return blocks_of(tokens, self.storage.table_of(layer), self.storage.spec.num_tables).long()

    def _stored(self, layer: int, tokens: int) -> dict[str, Tensor]:
        """What a layer has stored of a text."""
        blocks = self._blocks(layer, tokens)
        return {name: plane[blocks] for name, plane in self.storage.planes(layer).items()}

    def _lend(self, layer: int, state: TextState) -> None:
        """Put what a layer has stored of a text where it was."""
        blocks = self._blocks(layer, len(state.stream))
        for name, plane in self.storage.planes(layer).items():
            plane[blocks] = state.lent[layer][name]
