"""Attention over rows of tokens that see each other: beside the reference, and bits of rows by themselves."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.reference_attention import attend_row
from penstock.kernels.signature import HeadLayout, RowAttention

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

pytestmark = pytest.mark.usefixtures("instruction_set")


@dataclass(frozen=True)
class Made:
    """Attention, and the lengths of rows with how many tokens of each are seen."""

    heads: HeadLayout
    window: int | None
    reach: int | None
    lengths: tuple[int, ...]
    seen: tuple[int, ...]


@st.composite
def made(draw: st.DrawFn) -> Made:
    kv_heads, share = draw(st.sampled_from([(1, 1), (3, 1), (1, 2), (2, 3)]))
    lengths = tuple(draw(st.lists(st.integers(1, 40) | st.integers(200, 600), min_size=1, max_size=4)))
    return Made(
        HeadLayout(kv_heads * share, kv_heads, draw(st.sampled_from([24, 32, 64, 96]))),
        draw(st.none() | st.integers(1, 300)),
        draw(st.none() | st.integers(1, 200)),
        lengths,
        tuple(draw(st.integers(1, length) | st.just(length)) for length in lengths),
    )


WHOLE = HeadLayout(2, 2, 32)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made(), st.integers(1, 4))
@example(Made(WHOLE, None, None, (16, 256, 257, 513), (16, 256, 257, 513)), 2)
@example(Made(WHOLE, 64, None, (1500,), (1500,)), 4)
@example(Made(WHOLE, 5, 7, (40, 300), (3, 290)), 1)
def test_rows_are_as_the_reference_has_them_and_as_by_themselves(case: Made, threads: int) -> None:
    native.set_threads(threads)
    torch.manual_seed(sum(case.lengths))
    heads = case.heads
    qkv = torch.randn(sum(case.lengths), heads.fused_width).bfloat16().float()
    table = None if case.reach is None else torch.randn(heads.query_heads, 2 * case.reach + 1)
    together = attend(case, qkv, table, case.lengths, case.seen)
    operation = RowAttention(heads, 0.4, case.window)
    rows = zip(qkv.split(case.lengths), together.split(case.lengths), case.lengths, case.seen, strict=True)
    for row, found, length, seen in rows:
        wanted = attend_row(row, operation, table, seen)
        # Weights are rounded to bfloat16, and values are of a normal distribution.
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0)
        assert (found - wanted).square().mean().sqrt() < 0.003
        assert torch.equal(found, attend(case, row, table, (length,), (seen,)))


def test_what_is_not_a_number_stays_none_and_stays_in_its_row() -> None:
    case = Made(WHOLE, None, None, (30, 30), (30, 30))
    qkv = torch.randn(60, WHOLE.fused_width)
    clean = attend(case, qkv, None, case.lengths, case.seen)
    qkv[7, 5] = torch.nan
    found = attend(case, qkv, None, case.lengths, case.seen)
    assert found[7, :32].isnan().all()
    found[7, :32] = clean[7, :32]
    assert torch.equal(found, clean)


def test_what_is_not_a_number_outside_a_window_means_the_same_however_queries_are_shared_out() -> None:
    case = Made(WHOLE, 8, None, (700,), (700,))
    qkv = torch.randn(700, WHOLE.fused_width)
    # Its value alone, just behind what the 64th query sees: where threads take 64 queries each, a piece ends there.
    qkv[71, -1] = torch.nan
    found = []
    for threads in (1, 6):
        native.set_threads(threads)
        found.append(attend(case, qkv, None, case.lengths, case.seen))
    assert torch.equal(found[0].isnan(), found[1].isnan())
    assert found[0][7 * 32 :].isfinite().all()


def test_a_step_without_rows_has_nothing_to_attend() -> None:
    case = Made(WHOLE, None, None, (), ())
    assert attend(case, torch.empty(0, WHOLE.fused_width), None, (), ()).shape == (0, 64)


def attend(case: Made, qkv: Tensor, table: Tensor | None, lengths: tuple[int, ...], seen: tuple[int, ...]) -> Tensor:
    """[tokens, query_width] of rows of these lengths."""
    heads = case.heads
    program = native.Program(2)
    bias = None if table is None else table.numpy()
    program.row_attention(
        heads.query_heads, heads.kv_heads, heads.head_dim, "bfloat16", 0.4, case.window or 0, bias, 0, 1
    )
    output = torch.empty(len(qkv), heads.query_heads * heads.head_dim)
    ids = np.zeros(len(qkv), dtype=np.int64)
    positions = np.concatenate([ids[:0], *(np.arange(length) for length in lengths)])
    counts = list(lengths)
    program.run(
        ids,
        positions,
        counts,
        counts,
        ids[:0],
        [],
        16,
        ids[:0],
        [(0, qkv)],
        [(1, output)],
        seen=np.array(seen, dtype=np.int64),
    )
    return output
