"""Runs a program without a scheduler: keeps each sequence's length and block tables, in shuffled block order."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.kv_part import part_of
from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu.operations import NATIVE, kv_layout
from penstock.kernels.dispatch import Dispatcher, Implementation, KVLayout
from penstock.kernels.processor import this_processor
from penstock.kernels.program import Program, compile_program
from penstock.kernels.ranks import Ranks
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import IN_OWN_PRECISION, Packing
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.storage import planes_in

CPU = torch.device("cpu")


class ShuffledStorage:
    """KV planes with block tables in random order; blocks that no row owns hold NaN, so that reading one is seen."""

    def __init__(
        self,
        layers: Sequence[LayerKV],
        dtype: torch.dtype,
        tokens: int,
        rows: int,
        block_size: int = 16,
        layout: KVLayout = "slots",
        kept: str = "auto",
        device: torch.device = CPU,
        own: Collection[int] | None = None,
        stripes: int = 1,
    ) -> None:
        """`own` are the layers that store something here; None: all. Of `stripes` ranks' blocks it has one's parts."""
        self.block_size = block_size * stripes
        self.layout = layout
        self.spec = build_kv_spec(layers, str(dtype).removeprefix("torch."), block_size, kept)
        if own is not None:
            self.spec = part_of(self.spec, own)
        per_row, tables = -(-tokens // self.block_size), self.spec.num_tables
        self._memory = torch.zeros((rows * per_row * tables + 1, self.spec.block_bytes), dtype=torch.uint8)
        for layer in range(len(layers)) if own is None else own:
            for plane in self.planes(layer).values():
                _spoil(plane)
        self.move(device)
        blocks = list(range(1, len(self._memory)))
        random.Random(0).shuffle(blocks)
        self.tables = list(torch.tensor(blocks, dtype=torch.int32).view(tables, rows, per_row))

    def planes(self, layer: int) -> Mapping[str, Tensor]:
        return planes_in(self._memory, self.spec, layer)

    def table_of(self, layer: int) -> int:
        return self.spec.table_of(layer)

    def move(self, device: torch.device) -> None:
        """Put the planes into a device's memory."""
        self._memory = self._memory.to(device)

    def copy(self) -> Tensor:
        """All bytes as they are."""
        return self._memory.clone()

    def restore(self, copied: Tensor) -> None:
        """Put back what `copy` gave."""
        self._memory.copy_(copied)

    def own(self, block: int) -> None:
        """Clear a block when a row takes it."""
        self._memory[block] = 0


def _spoil(plane: Tensor) -> None:
    """Fill a plane with NaN; what bytes there are have scales of NaN."""
    if plane.itemsize > 1:
        plane.fill_(torch.nan)


@dataclass
class Stepper:
    """Feeds tokens of several sequences to a program and collects the logits of every position.

    `lengths[row]` is how many tokens of the row have been computed. Logits come to the CPU, wherever they are computed.
    """

    program: Program
    storage: ShuffledStorage
    lengths: list[int] = field(default_factory=list)

    def step(self, added: dict[int, list[int]], wanted: str = "all") -> dict[int, Tensor]:
        """Compute `added` tokens of some rows in one batch; returns [tokens, vocab] logits of each.

        `wanted` "last" asks for the last position of each row only, "none" for none.
        """
        rows = sorted(added, key=lambda row: (len(added[row]) > 1, row))
        self.lengths += [0] * (max(rows) + 1 - len(self.lengths))
        batch, counts = self.batch(added, rows, wanted)
        logits = self.program.run(batch).cpu()
        for row in rows:
            self.lengths[row] += len(added[row])
        return dict(zip(rows, logits.split(counts), strict=True))

    def batch(
        self, added: dict[int, list[int]], rows: list[int], wanted: str, further: int = 0
    ) -> tuple[StepBatch, list[int]]:
        """The batch of `rows`, whose tables reach `further` tokens behind each, and how many logits each row gets."""
        size = self.storage.block_size
        positions, logit_rows, counts = [], [], []
        for row in rows:
            span = range(self.lengths[row], self.lengths[row] + len(added[row]))
            first = len(positions)
            positions.extend(span)
            begins = {"all": first, "last": len(positions) - 1, "none": len(positions)}
            tokens = range(begins[wanted], len(positions))
            logit_rows.extend(tokens)
            counts.append(len(tokens))
            for table in self.storage.tables:
                for place in range(span.start, span.stop + further):
                    if place % size == 0:
                        self.storage.own(int(table[row, place // size]))
        contexts = [self.lengths[row] + len(added[row]) for row in rows]
        tables = []
        windows = [group.sees.last for group in self.storage.spec.groups for _ in range(group.width)]
        for window, table in zip(windows, self.storage.tables, strict=True):
            blocks = torch.zeros((len(rows), -(-(max(contexts) + further) // size)), dtype=torch.int32)
            for index, row in enumerate(rows):
                held = -(-(contexts[index] + further) // size)
                low = 0 if window is None else max(0, self.lengths[row] - window + 1) // size
                blocks[index, low:held] = table[row, low:held]
            tables.append(blocks)
        batch = StepBatch(
            token_ids=torch.tensor([token for row in rows for token in added[row]]),
            positions=torch.tensor(positions),
            query_lengths=[len(added[row]) for row in rows],
            context_lengths=contexts,
            num_decodes=sum(len(added[row]) == 1 for row in rows),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            block_tables=tuple(tables),
            block_size=size,
        )
        return batch, counts


def make_stepper(
    path: Path,
    *,
    declaration: ModelDeclaration | None = None,
    dtype: torch.dtype = torch.float32,
    rows: int = 8,
    tokens: int = 320,
    implementations: Sequence[Implementation] = this_processor().implementations,
    packing: Packing = IN_OWN_PRECISION,
    device: torch.device = CPU,
    ranks: Ranks | None = None,
) -> Stepper:
    """A stepper for the checkpoint at `path`; `declaration` replaces the one of its config.json.

    Where there are `ranks`, the declaration is of the part that this one has.
    """
    checkpoint = open_checkpoint(path)
    declaration = declaration or model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, dtype, packing=packing)
    own = None if declaration.decoder.stage is None else declaration.decoder.own_stores
    stripes = 1 if declaration.stripe is None else declaration.stripe.size
    storage = ShuffledStorage(declaration.kv_layers, dtype, tokens, rows, device=device, own=own, stripes=stripes)
    if set(NATIVE) <= set(implementations):
        storage.layout = kv_layout(storage.spec, dtype)
    program = compile_program(declaration.record(), weights, storage, dtype, Dispatcher(implementations), ranks)
    return Stepper(program, storage)


def all_logits(stepper: Stepper, prompts: Sequence[list[int]], chunk: int | None) -> list[Tensor]:
    """float32 [tokens, vocab] logits of every prompt, all prompts advancing `chunk` tokens a step."""
    found: list[list[Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    while any(first < len(prompt) for first, prompt in zip(done, prompts, strict=True)):
        added = {
            row: prompt[done[row] : len(prompt) if chunk is None else done[row] + chunk]
            for row, prompt in enumerate(prompts)
            if done[row] < len(prompt)
        }
        for row, logits in stepper.step(added).items():
            found[row].append(logits.float())
            done[row] += len(added[row])
    return [torch.cat(parts) for parts in found]


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The greatest between logits of the same prompts."""
    return max(float((mine - right).abs().max()) for mine, right in zip(found, expected, strict=True))
