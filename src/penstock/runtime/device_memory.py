"""What it means for a step that a GPU's memory ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.core.errors import StepOutOfMemory


@contextmanager
def memory_may_end() -> Iterator[None]:
    """Around a step: raises StepOutOfMemory where torch finds no more memory on its device."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise StepOutOfMemory(
            "The GPU's memory ended while this step was computed, which others may have taken; send the request again, "
            "or start the server with a smaller --kv-cache-memory, --max-num-seqs or --max-num-batched-tokens."
        ) from error
