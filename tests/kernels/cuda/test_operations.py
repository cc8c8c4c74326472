"""The kernels for GPUs against the torch reference on the CPU, on the cases that those for CPUs are tested on."""

from dataclasses import replace

import pytest
import torch

from penstock.core.kv import LayerKV
from penstock.kernels.cases import CASES as ALL
from penstock.kernels.cases import Case
from penstock.kernels.collective import AllReduce, GatherRows, MergeStripes, ShareRows
from penstock.kernels.dispatch import Binding, FusedStep, Implementation, StepState
from penstock.kernels.places import RopeSpec
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import (
    ENCODING,
    OPERATIONS,
    PLACED,
    Attention,
    Experts,
    HeadLayout,
    HeadLinear,
    Linear,
    Rotary,
    Route,
    WriteKV,
)
from penstock.kernels.tape import Value
from support.device import DEVICE, INTERPRETED
from support.operations import WANTED, Bench, Run, assert_rows_are_alone, assert_selected_rows_are_the_same, named
from support.pairing import in_turn, paired

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda.attending import SEGMENT, chunk_rows, chunk_tile, pieces_of, shared_heads
from penstock.kernels.cuda.mixing import tile_of
from penstock.kernels.cuda.operations import implementations
from penstock.kernels.cuda.place import Place, place_on
from penstock.kernels.cuda.program import DevicePart

pytestmark = pytest.mark.cuda

LONGEST = max(context for case in ALL for _, context in case.rows)
ANY = place_on(DEVICE, LONGEST, deterministic=False)
SAME = place_on(DEVICE, LONGEST, deterministic=True)
PLACES = {"fast": ANY, "deterministic": SAME}
DTYPES = (torch.float32, torch.bfloat16)
# Relative to values of about one: a few units in the last place of the sums of each type.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
# Interpreted, each program takes a part of a millisecond, and cases of many tokens or heads have tens of thousands.
CASES = [
    case
    for case in ALL
    if case.use != "bench"
    and not (isinstance(case.operation, Attention) and case.operation.bias is not None)
    and not isinstance(case.operation, ENCODING)
    and (not INTERPRETED or (case.tokens <= 200 and case.tokens * max(case.widths, default=0) < 20_000))
]
ATTENDING = [case for case in CASES if isinstance(case.operation, Attention)]
ON_CACHE = [case for case in CASES if isinstance(case.operation, Attention | WriteKV)]
LONG = [case for case in ATTENDING if max(context for _, context in case.rows) > 512]


# Those whose kernels differ from place to place.
BY_PLACE = Attention | Experts | HeadLinear | Linear | Route
CASES_BY_PLACE = [case for case in CASES if isinstance(case.operation, BY_PLACE)]


def of(case: Case, place: Place) -> Implementation:
    return next(entry for entry in implementations(place) if entry.operation is type(case.operation))


def run(bench: Bench, place: Place, *, reusable: bool = True) -> Run:
    """What the kernels make of a case."""
    return bench.run(of(bench.case, place), reusable=reusable, device=place.device)


def reference(case: Case) -> Implementation:
    return next(entry for entry in REFERENCE if entry.operation is type(case.operation))


def agree(found: Run, expected: Run, dtype: torch.dtype) -> None:
    assert len(found.outputs) == len(expected.outputs)
    for mine, right in zip(found.outputs, expected.outputs, strict=True):
        assert mine.dtype is dtype and mine.shape == right.shape
        scale = right.float().abs().amax(1, keepdim=True).clamp(min=1.0)
        assert ((mine.float() - right.float()).abs() / scale).max() <= TOLERANCE[dtype]
    for mine, right in zip(found.planes, expected.planes, strict=True):
        assert torch.equal(mine.float().nan_to_num(nan=7.0), right.float().nan_to_num(nan=7.0))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "case, dtype, place",
    [
        *paired([(case,) for case in CASES_BY_PLACE], DTYPES, tuple(PLACES)),
        *(pytest.param(case, dtype, "fast") for case in CASES if case not in CASES_BY_PLACE for dtype in DTYPES),
    ],
    ids=named,
)
def test_agrees_with_reference(case: Case, dtype: torch.dtype, place: str) -> None:
    bench = Bench(case, dtype)
    agree(run(bench, PLACES[place], reusable=False), bench.run(reference(case)), dtype)


# Contexts that are spread over ranks are of processors alone.
SPREAD = {MergeStripes, ShareRows, GatherRows}


def test_every_operation_has_an_implementation() -> None:
    assert {entry.operation for entry in implementations(ANY)} == set(OPERATIONS) - set(ENCODING) - SPREAD


