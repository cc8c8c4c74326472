"""A whole text as one step.

Each block table has blocks of its own, so that what a layer has stored is still there when a later one reads it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.core.config import BLOCK_SIZE
from penstock.kernels.batch import StepBatch


def blocks_for(tokens: int, tables: int) -> int:
    """How many blocks a storage needs for one text of `tokens` tokens, with `tables` block tables."""
    return -(-tokens // BLOCK_SIZE) * tables + 1


def blocks_of(tokens: int, table: int, tables: int) -> Tensor:
    """int32 [slots], the blocks of a text in one of its block tables."""
    return torch.arange(-(-tokens // BLOCK_SIZE), dtype=torch.int32) * tables + table


def whole_text(ids: Sequence[int], tables: int) -> StepBatch:
    """All tokens of a text, whose logits are all wanted."""
    count = len(ids)
    places = torch.arange(count)
    return StepBatch(
        token_ids=torch.tensor(ids),
        positions=places,
        query_lengths=[count],
        context_lengths=[count],
        num_decodes=int(count == 1),
        logit_rows=places,
        block_tables=tuple(blocks_of(count, table, tables)[None] for table in range(tables)),
        block_size=BLOCK_SIZE,
    )
