"""Keys and values as bytes: attention over them is attention over what they mean.

Bit by bit where they are expanded (fp8, int4). int8 is multiplied by integers of 16 bits, which are nearer to queries
and weights than bfloat16 is; `cpu/test_integers.py` says how near.
"""

import pytest
import torch
from torch import Tensor

from penstock.kernels.cases import CASES, Case
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.dispatch import Implementation
from penstock.kernels.kv_bytes import from_bytes, to_bytes
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import Attention, WriteKV
from support.operations import Bench, assert_rows_are_alone, named, obstacle
from support.pairing import paired

TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
DTYPES = (torch.float32, torch.bfloat16)
ON_CACHE = [case for case in CASES if isinstance(case.operation, Attention | WriteKV) and case.use != "bench"]
# Integers of 4 bits take heads of whole pairs of groups; latent keys are int8 or what they are.
FITTING = [
    (case, kept)
    for kept in TYPES
    for case in ON_CACHE
    if kept == "int8" or not (case.kv.latent or (kept == "int4" and case.kv.head_dim % 64))
]


def chosen(case: Case, implementations: tuple[Implementation, ...]) -> Implementation:
    return next(entry for entry in implementations if entry.operation is type(case.operation))


def native(case: Case, dtype: torch.dtype) -> Implementation:
    found = chosen(case, NATIVE)
    if reason := obstacle(found, dtype):
        pytest.skip(reason)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case, kept, dtype", paired(FITTING, DTYPES), ids=named)
def test_agrees_with_reference(case: Case, kept: str, dtype: torch.dtype) -> None:
    mine, bench = native(case, dtype), Bench(case, dtype, kept)
    expected, found = bench.run(chosen(case, REFERENCE)), bench.run(mine)
    for output, right in zip(found.outputs, expected.outputs, strict=True):
        scale = right.float().abs().amax(1, keepdim=True).clamp(min=1.0)
        tolerance = max(TOLERANCE[dtype], 5e-4) if kept == "int8" else TOLERANCE[dtype]
        assert ((output.float() - right.float()).abs() / scale).max() <= tolerance
    assert len(found.planes) == (2 if case.kv.latent else 4)
    for plane, right in zip(found.planes, expected.planes, strict=True):
        assert torch.equal(plane.float().nan_to_num(nan=7.0), right.float().nan_to_num(nan=7.0))


ATTENDING = [pair for pair in FITTING if isinstance(pair[0].operation, Attention)]


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(
    "case, kept, dtype", paired([pair for pair in ATTENDING if pair[1] != "int8"], DTYPES), ids=named
)
def test_is_attention_over_what_bytes_mean(case: Case, kept: str, dtype: torch.dtype) -> None:
    mine, bench, plain = native(case, dtype), Bench(case, dtype, kept), Bench(case, dtype)
    # The same numbers in a plain cache, among them the step's own.
    plain.context = meant(bench.context, kept)
    heads, size = case.operation.heads, case.operation.heads.query_width
    if not case.operation.borrows:
        own = bench.inputs[0][:, size:].unflatten(1, (2, heads.kv_heads, heads.head_dim))
        plain.inputs = [torch.cat((bench.inputs[0][:, :size], meant(own, kept).flatten(1)), dim=1)]
    assert torch.equal(bench.run(mine).outputs[0], plain.run(mine).outputs[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "case, kept, dtype", paired([pair for pair in ATTENDING if pair[0].tokens <= 200], DTYPES), ids=named
)
def test_a_row_is_the_same_alone(case: Case, kept: str, dtype: torch.dtype) -> None:
    assert_rows_are_alone(Bench(case, dtype, kept), native(case, dtype))


def meant(heads: Tensor, kept: str) -> Tensor:
    return from_bytes(*to_bytes(heads, TYPES[kept]), heads.dtype)


@pytest.mark.parametrize("kept", TYPES)
def test_bytes_are_near_what_they_stand_for(kept: str) -> None:
    heads = (
        torch.randn(50, 4, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 50)[:, None, None]
    )
    found = meant(heads, kept)
    largest = heads.abs().amax(-1, keepdim=True)
    if kept == "int8":
        assert ((found - heads).abs() <= 0.501 * largest / 127).all()
    elif kept == "int4":
        groups, near = heads.unflatten(-1, (-1, 32)), found.unflatten(-1, (-1, 32))
        step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
        # Half a step, and what bfloat16 makes of steps and of where they begin.
        bound = 0.5 * step + groups.abs().amax(-1, keepdim=True) / 256 + 15 * step / 256
        assert ((near - groups).abs() <= bound).all()
    else:
        # Three bits behind the point, and steps of 2^-9 of a scale where that is more.
        assert ((found - heads).abs() <= torch.maximum(heads.abs() / 16, largest / 448 / 1024) * 1.001).all()


@pytest.mark.parametrize("kept", TYPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_values_are_stored_as_the_reference_does(kept: str, dtype: torch.dtype) -> None:
    case = next(case for case, found in FITTING if found == kept and isinstance(case.operation, WriteKV))
    mine, bench = native(case, dtype), Bench(case, dtype, kept)
    given = bench.inputs[0]
    for row, value in enumerate((0.0, torch.inf, torch.nan, 1e-45, 1e-38, 3e38)):
        given[row] = value
    given[6] *= 1e-20
    given[7, ::3] = -0.0
    given[8, -1] = -torch.inf
    # A wide range of bytes, and what lies half between two.
    given[9] = torch.linspace(-448, 448, given.shape[1]).to(dtype)
    given[10] = torch.logspace(-12, 8, given.shape[1], base=2).to(dtype)
    expected, found = bench.run(chosen(case, REFERENCE)), bench.run(mine)
    for plane, right in zip(found.planes, expected.planes, strict=True):
        assert torch.equal(plane.float().nan_to_num(nan=7.0), right.float().nan_to_num(nan=7.0))
    assert bool(found.planes[2].isnan().any())
