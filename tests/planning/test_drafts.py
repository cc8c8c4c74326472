"""What drafts bring by formula and by the latency model."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.drafts import draft_gain, expected_tokens, speedup
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, Rows, decode_step, step_time
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
LARGE, SMALL = (Deployment(shape_of(MODELS[name]), device_of("h100"), 8) for name in ("Llama-3.1-70B", "Llama-3.1-8B"))


@given(acceptance=st.floats(0, 1), depth=st.integers(0, 16))
def test_a_step_yields_at_least_one_token_and_at_most_all(acceptance: float, depth: int) -> None:
    found = expected_tokens(acceptance, depth)
    assert found * (1 + 1e-9) >= 1 and found <= (depth + 1) * (1 + 1e-9)
    assert found <= expected_tokens(acceptance, depth + 1) * (1 + 1e-9)


def test_costs_divide_what_is_gained() -> None:
    assert speedup(0.0, 4, draft_cost=0.1) == pytest.approx(1 / 1.4)
    assert speedup(1.0, 4, draft_cost=0.0, verify_cost=2.0) == pytest.approx(2.5)
    assert speedup(0.5, 2, draft_cost=0.25) == pytest.approx(1.75 / 1.5)


def test_a_verified_draft_is_a_token_to_multiply_by_and_no_context_to_read() -> None:
    plain, drafted = decode_step(LARGE, TYPICAL, 64, 1000), step_time(LARGE, TYPICAL, Rows(64, 1000, drafts=3))
    assert step_time(LARGE, TYPICAL, Rows(64, 1000, drafts=0)) == plain
    assert (drafted.reading, drafted.cache, drafted.fixed) == (plain.reading, plain.cache, plain.fixed)
    many = decode_step(LARGE, TYPICAL, 256, 0)
    assert (drafted.multiplying, drafted.messages) == pytest.approx((many.multiplying, many.messages))


def test_drafts_pay_at_small_batches_and_cost_at_large_ones() -> None:
    gains = [draft_gain(LARGE, SMALL, TYPICAL, rows, 1000, acceptance=0.7, depth=4) for rows in (1, 16, 64, 256)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.3 and gains[-1] < 1.0
