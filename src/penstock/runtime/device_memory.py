"""A GPU's memory: what is brought there without waiting, and what it means for a step that it ends."""

import traceback

import torch
from torch import Tensor

from penstock.core.errors import StepOutOfMemory
from penstock.kernels.cuda.memory import memory_ended


def brought(numbers: list[int] | list[list[int]], device: torch.device) -> Tensor:
    """The numbers in a device's memory, without waiting for what it computes: torch keeps pinned memory until then."""
    return torch.tensor(numbers, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def raise_if_memory_ended(error: RuntimeError) -> None:
    """Raises StepOutOfMemory where what went wrong with a step is that no more memory was found on its device."""
    if not memory_ended(error):
        return
    # What the step has made so far is held by its frames, and the next step needs that memory.
    traceback.clear_frames(error.__traceback__)
    raise StepOutOfMemory(
        "The GPU's memory ended while this step was computed, which others may have taken; send the request again, "
        "or start the server with a smaller --kv-cache-memory, --max-num-seqs or --max-num-batched-tokens."
    ) from error
