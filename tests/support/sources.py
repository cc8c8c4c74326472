"""Runs an encoder-decoder without a scheduler: sources are encoded, then rows of tokens ask them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu.operations import NATIVE, kv_layout
from penstock.kernels.dispatch import Dispatcher, Implementation
from penstock.kernels.processor import this_processor
from penstock.kernels.program import Program, compile_program
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import IN_OWN_PRECISION, Packing
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from support.stepping import ShuffledStorage


@dataclass
class Sourced:
    """Both programs of a model, and the cache that they share; each row has a source and tokens of its own."""

    encoder: Program
    decoder: Program
    storage: ShuffledStorage
    sources: dict[int, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def encode(self, sources: dict[int, list[int]]) -> None:
        """Encode the sources of some rows in one step."""
        self.sources |= {row: len(source) for row, source in sources.items()}
        self.encoder.run(self._batch(sources, dict.fromkeys(sources, 0), [], of_sources=True))

    def step(self, added: dict[int, list[int]], wanted: str = "all") -> dict[int, Tensor]:
        """Compute `added` tokens of some rows; returns [tokens, vocab] logits of each, or of the "last" of each."""
        rows = sorted(added, key=lambda row: (len(added[row]) > 1, row))
        added = {row: added[row] for row in rows}
        counts = [len(tokens) for tokens in added.values()]
        ends = torch.tensor(counts).cumsum(0)
        logit_rows = list(range(sum(counts))) if wanted == "all" else (ends - 1).tolist()
        batch = self._batch(added, {row: self.lengths.get(row, 0) for row in rows}, logit_rows)
        logits = self.decoder.run(batch)
        self.lengths |= {row: self.lengths.get(row, 0) + len(tokens) for row, tokens in added.items()}
        return dict(zip(rows, logits.split(counts if wanted == "all" else [1] * len(rows)), strict=True))

    def _batch(
        self, added: dict[int, list[int]], starts: dict[int, int], logit_rows: list[int], *, of_sources: bool = False
    ) -> StepBatch:
        size, lengths = self.storage.block_size, [len(tokens) for tokens in added.values()]
        contexts = [starts[row] + len(tokens) for row, tokens in added.items()]
        tables = []
        kinds = [group.sees.source for group in self.storage.spec.groups for _ in range(group.width)]
        for sees_source, table in zip(kinds, self.storage.tables, strict=True):
            held = [self.sources[row] for row in added] if sees_source else contexts
            if of_sources and not sees_source:
                # The encoder's program does not read them.
                held = [1] * len(added)
            blocks = torch.zeros((len(added), -(-max(held) // size)), dtype=torch.int32)
            for index, (row, count) in enumerate(zip(added, held, strict=True)):
                own = table[row, : -(-count // size)]
                first = 0 if of_sources else starts[row]
                if sees_source == of_sources:
                    for place in range(-(-first // size), len(own)):
                        self.storage.own(int(own[place]))
                blocks[index, : len(own)] = own
            tables.append(blocks)
        return StepBatch(
            token_ids=torch.tensor([token for tokens in added.values() for token in tokens]),
            positions=torch.cat(
                [torch.arange(starts[row], starts[row] + len(tokens)) for row, tokens in added.items()]
            ),
            query_lengths=lengths,
            context_lengths=contexts,
            num_decodes=0 if of_sources else lengths.count(1),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            block_tables=tuple(tables),
            block_size=size,
            sources=[] if of_sources else [self.sources[row] for row in added],
        )


def make_sourced(
    path: Path,
    *,
    declaration: ModelDeclaration | None = None,
    dtype: torch.dtype = torch.float32,
    rows: int = 8,
    tokens: int = 96,
    implementations: Sequence[Implementation] = this_processor().implementations,
    packing: Packing = IN_OWN_PRECISION,
) -> Sourced:
    """Both programs of the checkpoint at `path`; `declaration` replaces the one of its config.json."""
    checkpoint = open_checkpoint(path)
    declaration = declaration or model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, dtype, packing=packing)
    storage = ShuffledStorage(declaration.kv_layers, dtype, tokens, rows)
    if set(NATIVE) <= set(implementations):
        storage.layout = kv_layout(storage.spec, dtype)
    encoder, decoder = (
        compile_program(tape, weights, storage, dtype, Dispatcher(implementations))
        for tape in (declaration.record_encoder(), declaration.record())
    )
    return Sourced(encoder, decoder, storage)
