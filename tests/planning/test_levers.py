"""What each other setting would change."""

import json
from pathlib import Path

import pytest

from penstock.planning.asked import Asked
from penstock.planning.drafts import expected_tokens
from penstock.planning.estimates import Workload, estimate
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import machine_of
from penstock.planning.latency import Deployment
from penstock.planning.levers import Lever, levers_of
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())


def levers(concurrency: float, on: str = "h100", weights: str = "bfloat16", **workload: float) -> dict[str, Lever]:
    machine = machine_of(on)
    deployment = Deployment(shape_of(MODELS["Llama-3.1-8B"]), machine.device, weights=FORMATS[weights])
    wanted = Workload(2048, 256, concurrency, **workload)
    return {lever.what: lever for lever in levers_of(Asked(deployment, machine, wanted), TYPICAL, wanted)}


def test_fewer_bits_bring_most_where_weights_are_read() -> None:
    one, many = levers(1), levers(64)
    assert one["weights in int4"].gain > one["weights in fp8"].gain > 0.3
    assert many["weights in int4"].gain < one["weights in int4"].gain
    assert many["keys and values in fp8"].gain > one["keys and values in fp8"].gain > 0
    assert one["keys and values in fp8"].max_concurrency > 1.9 * one["half of each prompt cached"].max_concurrency


def test_the_largest_gain_is_first() -> None:
    gains = [lever.gain for lever in levers(16).values()]
    assert gains == sorted(gains, reverse=True) and len(gains) == 7


def test_what_is_there_already_is_no_change() -> None:
    found = levers(8, weights="int4", cached_tokens=1500.0)
    assert not any(what.startswith("weights") for what in found) and "half of each prompt cached" not in found


def test_a_device_without_fp8_saves_reading_alone() -> None:
    found = levers(64, on="a100")
    assert found["weights in int8"].output_tokens_per_second > found["weights in fp8"].output_tokens_per_second


def test_drafts_are_free_while_a_step_waits_for_its_weights() -> None:
    (name,) = (what for what in levers(1) if "drafts" in what)
    one, many = levers(1)[name], levers(256)[name]
    plain = estimate(
        Deployment(shape_of(MODELS["Llama-3.1-8B"]), machine_of("h100").device), TYPICAL, Workload(2048, 256, 1)
    )
    assert one.tpot_ms == pytest.approx(plain.tpot * 1e3 / expected_tokens(0.6, 3), rel=0.1)
    assert many.gain < one.gain
