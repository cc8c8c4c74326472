"""Where kernels run, and what is known of it: a GPU, or this process's memory while Triton is interpreted."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from penstock.core.devices import FP8_CAPABILITY

# Triton reads TRITON_INTERPRET when it is imported: kernels then run in numpy, one program after another.
INTERPRETED = bool(triton.knobs.runtime.interpret)

# Bytes of shared memory that a program may have on every GPU that the kernels are for.
LEAST_SHARED = 99 << 10
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True, slots=True)
class Place:
    """What kernels are prepared for.

    Attributes:
        device: whose memory holds weights and cache.
        processors: its streaming multiprocessors, which should all have something to do.
        longest: positions of a sequence, at most.
        most_rows: sequences of a step, at most.
        deterministic: sums have the same order whatever is in the batch.
        fp8: it multiplies E4M3, so that such weights may stay what they are.
        shared: bytes of shared memory that a program may have; by default what every GPU has.
    """

    device: torch.device
    processors: int
    longest: int
    most_rows: int = 1
    deterministic: bool = False
    fp8: bool = True
    shared: int = LEAST_SHARED

    def current(self) -> AbstractContextManager[None]:
        """Within it, whichever thread it is, Triton and torch launch here."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def use(self) -> None:
        """What torch puts together goes there, and its sums of bfloat16 products are in float32, as everywhere else."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def wide(self, dtype: torch.dtype) -> bool:
        """Whether tiles are multiplied in float32."""
        return dtype is torch.float32 or INTERPRETED


def place_on(device: torch.device, longest: int, *, most_rows: int = 1, deterministic: bool = False) -> Place:
    """The place that a device is; where Triton is interpreted, that is this process's memory."""
    if INTERPRETED:
        return Place(torch.device("cpu"), 4, longest, most_rows, deterministic)
    properties = torch.cuda.get_device_properties(device)
    fp8 = (properties.major, properties.minor) >= FP8_CAPABILITY
    # Stubs of torch do not know it.
    shared = int(getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED))
    return Place(device, properties.multi_processor_count, longest, most_rows, deterministic, fp8, shared)


def padded(size: int, least: int = 1) -> int:
    """The next power of two: tiles have no other sizes."""
    return max(least, 1 << (size - 1).bit_length())
