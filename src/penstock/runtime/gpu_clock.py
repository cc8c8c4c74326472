"""How long a device takes for what is launched there."""

import time
from collections.abc import Callable

import torch


def seconds_of(call: Callable[[], object], count: int, device: torch.device) -> list[float]:
    """The seconds of each of `count` calls, after one that warms up.

    On a GPU by events between them, while the host only waits at the end, so that what it takes to launch a call is
    hidden behind the call before. Elsewhere by the host's clock. Raises RuntimeError as CUDA does.
    """
    call()
    if device.type != "cuda":
        times = [time.perf_counter()]
        for _ in range(count):
            call()
            times.append(time.perf_counter())
        return [after - before for before, after in zip(times, times[1:], strict=False)]
    stream = torch.cuda.current_stream(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record(stream)
    for mark in marks[1:]:
        call()
        mark.record(stream)
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:], strict=False)]
