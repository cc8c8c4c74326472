"""Contexts of which blocks were given up, and attention that is weighed, by the kernels for GPUs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from penstock.kernels.batch import StepBatch
from penstock.kernels.cases import CASES as ALL
from penstock.kernels.cases import Case
from penstock.kernels.dispatch import Implementation
from penstock.kernels.places import Llama3Rope, LongRope, RopeScaling, RopeSpec, YarnRope
from penstock.kernels.reference import REFERENCE
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import Attention, HeadLayout, Rotary, WriteKV
from support.bounded import asked_of, moved_up, weighed
from support.device import DEVICE, INTERPRETED
from support.operations import WANTED, Bench, named
from support.pairing import in_turn

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda.operations import implementations
from penstock.kernels.cuda.place import Place, place_on

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16)
PLACES = {"fast": place_on(DEVICE, 2000), "deterministic": place_on(DEVICE, 2000, deterministic=True)}
CASES = [
    case
    for case in ALL
    if case.use != "bench"
    and not (isinstance(case.operation, Attention) and case.operation.bias is not None)
    and (not INTERPRETED or (case.tokens <= 200 and case.tokens * max(case.widths, default=0) < 20_000))
]
ATTENTION = [case for case in CASES if isinstance(case.operation, Attention)]
# In layers with windows nothing is dropped.
BOUNDED = [case for case in CASES if isinstance(case.operation, WriteKV)]
BOUNDED += [case for case in ATTENTION if case.operation.window is None]


def of(case: Case, place: Place) -> Implementation:
    return next(entry for entry in implementations(place) if entry.operation is type(case.operation))


def reference(case: Case) -> Implementation:
    return next(entry for entry in REFERENCE if entry.operation is type(case.operation))


@pytest.mark.one_in(2, each=("dtype", "place"))
@pytest.mark.parametrize("case, dtype, place", in_turn([(case,) for case in BOUNDED], DTYPES, tuple(PLACES)), ids=named)
def test_what_was_dropped_changes_nothing_of_what_is_left(case: Case, dtype: torch.dtype, place: str) -> None:
    bench, entry = Bench(case, dtype), of(case, PLACES[place])
    before, after = (bench.run(entry, device=DEVICE, change=change) for change in (None, moved_up))
    for mine, right in zip((*after.outputs, *after.planes), (*before.outputs, *before.planes), strict=True):
        assert torch.equal(mine.nan_to_num(nan=7.0), right.nan_to_num(nan=7.0))


@pytest.mark.one_in(2, each=("dtype", "place"))
@pytest.mark.parametrize(
    "case, dtype, place", in_turn([(case,) for case in ATTENTION], DTYPES, tuple(PLACES)), ids=named
)
def test_attention_is_weighed_as_the_reference_does(case: Case, dtype: torch.dtype, place: str) -> None:
    bench, entry, queries = Bench(case, dtype), of(case, PLACES[place]), asked_of(case)
    expected, _ = weighed(bench, reference(case), queries)
    moved, heads = case.operation.window is None, case.operation.heads.query_heads
    found, outputs = weighed(bench, entry, queries, moved=moved, device=DEVICE)
    most = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype] * heads * max(queries)
    assert np.abs(found - expected).max() <= most
    assert not found[np.array(queries) == 0].any()
    if case.operation.sinks is None:
        np.testing.assert_allclose(found.sum(axis=1), np.array(queries) * heads, rtol=1e-4)
    assert torch.equal(outputs[0], bench.run(entry, device=DEVICE).outputs[0]), "what is computed stays as it is"


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_attention_over_bytes_is_weighed(kept: str) -> None:
    case = next(case for case in ATTENTION if case.name == "mixed")
    bench, queries = Bench(case, torch.float32, kept), asked_of(case)
    expected, _ = weighed(bench, reference(case), queries)
    found, _ = weighed(bench, of(case, PLACES["fast"]), queries, device=DEVICE)
    np.testing.assert_allclose(found, expected, atol=2e-5 * case.operation.heads.query_heads * max(queries))


def test_single_queries_are_weighed_as_in_chunks() -> None:
    """Where each row asks of one query, tiles are others."""
    case = next(case for case in ALL if case.name == "mixed, odd heads of widest latent")
    bench, entry = Bench(case, torch.bfloat16), of(case, PLACES["fast"])
    queries = [1] * len(case.rows)
    found, _ = weighed(bench, entry, queries, device=DEVICE)
    expected, _ = weighed(bench, reference(case), queries)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    two, _ = weighed(bench, entry, [*queries[:-2], 2, 1], device=DEVICE)
    np.testing.assert_allclose(np.delete(two, -2, 0), np.delete(found, -2, 0), atol=1e-5)


def test_wanted_rows_alone_are_not_weighed() -> None:
    """They are computed behind the last layer that stores anything."""
    case = next(case for case in ATTENTION if case.name == "mixed")
    bench = Bench(replace(case, wanted=WANTED["scattered"]), torch.float32)
    found, _ = weighed(bench, of(case, PLACES["fast"]), asked_of(case), device=DEVICE, selected=True)
    assert not found.any()


SCALED: tuple[RopeScaling | None, ...] = (
    None,
    Llama3Rope(8.0, 1.0, 4.0, 32),
    YarnRope(4.0, 512, 1.2),
    LongRope((1.0, 2.0, 4.0, 8.0) * 3, 1.1),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scaling", SCALED, ids=lambda scaling: type(scaling).__name__)
def test_positions_behind_the_table_turn_as_those_in_it(scaling: RopeScaling | None, dtype: torch.dtype) -> None:
    heads = HeadLayout(4, 2, 24)
    case = Case("far", Rotary(heads, RopeSpec(24, 10000.0, scaling)), (heads.fused_width,), ((1, 30), (1, 2), (3, 40)))
    bench, place = Bench(case, dtype), place_on(DEVICE, 100)
    known = len(RopeTable(case.operation.rope, dtype).on(DEVICE, place.longest - 1))
    least = {torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]

    def moved(batch: StepBatch, more: int) -> StepBatch:
        contexts = [context + more for context in batch.context_lengths]
        return replace(batch, positions=batch.positions + more, context_lengths=contexts)

    for more in (known - 35, 2**20 - 40):
        change = partial(moved, more=more)
        (found,) = bench.run(of(case, place), device=DEVICE, change=change).outputs
        (expected,) = bench.run(reference(case), change=change).outputs
        torch.testing.assert_close(found, expected, rtol=0, atol=least * float(expected.abs().max()))
    change, longer = partial(moved, more=known - 35), replace(place, longest=known + 10)
    (found,), (near,) = (bench.run(of(case, each), device=DEVICE, change=change).outputs for each in (place, longer))
    # A cosine that lies between two of bfloat16 may become either.
    torch.testing.assert_close(found, near, rtol=0, atol=least / 4 * float(near.abs().max()))
