"""Speed of the native kernels for linear weights, beside what this machine's memory and arithmetic allow."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from penstock.kernels.cpu.native import native
from penstock.kernels.cpu.weights import NativeFormat, NativeLinear, pack_dense, pack_int4, pack_int8

FORMATS: tuple[NativeFormat, ...] = ("int4", "int8", "bfloat16", "float32")
# Which arithmetic a format's products are done in.
ARITHMETIC = {"int4": "int8", "int8": "int8", "bfloat16": "bfloat16", "float32": "float32"}
# More than the caches of most processors hold, so that weights come from memory as they do in a step.
_ROTATED_BYTES = 256 << 20
_READ_BYTES = 512 << 20
_SECONDS = 0.15
_GROUP = 32


class Ceilings(msgspec.Struct, frozen=True):
    """What the machine did with nothing else to do.

    Attributes:
        read: GB/s of memory reads on all threads.
        arithmetic: GOP/s (a product and a sum are two) by type; 0 where there is no loop to measure it with.
    """

    read: float
    arithmetic: dict[str, float]


class LinearFigures(msgspec.Struct, frozen=True):
    """One shape at one number of rows.

    Attributes:
        microseconds: median time of a call.
        gigabytes: GB/s of weights read.
        gigaoperations: GOP/s.
        of_ceiling: the larger of the two shares of what the machine did.
    """

    format: str
    outputs: int
    inputs: int
    rows: int
    microseconds: float
    gigabytes: float
    gigaoperations: float
    of_ceiling: float


def median_seconds(call: Callable[[], object], seconds: float | None = None) -> float:
    """Median time of a call over at least so many seconds and five calls, after one that warms up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + (_SECONDS if seconds is None else seconds)
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_ceilings() -> Ceilings:
    """Memory reads and register arithmetic on all threads."""
    memory = torch.zeros(_READ_BYTES, dtype=torch.uint8).fill_(1)
    read = _READ_BYTES / median_seconds(lambda: native.read_memory(memory)) / 1e9
    arithmetic = {}
    for name in ("int8", "bfloat16", "float32"):
        rounds = 100_000
        operations = native.compute(name, rounds)
        arithmetic[name] = operations / median_seconds(lambda: native.compute(name, rounds)) / 1e9  # noqa: B023
    return Ceilings(read, arithmetic)


def random_weight(format: NativeFormat, outputs: int, inputs: int) -> NativeLinear:
    """A packed weight of random values."""
    if format == "int8":
        return pack_int8(torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8), torch.rand(outputs))
    if format == "int4":
        scales = torch.rand(outputs, -(-inputs // _GROUP)).half()
        return pack_int4(torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8), scales, _GROUP)
    return pack_dense(torch.randn(outputs, inputs).to(getattr(torch, format)))


def measure_linear(
    formats: Sequence[NativeFormat], shapes: Sequence[tuple[int, int]], rows: Sequence[int], ceilings: Ceilings
) -> Iterator[LinearFigures]:
    """Figures for each format, shape (outputs, inputs) and number of rows."""
    for format in formats:
        for outputs, inputs in shapes:
            weight = random_weight(format, outputs, inputs)
            copies = [weight]
            while sum(len(copy.memory) for copy in copies) < _ROTATED_BYTES:
                copies.append(random_weight(format, outputs, inputs))
            for count in rows:
                yield _measure_one(copies, count, ceilings)


def _measure_one(copies: list[NativeLinear], rows: int, ceilings: Ceilings) -> LinearFigures:
    outputs, inputs = copies[0].shape
    x, output = torch.randn(rows, inputs), torch.empty(rows, outputs)

    def pass_over_all() -> None:
        for copy in copies:
            copy.handle.multiply(x, output)

    seconds = median_seconds(pass_over_all) / len(copies)
    gigabytes = len(copies[0].memory) / seconds / 1e9
    gigaoperations = 2 * rows * outputs * inputs / seconds / 1e9
    peak = ceilings.arithmetic[ARITHMETIC[copies[0].format]]
    of_ceiling = max(gigabytes / ceilings.read, gigaoperations / peak if peak else 0.0)
    return LinearFigures(copies[0].format, outputs, inputs, rows, seconds * 1e6, gigabytes, gigaoperations, of_ceiling)
