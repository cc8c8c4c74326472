"""Runs a model block by block on calibration texts, and shows what each projection is given.

One block is in memory at a time, and the states of all texts between two blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.core.config import BLOCK_SIZE
from penstock.core.kv import build_kv_spec
from penstock.kernels.batch import StepBatch
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.processor import ProcessorKernels
from penstock.kernels.program import Program, compile_program
from penstock.kernels.signature import WeightRef
from penstock.kernels.tape import Tape, Value
from penstock.layers.decoder import DecoderBlock
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.storage import KVStorage

Observe = Callable[[str, Tensor], None]
"""(name of a projection's weight, what it is given [rows, inputs])"""


class _Watched(Tape):
    """Remembers what each projection reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, Value] = {}

    def linear(self, x: Value, weight: WeightRef, width: int, bias: WeightRef | None = None) -> Value:
        """A projection to `width` columns."""
        self.read[weight.name] = x
        return super().linear(x, weight, width, bias)


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
        observe: Observe | None = None,
    ) -> Iterator[Tensor]:
        """The states behind a block, text by text."""
        for after in self._results(block, weights, texts, states, observe, onward=True):
            yield after.to(self.dtype)

    def observe(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[Tensor],
        observe: Observe,
    ) -> None:
        """What a block's projections are given, and nothing that is behind them."""
        for _ in self._results(block, weights, texts, states, observe, onward=False):
            pass

    def _results(
        self,
        block: DecoderBlock,
        weights: dict[str, Weight],
        texts: Sequence[list[int]],
        states: Sequence[Tensor],
        observe: Observe | None,
        *,
        onward: bool,
    ) -> Iterator[Tensor]:
        """A result of each text: the states behind the block where they are asked for."""
        tape = _Watched()
        given = tape.input(self.declaration.decoder.width)
        added, residual = block.record(tape, None, given, last=False)
        read = list(dict.fromkeys(tape.read.values())) if observe is not None else []
        behind = [residual if added is None else tape.add(added, residual)] if onward else []
        tape.finish(*behind, *read)
        program = self._compile(tape, weights)
        for ids, before in zip(texts, states, strict=True):
            results = program.results(self._batch(ids), before)
            if observe is not None:
                found = dict(zip(read, results[len(behind) :], strict=True))
                for name, value in tape.read.items():
                    observe(name, found[value])
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
