"""The tensors of one step, as the runtime gathers them and operations read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NOTHING_SHARED = torch.empty(0, dtype=torch.int64)


@dataclass(slots=True, eq=False)
class Weighing:
    """How much attention rows give to each of their blocks, which a step adds up.

    Layers that compute only tokens whose logits are wanted do not count: those behind the last that stores anything.

    Attributes:
        queries: of each row, how many of its last tokens are asked; 0: none.
        masses: for each of the block tables, float32 [rows, blocks]: the sum of the weights that these tokens' queries
            give to the places of a block, over query heads and over the layers that read by that table. 0 before the
            step.
        coming: where a device adds up, what waits for it and puts the masses in their place; set by the step.
    """

    queries: list[int]
    masses: Sequence[NDArray[np.float32]]
    coming: Callable[[], None] | None = None

    def read(self) -> Sequence[NDArray[np.float32]]:
        """The masses behind the step, wherever they were added up."""
        if self.coming is not None:
            self.coming()
        return self.masses


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """A ragged batch: each row adds `query_lengths[i]` tokens to a context of `context_lengths[i]` tokens in all.

    Rows with one token come first (`num_decodes` of them), then chunks. Tokens of a row are adjacent.

    Attributes:
        token_ids, positions: int64 [tokens]. A token id of -1 - i is the one at i of `carried`.
        query_lengths, context_lengths: per row; the context includes this step's tokens.
        num_decodes: how many leading rows have exactly one token.
        logit_rows: int64, indices into the tokens whose logits are wanted, each once and in ascending order.
        block_tables: for each KV group of the model, int32 [rows, blocks]; block of each block index, in the order of
            the rows. Entries before the window and past the context are stale: any block of the pool, which must not be
            read. The table of a group that sees sources has the blocks of each row's source.
        block_size: tokens in a block.
        shared: int64 [2 · shares], flat pairs of a token and a row besides its own: the token's keys and values belong
            to that row's context too, at the same position. So branches of a tree of drafts begin alike.
        carried: float64, in the memory of a device: tokens that a step before this one yields there, which need not be
            known here yet. None where all ids are known.
        dropped: for each of the block tables, int64 [rows]: how many of a row's positions have no slots any more. Those
            behind them have moved up in the table by as many, and are all seen. Empty where no row has dropped any.
        weighing: what is to be learnt of the step's attention, if anything.
        types: int64 [tokens], 1 for tokens of a row's second text; None where all are 0.
        sources: per row, how many tokens its source has; empty where the model has none.
        seen: int64 [rows]: how many of a row's first tokens are seen by its tokens that see what is behind them, too;
            None: all.
    """

    token_ids: Tensor
    positions: Tensor
    query_lengths: list[int]
    context_lengths: list[int]
    num_decodes: int
    logit_rows: Tensor
    block_tables: tuple[Tensor, ...]
    block_size: int
    shared: Tensor = NOTHING_SHARED
    carried: Tensor | None = None
    dropped: tuple[NDArray[np.int64], ...] = ()
    weighing: Weighing | None = None
    types: Tensor | None = None
    sources: list[int] = field(default_factory=list)
    seen: Tensor | None = None

    @property
    def places(self) -> NDArray[np.int64]:
        """int64 [rows]: of each row's contexts, as its block tables have them, the longest."""
        contexts = np.array(self.context_lengths, dtype=np.int64)
        return contexts - np.min(self.dropped, axis=0) if self.dropped else contexts

    @property
    def selected(self) -> "StepBatch":
        """The tokens whose logits are wanted, as a batch of their own.

        Its rows are runs of adjacent tokens of one row, and a context ends with its run. So a token's position and what
        it sees are as they were. Where all tokens are wanted, it is this batch.
        """
        if len(self.logit_rows) == len(self.token_ids):
            return self
        tokens, positions = self.logit_rows.tolist(), self.positions[self.logit_rows]
        owners = torch.arange(len(self.query_lengths)).repeat_interleave(torch.tensor(self.query_lengths))
        rows: list[int] = []
        lengths: list[int] = []
        contexts: list[int] = []
        before = -2
        for token, row, position in zip(tokens, owners[self.logit_rows].tolist(), positions.tolist(), strict=True):
            if token != before + 1 or row != rows[-1]:
                rows.append(row)
                lengths.append(0)
                contexts.append(0)
            lengths[-1] += 1
            contexts[-1] = position + 1
            before = token
        of_rows = torch.tensor(rows, dtype=torch.int64)
        return StepBatch(
            token_ids=self.token_ids[self.logit_rows],
            positions=positions,
            query_lengths=lengths,
            context_lengths=contexts,
            num_decodes=next((at for at, length in enumerate(lengths) if length > 1), len(lengths)),
            logit_rows=torch.arange(len(tokens)),
            block_tables=tuple(table[of_rows] for table in self.block_tables),
            block_size=self.block_size,
            dropped=tuple(each[of_rows.numpy()] for each in self.dropped),
            sources=[self.sources[row] for row in rows] if self.sources else [],
        )
