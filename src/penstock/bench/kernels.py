"""Speed of every native operation, beside what this machine's memory and arithmetic allow."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec
import torch

from penstock.bench.counts import activation_bytes, arithmetic, kv_bytes, weight_bytes
from penstock.bench.sampling import SAMPLING, compile_choice
from penstock.bench.single import KV_TYPE, compile_case, random_values
from penstock.core.ceilings import Ceilings
from penstock.kernels.cases import CASES, Case, llama
from penstock.kernels.cpu.form import BLOCK_FORMATS, GROUPED_FORMATS, NativeFormat
from penstock.kernels.cpu.weights import (
    INT4_GROUP,
    MOST_MULTIPLE,
    NativeLinear,
    pack_blocks,
    pack_dense,
    pack_grouped,
    pack_int4,
    pack_int8,
)
from penstock.kernels.signature import (
    Attention,
    Embedding,
    Experts,
    HeadLinear,
    Linear,
    Route,
    RowAttention,
    SourceAttention,
)
from penstock.quantization.gguf_types import BLOCK_TYPES

_FLOAT16_SCALES = {format: bits for (bits, scales), format in GROUPED_FORMATS.items() if scales == "float16"}
FORMATS: tuple[NativeFormat, ...] = (
    "int4",
    *_FLOAT16_SCALES,
    "int8",
    "bfloat16",
    "float32",
    *BLOCK_FORMATS.values(),
)
_KINDS = {format: kind for kind, format in BLOCK_FORMATS.items()}
MEASURED = tuple(case for case in CASES if case.use != "tests")
# More than the caches of most processors hold, so that weights come from memory as they do in a step.
_ROTATED_BYTES = 256 << 20
_SECONDS = 0.15
# Operations in one call where nothing but a share of the call's own cost depends on it.
_STEPS = 16
# Operations of one call's arithmetic, so that it takes a fraction of a second.
_MOST_WORK = 30_000_000_000
# Tokens of each sequence where it does not matter how many.
_CONTEXT = 16


class Figures(msgspec.Struct, frozen=True):
    """One operation on one shape.

    Attributes:
        case: which of the operation's shapes.
        format: of its weights, keys and values; empty where it has none.
        rows: tokens of the step.
        microseconds: median time of one.
        gigabytes: GB/s of what must be read and written: weights, keys, values, and what is between operations.
        gigaoperations: GOP/s of matrix products; 0 for operations without them.
        of_ceiling: the larger of the two shares of what the machine did. More than 1 is from its caches.
    """

    operation: str
    case: str
    format: str
    rows: int
    microseconds: float
    gigabytes: float
    gigaoperations: float
    of_ceiling: float


def median_seconds(call: Callable[[], object], seconds: float | None = None) -> float:
    """Median time of a call over at least `seconds` and three calls, after one that warms up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + (_SECONDS if seconds is None else seconds)
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_weight(format: NativeFormat, outputs: int, inputs: int) -> NativeLinear:
    """A packed weight of random values."""
    values = random_values(outputs, inputs)
    if format == "int8":
        return pack_int8(values.mul_(40).clamp_(-127, 127).to(torch.int8), torch.rand(outputs))
    groups = -(-inputs // INT4_GROUP)
    if format in _FLOAT16_SCALES:
        bits = _FLOAT16_SCALES[format]
        integers = torch.randint(1 << bits, (outputs, inputs), dtype=torch.uint8)
        return pack_grouped(integers, torch.rand(outputs, groups).half(), INT4_GROUP, None, bits)
    if format == "int4":
        nibbles = values.mul_(3).add_(8).clamp_(0, 15).to(torch.uint8)
        multiples = torch.randint(1, MOST_MULTIPLE + 1, (outputs, groups), dtype=torch.uint8)
        return pack_int4(nibbles, multiples, torch.rand(outputs))
    if format in _KINDS:
        block = BLOCK_TYPES[_KINDS[format]]
        # Any two of these bytes are a small positive float16, as its scales are.
        raw = torch.randint(64, (outputs, inputs // block.elements * block.nbytes), dtype=torch.uint8)
        if format == "mxfp4":
            # An exponent with 127 added: smaller ones make numbers that processors are slow at.
            raw[:, :: block.nbytes] = 120
        return pack_blocks(raw, _KINDS[format], inputs)
    return pack_dense(values.to(getattr(torch, format)))


def operation_names() -> tuple[str, ...]:
    """What can be measured, in the order of the table."""
    return tuple(dict.fromkeys((*(case.op for case in MEASURED), "sampling")))


def measure_operations(
    names: Collection[str], formats: Sequence[NativeFormat], rows: Sequence[int], ceilings: Ceilings
) -> Iterator[Figures]:
    """Figures of the operations named: for each of `formats` where they have a matrix, and each number of `rows`.

    Attention comes in batches of its own, since what it costs depends on the context of each row.
    """
    for case in MEASURED:
        if case.op not in names:
            continue
        if isinstance(case.operation, Attention | SourceAttention):
            yield _measure_attention(case, ceilings)
        elif isinstance(case.operation, RowAttention):
            yield _measure_rows(case, ceilings)
        elif isinstance(case.operation, Linear | HeadLinear | Embedding | Experts):
            for format in formats:
                yield from _measure_matrix(case, format, rows, ceilings)
        elif isinstance(case.operation, Route):
            yield from _measure_matrix(case, "float32", rows, ceilings)
        else:
            for count in rows:
                yield _measure_plain(with_rows(case, count), ceilings)
    if "sampling" in names:
        for name, params in SAMPLING.items():
            for count in rows:
                seconds = median_seconds(compile_choice(params, count, llama.VOCABULARY))
                yield figures_of("sampling", name, "", count, seconds, 4 * count * llama.VOCABULARY, 0, ceilings)


def with_rows(case: Case, count: int) -> Case:
    """The same operation on `count` sequences with one token each, all of them wanted."""
    return dataclasses.replace(case, rows=((1, _CONTEXT),) * count, wanted=tuple(range(count)))


def _measure_matrix(case: Case, format: NativeFormat, rows: Sequence[int], ceilings: Ceilings) -> Iterator[Figures]:
    """Projections take turns with copies of weights that caches cannot hold; an embedding reads few rows of one."""

    def packed() -> dict[str, NativeLinear]:
        return {name: random_weight(format, *shape) for name, shape in case.weights.items()}

    copies = [packed()]
    own = sum(len(matrix.memory) for matrix in copies[0].values())
    multiplies = not isinstance(case.operation, Embedding)
    while multiplies and len(copies) * own < _ROTATED_BYTES:
        copies.append(packed())
    for count in rows:
        batch = with_rows(case, count)
        steps = _bounded(len(copies), arithmetic(batch)) if multiplies else _STEPS
        seconds = median_seconds(compile_case(batch, copies, steps)) / steps
        size = weight_bytes(batch, own) + activation_bytes(batch)
        peak = ceilings.peak(format)
        yield figures_of(case.op, case.name, format, count, seconds, size, peak, ceilings, arithmetic(batch))


def _measure_attention(case: Case, ceilings: Ceilings) -> Figures:
    """Decodes take turns with as many layers' keys and values as caches cannot hold; chunks compute for longer."""
    format, size, work = str(KV_TYPE).removeprefix("torch."), kv_bytes(case, KV_TYPE.itemsize), arithmetic(case)
    steps = _bounded(-(-_ROTATED_BYTES // size), work)
    seconds = median_seconds(compile_case(case, [{}], steps)) / steps
    size += activation_bytes(case)
    peak = ceilings.peak(format)
    return figures_of(case.op, case.name, format, case.tokens, seconds, size, peak, ceilings, work)


def _measure_rows(case: Case, ceilings: Ceilings) -> Figures:
    """Attention within rows: all that it multiplies is made in the step, so that caches hold it."""
    format, work, size = str(KV_TYPE).removeprefix("torch."), arithmetic(case), activation_bytes(case)
    steps = _bounded(_STEPS, work)
    seconds = median_seconds(compile_case(case, [{}], steps)) / steps
    peak = ceilings.peak(format)
    return figures_of(case.op, case.name, format, case.tokens, seconds, size, peak, ceilings, work)


def _bounded(steps: int, work: int) -> int:
    """As many of the steps as one call should do; where fewer fit caches, it is arithmetic that takes the time."""
    return max(1, min(steps, _MOST_WORK // work))


def _measure_plain(case: Case, ceilings: Ceilings) -> Figures:
    """What has no matrix works on values that caches hold, as between a model's operations."""
    values = kv_bytes(case, KV_TYPE.itemsize)
    size = weight_bytes(case, 0) + activation_bytes(case) + values
    steps = max(1, min(_STEPS, _ROTATED_BYTES // size))
    seconds = median_seconds(compile_case(case, [{}], steps)) / steps
    format = str(KV_TYPE).removeprefix("torch.") if values else ""
    return figures_of(case.op, case.name, format, case.tokens, seconds, size, 0, ceilings)


def figures_of(
    operation: str,
    case: str,
    format: str,
    rows: int,
    seconds: float,
    size: int,
    peak: float,
    ceilings: Ceilings,
    work: int = 0,
) -> Figures:
    """What a time means: `size` bytes and `work` products and sums in it, the latter of `peak` GOP/s (0: of none)."""
    gigabytes, gigaoperations = size / seconds / 1e9, work / seconds / 1e9
    of_ceiling = max(gigabytes / ceilings.read, gigaoperations / peak if peak else 0.0)
    return Figures(
        operation=operation,
        case=case,
        format=format,
        rows=rows,
        microseconds=seconds * 1e6,
        gigabytes=gigabytes,
        gigaoperations=gigaoperations,
        of_ceiling=of_ceiling,
    )
