"""The roofline of a plan against arithmetic that can be done by hand."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning import priors
from penstock.planning.estimates import Workload
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, StepTime
from penstock.planning.reading import shape_of
from penstock.planning.roofline import roofline_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())


def deployment(model: str = "Llama-3.1-70B", kept: str = "bfloat16", split: int = 8) -> Deployment:
    return Deployment(shape_of(MODELS[model]), device_of("h100"), split, FORMATS[kept])


def test_the_ridge_of_an_h100() -> None:
    """989 TFLOPS over 3,350 GB/s; the sparse rate that makers print would make 590 of it."""
    assert roofline_of(deployment(), priors.TYPICAL, Workload(1024, 256), []).ridge == pytest.approx(295, rel=0.01)
    assert roofline_of(deployment(kept="fp8"), priors.TYPICAL, Workload(1024, 256), []).ridge == pytest.approx(
        590, rel=0.01
    )


def test_a_decode_alone_does_one_operation_a_byte_in_16_bits() -> None:
    """Two operations for each weight, which has two bytes; the cache of one request is little beside."""
    prompt, one, many = roofline_of(deployment(), priors.TYPICAL, Workload(1024, 256), [1, 64]).points
    assert (prompt.phase, one.phase, many.concurrency) == ("prefill", "decode", 64)
    assert one.intensity == pytest.approx(1, rel=0.01)
    assert 50 < many.intensity < 64
    # A prompt of 1,024 tokens reads weights once for all of them.
    assert prompt.intensity == pytest.approx(1024, rel=0.05)
    assert prompt.attainable == 989e12 and one.attainable == pytest.approx(3.35e12, rel=0.01)


@given(
    model=st.sampled_from(sorted(MODELS)),
    split=st.sampled_from([1, 2, 8]),
    inputs=st.integers(1, 30_000),
    cached=st.integers(0, 29_999),
    groups=st.sampled_from([1, 2, 8]),
)
def test_nothing_reaches_more_than_its_limits(model: str, split: int, inputs: int, cached: int, groups: int) -> None:
    workload = Workload(inputs, 100, 1, min(cached, inputs - 1))
    there = deployment(model, "fp8", split)
    if there.shape.routes:
        there = msgspec.structs.replace(there, groups=min(groups, split))
    for point in roofline_of(there, priors.TYPICAL, workload, [1, 8, 512]).points:
        assert 0 < point.reached <= point.attainable * 1.0001


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 64))
def test_reading_and_multiplying_overlap(reading: float, multiplying: float, overlap: float) -> None:
    """Together they take at least as long as the longer of them, and at most as long as one after the other."""
    together = msgspec.structs.replace(priors.TYPICAL, overlap=overlap).together(reading, multiplying)
    assert max(reading, multiplying) <= together <= (reading + multiplying) * (1 + 1e-9)


def test_the_more_they_overlap_the_nearer_the_longer() -> None:
    found = [msgspec.structs.replace(priors.TYPICAL, overlap=overlap).together(3.0, 4.0) for overlap in (1, 2, 32)]
    assert found == [pytest.approx(7.0), pytest.approx(5.0), pytest.approx(4.0, rel=1e-4)]


def test_what_most_of_a_step_goes_into_is_both_of_what_overlaps() -> None:
    step = StepTime(reading=3.0, multiplying=4.0, overlapped=5.0, cache=4.5, attention=0.0, messages=0.0, fixed=0.0)
    assert (step.seconds, step.limit) == (9.5, "multiplying")
