"""What a GPU reaches at most: copies within its memory, and products of large bfloat16 matrices."""

import statistics

import torch

from penstock.core.ceilings import Ceilings
from penstock.runtime.gpu_clock import seconds_of

# More than any GPU's caches hold; a copy reads and writes each byte.
_BYTES = 1 << 30
# Rows and columns of square matrices: enough for all of any GPU's processors.
_SIDE = 8192
_CALLS = 12
# Both sides of a copy, and what CUDA takes for itself.
NEEDED_BYTES = 3 * _BYTES


def measure_copies(device: torch.device, size: int = _BYTES) -> float:
    """GB/s read and written by copies of `size` bytes, in the median of a dozen. Raises RuntimeError as CUDA does."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = statistics.median(seconds_of(lambda: target.copy_(source), _CALLS, device))
    return 2 * size / seconds / 1e9


def measure_products(device: torch.device, side: int = _SIDE) -> float:
    """GOP/s (a product and a sum are two) of bfloat16 matrices [side, side], in the median of a dozen."""
    left, right = (torch.randn((side, side), device=device).bfloat16() for _ in range(2))
    found = torch.empty_like(left)
    seconds = statistics.median(seconds_of(lambda: torch.mm(left, right, out=found), _CALLS, device))
    return 2 * side**3 / seconds / 1e9


def measure_device_ceilings(device: torch.device) -> Ceilings:
    """Both, at sizes for a GPU; small ones for this process's memory, where Triton is interpreted."""
    if device.type == "cuda":
        return Ceilings(measure_copies(device), {"bfloat16": measure_products(device)})
    return Ceilings(measure_copies(device, 1 << 24), {"bfloat16": measure_products(device, 256)})
