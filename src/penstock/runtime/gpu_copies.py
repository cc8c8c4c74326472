"""How fast a GPU's memory is, measured by copies within it: what weights and cache can be read with at most."""

import statistics

import torch

# More than any GPU's caches hold; a copy reads and writes each byte.
_BYTES = 1 << 30
_COPIES = 12
# Both sides of a copy, and what CUDA takes for itself.
NEEDED_BYTES = 3 * _BYTES


def measure_copies(device: str) -> float:
    """GB/s read and written by copies of a GiB, in the median of a dozen. Raises RuntimeError as CUDA does."""
    source = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_COPIES + 1)]
    stream = torch.cuda.current_stream(source.device)
    marks[0].record(stream)
    for mark in marks[1:]:
        target.copy_(source)
        mark.record(stream)
    torch.cuda.synchronize(source.device)
    times: list[float] = [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:], strict=False)]
    return 2 * _BYTES / statistics.median(times) / 1e9
