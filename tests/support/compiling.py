"""Compiles the kernels for GPUs that are not here: what would be launched goes to Triton's compiler instead.

Run as a program, in a process in which Triton does not interpret: it prints a line of JSON for each kernel that was
compiled, with its registers and bytes of shared memory, or what the compiler had against it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.core.kv import LayerKV
from penstock.kernels.batch import StepBatch, Weighing
from penstock.kernels.cases import CASES, Case
from penstock.kernels.cuda import place as places
from penstock.kernels.cuda.attending import lacks_memory
from penstock.kernels.cuda.choosing import chooser
from penstock.kernels.cuda.multiplying import linear
from penstock.kernels.cuda.operations import implementations
from penstock.kernels.cuda.step import carry
from penstock.kernels.cuda.weights import fp8_linear, int4_linear, int8_linear
from penstock.kernels.dispatch import Binding
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import ENCODING, Attention, HeadLayout, Linear, Rotary, WriteKV
from support.operations import Bench

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}


KEPT = ("auto", "int8", "fp8")
# Cases of attention, and what keys and values are kept as, where not all are compiled. Sums of any order are False's,
# those of one order True's. In each, something has a window, a soft cap, pieces of long contexts, bytes and the largest
# heads; those of bfloat16 in tiles for chunks take the most shared memory of all.
ATTENTION = {
    False: (
        ("mixed", "auto"),
        ("mixed, window", "fp8"),
        ("mixed, window and soft cap", "int8"),
        ("decodes of very different length", "auto"),
        ("heads of 256", "auto"),
        ("heads of 576", "auto"),
    ),
    True: (
        ("mixed, soft cap", "auto"),
        ("one decode, window", "int8"),
        ("decodes of very different length, window", "auto"),
        ("heads of 512", "fp8"),
    ),
}


# Those of them whose attention is weighed, too.
WEIGHED = ("mixed", "mixed, window and soft cap", "one decode, window")


class Compiler:
    """Takes the place of launches."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self._target = GPUTarget("cuda", capability, 32)
        self._done: set[tuple[object, ...]] = set()

    def __call__(self, kernel: Any, *args: Any, grid: object, warmup: bool, **constants: Any) -> None:
        names = kernel.arg_names
        given = dict(zip(names, args, strict=False)) | constants
        kinds = [_kind(given[name], name in constants) for name in names]
        fixed = {(at,): given[name] for at, name in enumerate(names) if name in constants}
        options = {name: value for name, value in constants.items() if name not in names}
        key = (kernel.__name__, tuple(kinds), tuple(map(str, fixed.items())), str(options))
        if key in self._done:
            return
        self._done.add(key)
        # As launches do: memory begins at multiples of 16 bytes, which lets the compiler read ahead into shared memory.
        aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(kinds) if kind.startswith("*")}
        source = ASTSource(kernel, dict(zip(names, kinds, strict=True)), fixed, aligned)
        line: dict[str, object] = {"kernel": kernel.__name__}
        try:
            made = triton.compile(source, target=self._target, options=options)
            line |= {"shared": made.metadata.shared, "bytes": len(made.asm["cubin"])}
            line |= {"fuses": made.metadata.enable_fp_fusion, "fused": made.asm["ptx"].count("fma.rn")}
        except Exception as error:
            line |= {"error": f"{type(error).__name__}: {error}"[-2000:], "constants": str(constants)}
        print(json.dumps(line), flush=True)


def _kind(value: object, constant: bool) -> str:
    if constant:
        return "constexpr"
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _large_heads() -> tuple[Case, ...]:
    """Attention of the largest heads that models have, which takes the most shared memory."""

    def case(heads: HeadLayout) -> Case:
        kv = LayerKV(heads.kv_heads, heads.head_dim, latent=heads.latent)
        rows = ((1, 3), (9, 9))
        return Case(f"heads of {heads.head_dim}", Attention(heads, 0, 0.1), (heads.fused_width,), rows, kv=kv)

    return case(HeadLayout(4, 2, 256)), case(HeadLayout(4, 2, 512)), case(HeadLayout(32, 1, 576, latent=True))


KERNELS = [case for case in CASES if not isinstance(case.operation, ENCODING)]


