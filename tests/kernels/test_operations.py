"""Every implementation against the torch reference, on the same cases; and the row function where it is declared."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from penstock.kernels.cases import CASES as ALL
from penstock.kernels.cases import Case
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.dispatch import Binding, Implementation
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import (
    COLLECTIVE,
    OPERATIONS,
    PLACED,
    Attention,
    GatedActivation,
    HeadNorm,
    Linear,
    Rotary,
    WriteKV,
)
from penstock.kernels.torch.operations import TORCH
from support.operations import (
    WANTED,
    Bench,
    assert_rows_are_alone,
    assert_selected_rows_are_the_same,
    named,
    obstacle,
    referred,
)
from support.pairing import in_turn

# Everything that a processor may compute with.
EVERY = (*NATIVE, *TORCH, *REFERENCE)
CASES = tuple(case for case in ALL if case.use != "bench")
DTYPES = (torch.float32, torch.bfloat16)
# Relative to values of about one: a few units in the last place of the sums of each type.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


def _is_for_others(case: Case, implementation: Implementation) -> bool:
    """What torch has nothing for that is faster than the reference.

    It is attention with sinks, biases, latent keys or another layer's, norms of values, and a bounded gate.
    """
    operation = case.operation
    borrowed = isinstance(operation, Attention) and operation.borrows
    valued = isinstance(operation, HeadNorm) and operation.values
    scored = isinstance(operation, Attention) and (operation.sinks is not None or operation.bias is not None)
    latent = isinstance(operation, Attention | WriteKV) and operation.heads.latent
    bounded = isinstance(operation, GatedActivation) and operation.activation in ("swigluoai", "gelu")
    return implementation in TORCH and (scored or latent or borrowed or valued or bounded)


def _pairs(implementations: tuple[Implementation, ...], tokens: int = 10**9) -> list[object]:
    return [
        pytest.param(case, implementation, id=f"{case.operation.op}/{implementation.name}/{case.name}")
        for case in CASES
        for implementation in implementations
        if implementation.operation is type(case.operation) and sum(added for added, _ in case.rows) <= tokens
        if not _is_for_others(case, implementation)
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case, implementation", _pairs((*NATIVE, *TORCH)))
def test_agrees_with_reference(case: Case, implementation: Implementation, dtype: torch.dtype) -> None:
    if reason := obstacle(implementation, dtype):
        pytest.skip(reason)
    expected, found = referred(case, dtype), Bench(case, dtype).run(implementation)
    assert len(found.outputs) == len(expected.outputs)
    for mine, right in zip(found.outputs, expected.outputs, strict=True):
        assert mine.dtype is right.dtype and mine.shape == right.shape
        scale = right.float().abs().amax(1, keepdim=True).clamp(min=1.0)
        assert ((mine.float() - right.float()).abs() / scale).max() <= TOLERANCE[dtype]
    for mine, right in zip(found.planes, expected.planes, strict=True):
        assert torch.equal(mine.nan_to_num(nan=7.0), right.nan_to_num(nan=7.0))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "case, implementation",
    [
        pair
        for pair in _pairs(EVERY, tokens=200)
        if not isinstance(pair.values[0].operation, (HeadNorm, Rotary, Linear))
    ],
)
def test_needed_inputs_are_left_alone(case: Case, implementation: Implementation) -> None:
    if reason := obstacle(implementation, torch.float32):
        pytest.skip(reason)
    bench = Bench(case, torch.float32)
    kept, free = bench.run(implementation, reusable=False), bench.run(implementation)
    for mine, other in zip(kept.outputs, free.outputs, strict=True):
        assert torch.equal(mine, other)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# The reference computes attention token by token, so long batches show nothing new.
ALONE = [pair.values for entry in EVERY for pair in _pairs((entry,) if entry.row_function else (), tokens=200)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "case, implementation, dtype, threads",
    in_turn(ALONE, DTYPES, (1, 3)),
    indirect=["threads"],
    ids=named,
)
def test_row_function(case: Case, implementation: Implementation, dtype: torch.dtype, threads: int) -> None:
    """A row alone gives the same bits as in the batch, wherever an implementation declares that.

    Where threads share a batch, the row's place in it decides where they cut it.
    """
    if reason := obstacle(implementation, dtype):
        pytest.skip(reason)
    assert torch.get_num_threads() == threads
    assert_rows_are_alone(Bench(case, dtype), implementation)


PLACING = [
    pytest.param(case, entry, id=f"{case.op}/{entry.name}/{case.name}")
    for case in CASES
    if isinstance(case.operation, PLACED)
    for entry in EVERY
    if entry.operation is type(case.operation) and not _is_for_others(case, entry)
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("case, implementation", PLACING)
def test_selected_rows_are_what_they_are_among_all(case: Case, implementation: Implementation, wanted: str) -> None:
    bench = Bench(replace(case, wanted=WANTED[wanted]), torch.float32)
    assert_selected_rows_are_the_same(bench, implementation, exact=implementation.row_function)


@pytest.mark.parametrize("kept", ["int8", "fp8", "int4"])
def test_selected_rows_see_a_cache_of_bytes_as_all_do(kept: str) -> None:
    case = next(case for case in CASES if case.name == "mixed, of another layer, window")
    native = next(entry for entry in NATIVE if entry.operation is Attention)
    assert_selected_rows_are_the_same(Bench(replace(case, wanted=WANTED["scattered"]), torch.bfloat16, kept), native)


@pytest.mark.parametrize(
    "implementation",
    [entry for entry in EVERY if entry.operation is GatedActivation and entry.name != "native"],
)
def test_activations_depend_on_where_threads_cut(implementation: Implementation) -> None:
    """torch's ends of shares differ from its vectors in the last bit, so this must not be promised."""
    assert not implementation.row_function


def test_every_operation_has_a_reference_and_cases() -> None:
    assert {entry.operation for entry in REFERENCE} == set(OPERATIONS)
    # Those in which ranks meet are tried where there are several.
    assert {type(case.operation) for case in CASES} == set(OPERATIONS) - set(COLLECTIVE)
    names = [(entry.operation, entry.name) for entry in EVERY]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("implementation", TORCH, ids=lambda entry: f"{entry.operation.op}/{entry.name}")
def test_what_is_for_others_is_refused(implementation: Implementation) -> None:
    for case in CASES:
        if type(case.operation) is implementation.operation and _is_for_others(case, implementation):
            binding = Binding({}, Bench(case, torch.float32).storage, torch.float32, (True,))
            assert implementation.supports(case.operation, binding) is not None


@pytest.mark.parametrize("implementation", [entry for entry in TORCH if entry.operation in (HeadNorm, Rotary)])
def test_in_place_kernels_refuse_needed_inputs(implementation: Implementation) -> None:
    case = next(case for case in CASES if type(case.operation) is implementation.operation)
    binding = Binding({}, Bench(case, torch.float32).storage, torch.float32, (False,))
    reason = implementation.supports(case.operation, binding)
    assert reason is not None and "overwritten" in reason