@pytest.mark.one_in(2, each=("dtype", "kept"))
@pytest.mark.parametrize(
    "case, dtype, kept", in_turn([(case,) for case in ON_CACHE], DTYPES, ("int8", "fp8")), ids=named
)
def test_bytes_in_the_cache(case: Case, dtype: torch.dtype, kept: str) -> None:
    """Stored to the same bits as by the reference, and read as what they stand for."""
    kept = "int8" if case.kv.latent else kept
    bench = Bench(case, dtype, kept)
    agree(run(bench, ANY), bench.run(reference(case)), dtype)


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_odd_values_are_stored_as_the_reference_does(kept: str) -> None:
    case = next(case for case in CASES if isinstance(case.operation, WriteKV))
    bench = Bench(case, torch.float32, kept)
    given = bench.inputs[0]
    for row, value in enumerate((0.0, torch.inf, torch.nan, 1e-45, 1e-38, 3e38)):
        given[row] = value
    given[6] *= 1e-20
    given[7, ::3] = -0.0
    given[8, -1] = -torch.inf
    given[9] = torch.linspace(-448, 448, given.shape[1])
    given[10] = torch.logspace(-12, 8, given.shape[1], base=2)
    found = run(bench, ANY)
    agree(found, bench.run(reference(case)), torch.float32)
    assert bool(found.planes[2].isnan().any())


@pytest.mark.one_in(2, each=())
@pytest.mark.parametrize(
    "case",
    [
        # Of attention, which takes longest, every other case: neighbours differ in one property.
        pytest.param(case, marks=pytest.mark.slow if case in ATTENDING and ATTENDING.index(case) % 2 else ())
        for case in CASES
    ],
    ids=named,
)
def test_row_function(case: Case) -> None:
    """Where sums have one order, a row alone gives the same bits as in the batch."""
    implementation = of(case, SAME)
    assert implementation.row_function
    bench = Bench(case, torch.bfloat16)
    assert_rows_are_alone(bench, implementation, SAME.device)


def test_what_depends_on_the_batch_says_so() -> None:
    assert {entry.operation for entry in implementations(ANY) if not entry.row_function} == {
        AllReduce,
        *(type(case.operation) for case in CASES_BY_PLACE),
    }


