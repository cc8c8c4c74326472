"""Attention to contexts that are spread over ranks is attention to the whole, in every rank."""

import contextlib
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from penstock.core.shares import Stripe
from penstock.kernels.cases import CASES as ALL
from penstock.kernels.cases import Case
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.operations import NATIVE, kv_layout
from penstock.kernels.dispatch import Dispatcher, Implementation
from penstock.kernels.program import compile_program
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import Attention
from penstock.kernels.tape import Tape
from penstock.parallel.shared import SharedRanks
from support.operations import named
from support.pairing import in_turn
from support.ranks import shared_ranks, together
from support.stepping import ShuffledStorage, Stepper

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

CASES = [case for case in ALL if isinstance(case.operation, Attention) and case.use != "bench"]
# The reference computes attention token by token.
SHORT = [case for case in CASES if sum(added for added, _ in case.rows) <= 200]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


class Spread:
    """A case's attention in several ranks, or in one process: contexts are stored, then the case's rows computed."""

    def __init__(
        self,
        case: Case,
        dtype: torch.dtype,
        ranks: int,
        implementations: Sequence[Implementation] = NATIVE,
        kept: str = "auto",
    ) -> None:
        self.case, self.dtype, self.size = case, dtype, ranks
        self.implementations, self.kept = implementations, kept
        generator = torch.Generator().manual_seed(len(case.name))
        self.weights = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in case.weights.items()}
        width = case.operation.heads.fused_width
        # Of each row, what its tokens are projected to.
        self.given = [torch.randn((context, width), generator=generator).to(dtype) for _, context in case.rows]

    def outputs(self, rows: Sequence[int]) -> list[dict[int, Tensor]]:
        """Of each rank, the outputs of some rows of the case, all in one batch."""
        with contextlib.ExitStack() as stack:
            meeting = stack.enter_context(shared_ranks(self.size)) if self.size > 1 else [None]
            if self.size == 1:
                return [self._run(None, None, rows)]
            return together(meeting, lambda rank: self._run(Stripe(rank, self.size), meeting[rank], rows))

    def _run(self, stripe: Stripe | None, ranks: SharedRanks | None, rows: Sequence[int]) -> dict[int, Tensor]:
        operation, heads = self.case.operation, self.case.operation.heads
        storing = Tape(stripe)
        fused = storing.input(heads.fused_width)
        storing.write_kv(fused, heads, 0)
        storing.finish(storing.columns(fused, 0, 1))
        whole = Tape(stripe)
        fused = whole.input(heads.fused_width)
        whole.write_kv(fused, heads, 0)
        asked = whole.columns(fused, 0, heads.query_width) if operation.borrows else fused
        options = {name: getattr(operation, name) for name in ("window", "softcap", "sinks", "borrows", "bias")}
        whole.finish(whole.attention(asked, heads, 0, operation.scale, **options))
        longest = max(context for _, context in self.case.rows)
        layers, sequences = [self.case.kv], len(self.case.rows)
        storage = ShuffledStorage(layers, self.dtype, longest, sequences, kept=self.kept, stripes=self.size)
        if self.implementations is NATIVE:
            storage.layout = kv_layout(storage.spec, self.dtype)
        programs = (
            compile_program(tape, self.weights, storage, self.dtype, Dispatcher(self.implementations), ranks)
            for tape in (storing, whole)
        )
        store, attend = (Stepper(program, storage, [0] * sequences) for program in programs)
        before = [context - added for added, context in self.case.rows]
        # What is there of a context was stored in chunks that end anywhere.
        halves = [end // 2 for end in before]
        self._step(store, {row: (0, end) for row, end in enumerate(halves) if end})
        self._step(store, {row: (halves[row], end) for row, end in enumerate(before) if end})
        attend.lengths = before
        return self._step(attend, {row: (before[row], self.case.rows[row][1]) for row in rows})

    def _step(self, stepper: Stepper, spans: dict[int, tuple[int, int]]) -> dict[int, Tensor]:
        if not spans:
            return {}
        order = sorted(spans, key=lambda row: (spans[row][1] - spans[row][0] > 1, row))
        added = {row: [0] * (end - begin) for row, (begin, end) in spans.items()}
        batch, counts = stepper.batch(added, order, "all")
        given = torch.cat([self.given[row][slice(*spans[row])] for row in order])
        (found,) = stepper.program.results(batch, given)
        for row in order:
            stepper.lengths[row] = spans[row][1]
        return dict(zip(order, found.split(counts), strict=True))


def _check(found: list[dict[int, Tensor]], expected: dict[int, Tensor], tolerance: float) -> None:
    for row, right in expected.items():
        scale = right.float().abs().amax(1, keepdim=True).clamp(min=1.0)
        assert ((found[0][row].float() - right.float()).abs() / scale).max() <= tolerance, row
        assert all(torch.equal(each[row], found[0][row]) for each in found[1:]), "ranks differ"


@pytest.mark.parametrize(
    "case, dtype, ranks", in_turn([(case,) for case in CASES], (torch.float32, torch.bfloat16), (2, 3, 4)), ids=named
)
def test_native_stripes_are_the_whole(case: Case, dtype: torch.dtype, ranks: int) -> None:
    every = range(len(case.rows))
    (expected,) = Spread(case, dtype, 1).outputs(every)
    _check(Spread(case, dtype, ranks).outputs(every), expected, TOLERANCE[dtype])


@pytest.mark.one_in(2, each=("ranks",))
@pytest.mark.parametrize("case, ranks", in_turn([(case,) for case in SHORT], (3, 2)), ids=named)
def test_reference_stripes_are_the_whole(case: Case, ranks: int) -> None:
    every = range(len(case.rows))
    (expected,) = Spread(case, torch.float32, 1, REFERENCE).outputs(every)
    _check(Spread(case, torch.float32, ranks, REFERENCE).outputs(every), expected, TOLERANCE[torch.float32])


@pytest.mark.one_in(2, each=("ranks",))
@pytest.mark.parametrize("case, ranks", in_turn([(case,) for case in SHORT], (2, 3)), ids=named)
def test_a_row_has_the_same_bits_alone(case: Case, ranks: int) -> None:
    spread = Spread(case, torch.float32, ranks)
    together_found, *_ = spread.outputs(range(len(case.rows)))
    for row in range(len(case.rows)):
        alone, *_ = spread.outputs([row])
        assert torch.equal(alone[row], together_found[row])


@pytest.mark.parametrize(
    "name, kept, tolerance",
    [
        ("mixed, wide heads, window", "int8", 2e-2),
        ("mixed, widest heads, soft cap", "int8", 2e-2),
        ("mixed, latent", "int8", 2e-2),
        ("mixed, wide heads, window", "fp8", 2e-5),
        ("mixed, widest heads, soft cap", "int4", 2e-5),
    ],
)
def test_stripes_of_bytes(name: str, kept: str, tolerance: float) -> None:
    """Weights of integers are rounded together with those of other positions than in one process."""
    case = next(case for case in CASES if case.name == name)
    every = range(len(case.rows))
    (expected,) = Spread(case, torch.float32, 1, kept=kept).outputs(every)
    _check(Spread(case, torch.float32, 2, kept=kept).outputs(every), expected, tolerance)
