"""The worked numbers of the field, and those that well-known sources have wrong."""

import json
from math import exp, inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, least_seconds
from penstock.planning.load import load_on, replicas_for, waiting, waits
from penstock.planning.money import ApiPrice, break_even, per_million
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
LLAMA_2_13B = {
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "vocab_size": 32000,
}


def test_what_a_request_keeps() -> None:
    """A 13B model without shared heads keeps 3.36 GB at 4k, not 1 GB; a 70B with them 0.66 GB for 2,000, not 0.2."""
    thirteen, seventy = shape_of(LLAMA_2_13B), shape_of(MODELS["Llama-3.1-70B"])
    assert thirteen.kept_values(4096) * 2 == pytest.approx(3.36e9, rel=0.01)
    assert seventy.kept_values(2000) * 2 == pytest.approx(0.655e9, rel=0.01)
    assert seventy.kept_values(1) * 2 / 1e6 == pytest.approx(0.33, rel=0.01)
    assert seventy.kept_values(4096) * 2 == pytest.approx(1.34e9, rel=0.01)
    # 2 x layers x hidden would be eight times that.
    assert 8 * seventy.kept_values(1) * 2 == 2 * 80 * 8192 * 2


def test_weights_of_7b_by_bits() -> None:
    """28, 14, 7 and 3.5 GB at 32, 16, 8 and 4 bits, but for scales and what stays in 16."""
    shape = shape_of(MODELS["Llama-7B"])
    sizes = [shape.parameters * FORMATS[name].bytes / 1e9 for name in ("float32", "bfloat16", "int8", "int4")]
    assert sizes == pytest.approx([27.0, 13.5, 6.7, 3.5], rel=0.02)


def test_a_70b_model_in_8_bits_by_device() -> None:
    """Its steps cannot be shorter than the reading of its weights: 46 tokens a second on an H100, 28 on an A100."""

    def ceiling(device: str) -> float:
        return 1 / least_seconds(
            Deployment(shape_of(MODELS["Llama-3.1-70B"]), device_of(device), 1, FORMATS["int8"]), 1
        )

    assert ceiling("h100") == pytest.approx(47, rel=0.05)
    assert ceiling("a100") == pytest.approx(28.6, rel=0.05)
    assert ceiling("rtx4090") == pytest.approx(14.1, rel=0.05)


def test_a_40_million_dollar_question_of_units() -> None:
    """$7.80 and $2.34 a million are one box at 300 and at 1,000 tokens a second."""
    hour = 7.80 * 300 * 3600 / 1e6
    assert per_million(hour, 1, 300) == pytest.approx(7.80)
    assert per_million(hour, 1, 1000) == pytest.approx(2.34)
    assert per_million(hour, 2, 1000) == pytest.approx(4.68)


def test_break_even() -> None:
    api = ApiPrice(input=0.5, output=1.5, cached=0.05)
    assert api.month(1000, 2000, 500) == pytest.approx(1.75)
    assert api.month(1000, 2000, 500, cached_tokens=1000) == pytest.approx(1.30)
    found = break_even(5920.0, api.month(1, 2000, 500), requests_per_second=2.0)
    assert api.month(found.requests_a_month, 2000, 500) == pytest.approx(5920.0)
    assert found.most_a_month == 2.0 * 730 * 3600 and found.comes
    assert not break_even(5920.0, api.month(1, 2000, 500), requests_per_second=0.1).comes
    with pytest.raises(ConfigurationError, match="costs nothing"):
        break_even(5920.0, 0.0, 1.0)
    with pytest.raises(ConfigurationError, match="no price"):
        per_million(2.0, 1, 0)


def test_one_server_waits_as_everybody_knows() -> None:
    """M/M/1: a request finds it busy as often as it is, and P(W > t) = ρ e^(-(1 - ρ) t / s)."""
    for busy in (0.1, 0.5, 0.9):
        assert waits(1, busy) == pytest.approx(busy)
    late = waiting(1, 0.8, 2.0, 0.95)
    assert exp(-(1 - 0.8) * late / 2.0) == pytest.approx(0.05 / 0.8)


def test_erlangs_table() -> None:
    """From published tables of Erlang C: 10 places and 8 busy wait in 41% of cases, 5 and 3 in 24%."""
    assert waits(10, 8) == pytest.approx(0.409, abs=0.001)
    assert waits(5, 3) == pytest.approx(0.236, abs=0.001)


@given(places=st.integers(1, 2000), part=st.floats(0.01, 0.999), seconds=st.floats(0.01, 100))
def test_fuller_waits_longer_and_full_for_ever(places: int, part: float, seconds: float) -> None:
    busy = part * places
    assert 0 <= waits(places, busy) <= 1
    found = waiting(places, busy, seconds, 0.99)
    assert found >= waiting(places, busy, seconds, 0.5)
    assert found >= waiting(places + 1, busy, seconds, 0.99)
    assert found >= waiting(places, 0.9 * busy, seconds, 0.99)
    assert waiting(places, places, seconds, 0.5) == inf


def test_replicas_for_a_rate() -> None:
    """Ten thousand users who ask once a minute, for 8 s each, are 1,333 at a time."""
    load = replicas_for(places=32, rate=10_000 / 60, seconds=8.0)
    assert load.in_flight == pytest.approx(1333.3, rel=1e-3)
    assert load.utilisation <= 0.8 < load_on(load.replicas - 1, 32, load.rate, 8.0).utilisation
    # Few places wait longer than many at the same utilisation, so that they have to be emptier.
    single = replicas_for(places=1, rate=0.5, seconds=1.0, longest_wait=0.5)
    assert single.waiting_p99 <= 0.5 < load_on(single.replicas - 1, 1, 0.5, 1.0).waiting_p99
    with pytest.raises(ConfigurationError, match="above zero"):
        load_on(1, 1, 0.0, 1.0)


def test_latency_near_saturation_is_a_hyperbola() -> None:
    """Twice as near to full waits twice as long, which is neither exponential nor a wall."""
    half, quarter = (waiting(1, busy, 1.0, 0.99) for busy in (0.98, 0.99))
    assert quarter / half == pytest.approx(2, rel=0.01)
