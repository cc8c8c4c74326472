"""Memory of the processor that a device reads and writes by itself."""

import weakref

import torch
from torch import Tensor

from penstock.core.errors import InsufficientMemory

WORD = torch.int64


def pinned(rows: int, words: int, device: torch.device, options: str) -> Tensor:
    """int64 [rows, words], pinned where the device is a GPU, until the tensor itself is given up.

    Raises InsufficientMemory, which names the `options` that it is for, where there is not enough.
    """
    try:
        memory = torch.empty((rows, words), dtype=WORD)
    except RuntimeError as error:
        raise _refusal(rows * words * WORD.itemsize, options) from error
    if device.type == "cuda":
        # Torch's own pinned memory comes in powers of two.
        if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) != 0:
            raise _refusal(memory.nbytes, options)
        # The driver keeps pages that it was told of until it is told otherwise.
        weakref.finalize(memory, _unpin, memory.data_ptr())
    return memory


def _unpin(place: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(place)


def _refusal(size: int, options: str) -> InsufficientMemory:
    return InsufficientMemory(
        f"{size / 2**30:.2f} GiB for {options} could not be had of the processor's memory, which has to stay in place; "
        "lower them, or free some."
    )