@pytest.mark.one_in(2, each=())
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_pieces_of_a_context_do_not_change_bits(case: Case) -> None:
    """Few processors take a context in one piece, many in pieces of a segment, which are merged alike."""
    longest, found = max(context for _, context in case.rows), []
    bench = Bench(case, torch.float32)
    expected = bench.run(reference(case))
    for processors, cut in ((1, False), (1000, True)):
        place = replace(SAME, processors=processors)
        # Chunks are never cut, and take no pieces.
        decodes = sum(added == 1 for added, _ in case.rows)
        assert not decodes or pieces_of(place, decodes, longest) == (-(-longest // SEGMENT) if cut else 1)
        found.append(run(bench, place))
        agree(run(bench, replace(ANY, processors=processors)), expected, torch.float32)
    assert torch.equal(found[0].outputs[0], found[1].outputs[0])
    agree(found[0], expected, torch.float32)


@pytest.mark.one_in(2, each=("wanted", "place"))
@pytest.mark.parametrize(
    "case, wanted, place",
    in_turn([(case,) for case in CASES if isinstance(case.operation, PLACED)], tuple(WANTED), tuple(PLACES)),
    ids=named,
)
def test_selected_rows_are_what_they_are_among_all(case: Case, wanted: str, place: str) -> None:
    """To the bit where sums have one order: else a last token alone may be computed in other pieces."""
    bench, entry = Bench(replace(case, wanted=WANTED[wanted]), torch.float32), of(case, PLACES[place])
    assert_selected_rows_are_the_same(bench, entry, DEVICE, exact=entry.row_function)


def test_there_are_long_cases() -> None:
    assert len(LONG) >= 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("share", [0, 1])
def test_a_rotation_and_the_storing_behind_it_are_one(dtype: torch.dtype, share: int) -> None:
    heads = HeadLayout(6, 2, 8)
    rotary, store = Rotary(heads, RopeSpec(8, 10000.0)), WriteKV(heads, 0)
    shared = ((1, 2), (3, 0))[: 2 * share]
    rows = ((1, 7), (1, 30), (1, 17), (5, 24))
    case = Case("both", store, (heads.fused_width,), rows, kv=LayerKV(2, 8), shared=shared)
    bench = Bench(case, dtype)
    turned = Bench(Case("turn", rotary, (heads.fused_width,), rows, kv=LayerKV(2, 8)), dtype)
    turned.inputs = bench.inputs
    (expected,) = run(turned, ANY).outputs
    bench.place_on(ANY.device, "slots")
    batch, _ = bench._batch(list(range(len(rows))))
    binding = Binding({}, bench.storage, dtype)
    before, after = Value(0, heads.fused_width), Value(1, heads.fused_width)
    steps = [
        FusedStep(of(turned.case, ANY).prepare(rotary, binding), (before,), (after,)),
        FusedStep(of(case, ANY).prepare(store, binding), (after,), ()),
    ]
    program = DevicePart.fuse(steps, [before], [after], dtype)
    assert len(program._steps) == 1
    assert torch.equal(program(StepState(batch), bench.inputs[0].to(ANY.device)).cpu(), expected)
    found = [plane.flatten(0, 1).cpu() for plane in bench.storage.planes(0).values()]
    bench.inputs = [expected]
    for mine, right in zip(found, run(bench, ANY).planes, strict=True):
        assert torch.equal(mine.nan_to_num(nan=7.0), right.nan_to_num(nan=7.0))


@pytest.mark.parametrize("window", [None, 520])
def test_the_newest_token_of_a_chunk_is_computed_as_if_it_came_alone(window: int | None) -> None:
    """Where sums have one order, its context is cut into the same segments, wherever its window begins."""
    context = 2 * SEGMENT + 70
    case = next(case for case in ATTENDING if case.operation.softcap is None)
    operation = replace(case.operation, window=window)
    chunk = Bench(replace(case, operation=operation, rows=((3, context),)), torch.float32)
    alone = Bench(replace(case, operation=operation, rows=((1, context),)), torch.float32)
    heads = operation.heads
    stored = chunk.inputs[0][:, heads.query_width :].unflatten(1, (2, heads.kv_heads, heads.head_dim))
    alone.context = torch.cat([chunk.context[: context - 3], stored])
    alone.inputs = [chunk.inputs[0][2:]]
    assert torch.equal(run(chunk, SAME).outputs[0][2:], run(alone, SAME).outputs[0])


@pytest.mark.parametrize(
    ("size", "dtype", "rows"),
    [
        (64, torch.float32, 64),
        (128, torch.float32, 32),
        (256, torch.float32, 16),
        (128, torch.bfloat16, 64),
        (256, torch.bfloat16, 64),
        (512, torch.float32, 16),
        (512, torch.bfloat16, 32),
        (1024, torch.bfloat16, 16),
    ],
)
def test_tiles_of_chunks_fit_into_the_shared_memory_of_small_gpus(size: int, dtype: torch.dtype, rows: int) -> None:
    """What `test_compiles.py --slow` found to take at most 99 KB."""
    assert chunk_rows(size, dtype) == rows


def test_tiles_of_chunks_are_large_where_there_is_shared_memory() -> None:
    roomy, small = replace(ANY, shared=228 << 10), replace(ANY, shared=99 << 10)
    assert chunk_tile(128, torch.bfloat16, roomy, "plain").rows == 128
    for size, dtype, place, kept in (
        (128, torch.bfloat16, small, "plain"),
        (256, torch.bfloat16, roomy, "plain"),
        (128, torch.float32, roomy, "plain"),
        (128, torch.bfloat16, roomy, "int8"),
    ):
        assert chunk_tile(size, dtype, place, kept).rows == chunk_rows(size, dtype)


def test_many_rows_of_experts_take_larger_tiles_and_mean_the_same() -> None:
    case = next(case for case in CASES if case.name == "more rows than a tile" and isinstance(case.operation, Experts))
    bench = Bench(case, torch.float32)
    expected = bench.run(reference(case))
    for shared, rows in ((99 << 10, 64), (228 << 10, 128)):
        place = replace(ANY, shared=shared)
        assert tile_of(45, place).rows == rows
        if shared <= ANY.shared or INTERPRETED:
            agree(run(bench, place), expected, torch.float32)
    assert tile_of(31, replace(ANY, shared=228 << 10)).rows == tile_of(45, SAME).rows == 16


def test_query_heads_of_one_key_head_are_cut_where_heads_are_wide() -> None:
    assert shared_heads(HeadLayout(128, 1, 576, latent=True), 1024) == (16, 8)
    assert shared_heads(HeadLayout(20, 1, 576, latent=True), 1024) == (10, 2)
    assert shared_heads(HeadLayout(32, 1, 128), 128) == (32, 1)


def test_heads_that_no_program_has_the_memory_for_are_refused() -> None:
    case = next(case for case in ALL if case.name == "mixed, widest latent")
    small, roomy = replace(ANY, shared=99 << 10), replace(ANY, shared=228 << 10)
    binding = Binding({}, Bench(case, torch.float32).storage, torch.float32)
    (reason,) = (entry.supports(case.operation, binding) for entry in [of(case, small)])
    assert reason == "heads of 576 in float32 take 148 KiB of shared memory, and this GPU has 99; bfloat16 takes less"
    assert of(case, roomy).supports(case.operation, binding) is None
    halves = Binding({}, Bench(case, torch.bfloat16).storage, torch.bfloat16)
    assert of(case, small).supports(case.operation, halves) is None
