"""Speed of every operation on a GPU, beside what its memory and its matrix products reach in the same run."""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from penstock.bench import kernels
from penstock.bench.counts import activation_bytes, arithmetic, kv_bytes, weight_bytes
from penstock.bench.device_single import Launches, captured, case_on_device, choice_on_device, random_on
from penstock.bench.kernels import Figures, figures_of, with_rows
from penstock.bench.sampling import SAMPLING
from penstock.core.ceilings import Ceilings
from penstock.kernels.cases import Case, llama
from penstock.kernels.cpu.weights import INT4_GROUP
from penstock.kernels.cuda.place import Place
from penstock.kernels.cuda.weights import DeviceLinear, fp8_linear, int4_linear, int8_linear
from penstock.kernels.packing import tensors_of
from penstock.kernels.signature import ENCODING, Attention, Embedding, Experts, Linear, Route
from penstock.runtime.gpu_clock import seconds_of

DeviceFormat = Literal["int4", "int8", "fp8", "bfloat16", "float32"]
FORMATS: tuple[DeviceFormat, ...] = ("int4", "int8", "fp8", "bfloat16", "float32")
# What activations, keys and values are in, but beside weights of float32.
_TYPE = torch.bfloat16
# Twice what the largest GPUs' caches hold, so that weights come from memory as they do in a step.
_ROTATED_BYTES = 256 << 20
_SECONDS = 0.1
# Launches of a graph: enough to hide that of the graph itself, and not more than it takes well.
_STEPS = 32
_MOST_STEPS = 256
_MOST_CALLS = 200


def longest_context() -> int:
    """Of all cases that are measured."""
    return max(context for case in kernels.MEASURED for _, context in case.rows)


def measure_on_device(
    names: Collection[str], formats: Sequence[DeviceFormat], rows: Sequence[int], ceilings: Ceilings, place: Place
) -> Iterator[Figures]:
    """Figures as `kernels.measure_operations` has them, of the same cases; shares are of copies and of bfloat16."""
    for case in kernels.MEASURED:
        if case.op not in names or isinstance(case.operation, ENCODING):
            continue
        if isinstance(case.operation, Attention):
            yield _measure_attention(case, ceilings, place)
        elif isinstance(case.operation, Linear | Embedding | Experts):
            # There are no kernels for experts in FP8.
            for format in (each for each in formats if each != "fp8" or not isinstance(case.operation, Experts)):
                yield from _measure_matrix(case, format, rows, ceilings, place)
        elif isinstance(case.operation, Route):
            yield from _measure_matrix(case, "float32", rows, ceilings, place)
        else:
            for count in rows:
                yield _measure_plain(with_rows(case, count), ceilings, place)
    if "sampling" in names:
        for name, params in SAMPLING.items():
            for count in rows:
                launches = choice_on_device(params, count, llama.VOCABULARY, _STEPS, place)
                seconds = _median(launches, place) / _STEPS
                yield figures_of("sampling", name, "", count, seconds, 4 * count * llama.VOCABULARY, 0, ceilings)


def _median(launches: Launches, place: Place) -> float:
    """The median time of all launches as one graph, over at least three calls."""
    with place.current():
        call = captured(launches, place)
        once = seconds_of(call, 1, place.device)[0]
        count = max(3, min(_MOST_CALLS, int(_SECONDS / once)))
        return statistics.median(seconds_of(call, count, place.device))


def random_weight(format: DeviceFormat, shape: Sequence[int], place: Place) -> Tensor | DeviceLinear:
    """A weight of random values on the device, whose products with normal values are of about one."""
    device, (outputs, inputs) = place.device, shape
    if format == "int8":
        integers = torch.randint(-127, 128, tuple(shape), dtype=torch.int8, device=device)
        return int8_linear(integers, torch.rand(outputs, device=device) / (64 * math.sqrt(inputs)))
    if format == "fp8":
        values = random_on(place, shape, torch.float32).to(torch.float8_e4m3fn)
        return fp8_linear(values, torch.rand((outputs, 1), device=device) / math.sqrt(inputs), 1, inputs)
    if format == "int4":
        integers = torch.randint(16, tuple(shape), dtype=torch.uint8, device=device)
        scales = torch.rand((outputs, inputs // INT4_GROUP), device=device) / (4 * math.sqrt(inputs))
        return int4_linear(integers, scales.bfloat16(), torch.full_like(scales, 8))
    return random_on(place, shape, torch.float32).div_(math.sqrt(inputs)).to(getattr(torch, format))


def _measure_matrix(
    case: Case, format: DeviceFormat, rows: Sequence[int], ceilings: Ceilings, place: Place
) -> Iterator[Figures]:
    """Projections take turns with copies of the weight that caches cannot hold; an embedding reads few rows of one."""
    dtype = torch.float32 if format == "float32" else _TYPE

    def matrices() -> dict[str, Tensor | DeviceLinear]:
        return {name: random_weight(format, shape, place) for name, shape in case.weights.items()}

    copies = [matrices()]
    size = sum(tensor.nbytes for weight in copies[0].values() for tensor in tensors_of(weight))
    steps = _STEPS
    if not isinstance(case.operation, Embedding):
        steps = min(_MOST_STEPS, -(-_ROTATED_BYTES // size))
        copies += [matrices() for _ in range(steps - 1)]
    peak = ceilings.arithmetic["bfloat16"]
    for count in rows:
        batch = with_rows(case, count)
        seconds = _median(case_on_device(batch, copies, steps, place, dtype), place) / steps
        moved = weight_bytes(batch, size) + activation_bytes(batch, dtype.itemsize)
        yield figures_of(case.op, case.name, format, count, seconds, moved, peak, ceilings, arithmetic(batch))


def _measure_attention(case: Case, ceilings: Ceilings, place: Place) -> Figures:
    """Decodes and chunks take turns with as many layers' keys and values as caches cannot hold."""
    size = kv_bytes(case, _TYPE.itemsize)
    steps = min(_MOST_STEPS, -(-_ROTATED_BYTES // size))
    seconds = _median(case_on_device(case, [{}], steps, place, _TYPE), place) / steps
    size += activation_bytes(case, _TYPE.itemsize)
    peak = ceilings.arithmetic["bfloat16"]
    return figures_of(case.op, case.name, _name(_TYPE), case.tokens, seconds, size, peak, ceilings, arithmetic(case))


def _measure_plain(case: Case, ceilings: Ceilings, place: Place) -> Figures:
    """What has no matrix works on values that caches hold, as between a model's operations."""
    values = kv_bytes(case, _TYPE.itemsize)
    size = weight_bytes(case, 0, _TYPE.itemsize) + activation_bytes(case, _TYPE.itemsize) + values
    steps = max(1, min(_STEPS, _ROTATED_BYTES // size))
    seconds = _median(case_on_device(case, [{}], steps, place, _TYPE), place) / steps
    return figures_of(case.op, case.name, _name(_TYPE) if values else "", case.tokens, seconds, size, 0, ceilings)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