def _all() -> Iterator[tuple[Case, str]]:
    """All cases, those on the cache with each of what keys and values are kept as."""
    for case in (*(case for case in KERNELS if case.use != "bench"), *_large_heads()):
        for kept in KEPT if isinstance(case.operation, Attention | WriteKV) else KEPT[:1]:
            if kept != "fp8" or not case.kv.latent:
                yield case, kept


def _some(deterministic: bool) -> Iterator[tuple[Case, str]]:
    """The first case of each operation, and those of `ATTENTION`."""
    found: dict[type, Case] = {}
    for case in KERNELS:
        found.setdefault(type(case.operation), case)
    attending = {case.name: case for case in (*CASES, *_large_heads()) if isinstance(case.operation, Attention)}
    for kind, case in found.items():
        if kind is not Attention:
            for kept in KEPT if kind is WriteKV and not deterministic else KEPT[:1]:
                yield case, kept
    for name, kept in ATTENTION[deterministic]:
        yield attending[name], kept


def _changes(case: Case, place: places.Place, whole: bool) -> Iterator[Callable[[StepBatch], StepBatch] | None]:
    """None, then batches for which there are other kernels: attention is weighed, of single queries and of all."""
    yield None
    if isinstance(case.operation, Attention) and (whole or case.name in WEIGHED):
        for queries in ([1] * len(case.rows), [added for added, _ in case.rows]):
            yield lambda batch, queries=queries: replace(batch, weighing=Weighing(queries, ()))
    if isinstance(case.operation, Rotary):
        yield lambda batch: replace(batch, context_lengths=[place.longest + 1] * len(case.rows))


def main() -> None:
    """Arguments: the compute capability, such as 90, and "all" or "some"."""
    compiler, whole = Compiler(int(sys.argv[1])), sys.argv[2] == "all"

    def run(kernel: Any, *args: Any, **options: Any) -> None:
        compiler(kernel, *args, **options)

    with mock.patch.object(triton.runtime.jit.JITFunction, "run", run):
        for deterministic in (False, True):
            place = places.Place(torch.device("cpu"), 132, 140_000, 4, deterministic)
            for dtype in (torch.bfloat16, torch.float32)[: 2 if whole else 1]:
                for case, kept in _all() if whole else _some(deterministic):
                    binding = Binding({}, None, dtype)  # type: ignore[arg-type]
                    if isinstance(case.operation, Attention) and lacks_memory(case.operation, binding, place):
                        continue
                    implementation = next(
                        entry for entry in implementations(place) if entry.operation is type(case.operation)
                    )
                    bench = Bench(case, dtype, kept)
                    for change in _changes(case, place, whole):
                        bench.run(implementation, change=change)
                _linears(place, dtype, compiler.capability)
        carry(torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.float64), None)
        # A part of the time that as many columns take as a program reads at once on a large vocabulary.
        chooser(place)(torch.zeros(2, 5000 if whole else 100), [(0, 1.0, 5, 0.9, -1.0, (1, 2, 3))])


def _linears(place: places.Place, dtype: torch.dtype, capability: int) -> None:
    """Weights of few bits; of FP8 where the GPU multiplies it."""
    outputs, inputs = 96, 512
    integers = torch.zeros(outputs, inputs, dtype=torch.uint8)
    scales = torch.ones(outputs, inputs // 64, dtype=torch.float16)
    weights = [
        int8_linear(integers.view(torch.int8), torch.ones(outputs)),
        int4_linear(integers, scales, torch.full(scales.shape, 8)),
    ]
    if capability >= 89:
        values = integers.view(torch.float8_e4m3fn)
        weights += [
            fp8_linear(values, torch.ones(1, 1), outputs, inputs),
            fp8_linear(values, torch.ones(outputs, 1), 1, inputs),
            fp8_linear(values, torch.ones(3, 4), 32, 128),
        ]
    for weight in weights:
        for rows in (1, 40, 100, 300):
            part = linear(Linear(WeightRef("weight")), Binding({"weight": weight}, None, dtype), place)  # type: ignore[arg-type]
            part.run(None, torch.zeros(rows, inputs, dtype=dtype))


if __name__ == "__main__":
    main()
