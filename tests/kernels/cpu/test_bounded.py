"""Contexts of which blocks were given up, and attention that is weighed: on all instruction sets, by threads or not."""

import functools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock.kernels.cases import CASES, Case
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.dispatch import Implementation
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import Attention, WriteKV
from support.bounded import asked_of, moved_up, weighed
from support.operations import Bench

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

from penstock.kernels.cpu.native import native

FOR_TESTS = [case for case in CASES if case.use != "bench"]
ATTENTION = [case for case in FOR_TESTS if isinstance(case.operation, Attention)]
# Others than the reference may leave windows to the tables.
WHOLE = [case for case in ATTENTION if case.operation.window is None]
STORING = [case for case in FOR_TESTS if isinstance(case.operation, WriteKV)]
Entries = tuple[Implementation, ...]
DTYPES = (torch.float32, torch.bfloat16)


def implementation(case: Case, entries: Entries = NATIVE) -> Implementation:
    return next(entry for entry in entries if entry.operation is type(case.operation))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("entries", [NATIVE, REFERENCE], ids=["native", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*WHOLE, *STORING], ids=lambda case: f"{case.op}/{case.name}")
def test_what_was_dropped_changes_nothing_of_what_is_left(case: Case, dtype: torch.dtype, entries: Entries) -> None:
    if case.tokens > 200 and entries is REFERENCE:
        pytest.skip("the reference would take long, and shows nothing new")
    bench, chosen = Bench(case, dtype), implementation(case, entries)
    before, after = bench.run(chosen), bench.run(chosen, change=moved_up)
    for mine, right in zip((*after.outputs, *after.planes), (*before.outputs, *before.planes), strict=True):
        assert torch.equal(mine.nan_to_num(nan=7.0), right.nan_to_num(nan=7.0))


@functools.cache
def weighed_by_reference(name: str, dtype: torch.dtype) -> NDArray[np.float32]:
    """Computed once, for all instruction sets."""
    case = next(case for case in ATTENTION if case.name == name)
    return weighed(Bench(case, dtype), implementation(case, REFERENCE), asked_of(case))[0]


@pytest.mark.one_in(5)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_attention_is_weighed_as_the_reference_does(case: Case, dtype: torch.dtype) -> None:
    bench = Bench(case, dtype)
    queries = asked_of(case)
    expected = weighed_by_reference(case.name, dtype)
    heads = case.operation.heads.query_heads
    for threads in (1, 3):
        native.set_threads(threads)
        found, outputs = weighed(bench, implementation(case), queries, moved=case.operation.window is None)
        # Each query's weights add up to 1 at most, so that a query head gives this to all blocks together.
        most = np.maximum(np.array(queries), 1)[:, None] * heads
        assert (
            np.abs(found - expected).max(initial=0.0) <= {torch.float32: 2e-4, torch.bfloat16: 4e-2}[dtype] * most.max()
        )
        assert np.all(found[np.array(queries) == 0] == 0)
        assert torch.equal(outputs[0], bench.run(implementation(case)).outputs[0])
    if case.operation.sinks is None:
        np.testing.assert_allclose(expected.sum(axis=1), np.array(queries) * heads, rtol=1e-3)


@pytest.mark.parametrize("kept", ["int8", "fp8", "int4"])
def test_attention_over_bytes_is_weighed(kept: str) -> None:
    case = next(case for case in ATTENTION if case.name == "decodes, wide heads")
    bench = Bench(case, torch.bfloat16, kept)
    queries = [1] * len(case.rows)
    found, _ = weighed(bench, implementation(case), queries)
    np.testing.assert_allclose(found.sum(axis=1), case.operation.heads.query_heads, rtol=1e-2)
    plain, _ = weighed(Bench(case, torch.bfloat16), implementation(case), queries)
    assert np.abs(found - plain).max() <= {"int8": 0.1, "fp8": 0.5, "int4": 2.0}[kept]


def test_masses_are_the_same_bits_by_any_number_of_threads() -> None:
    case = next(case for case in ATTENTION if case.name == "decodes of very different length")
    bench = Bench(case, torch.float32)
    found = []
    for threads in (1, 2, 5):
        native.set_threads(threads)
        found.append(weighed(bench, implementation(case), [1] * len(case.rows))[0])
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
