"""Attention on several threads: few long contexts are cut by segments, and merged alike by any number of threads."""

import pytest
import torch

from penstock.kernels.cases import Case
from penstock.kernels.cases.attention import CASES as OVER_CONTEXTS
from penstock.kernels.cases.source_attention import CASES as OVER_SOURCES
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.dispatch import Implementation
from support.operations import Bench, referred

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

from penstock.kernels.cpu.native import native

CASES = [case for case in (*OVER_CONTEXTS, *OVER_SOURCES) if case.use != "bench"]
LONG = [case for case in CASES if max(case.stored) > 512]
SHORT = [case for case in CASES if max(case.stored) <= 512]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


def of(case: Case) -> Implementation:
    return next(entry for entry in NATIVE if entry.operation is type(case.operation))


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_all_instruction_sets_agree_with_the_reference(case: Case, dtype: torch.dtype) -> None:
    (expected,), (found,) = referred(case, dtype).outputs, Bench(case, dtype).run(of(case)).outputs
    scale = expected.float().abs().amax(1, keepdim=True).clamp(min=1.0)
    assert ((found.float() - expected.float()).abs() / scale).max() <= TOLERANCE[dtype]


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_threads_and_neighbours_do_not_change_bits(case: Case, dtype: torch.dtype) -> None:
    bench = Bench(case, dtype)
    native.set_threads(1)
    (expected,) = bench.run(of(case)).outputs
    # With eight threads even the whole batch is cut by segments, with two only a row alone.
    for threads in (2, 3, 8):
        native.set_threads(threads)
        assert torch.equal(bench.run(of(case)).outputs[0], expected)
        first = 0
        for row, (added, _) in enumerate(case.rows):
            alone = bench.run(of(case), only=row).outputs[0]
            assert torch.equal(alone, expected[first : first + added])
            first += added


def test_there_are_long_cases() -> None:
    assert len(LONG) >= 4
