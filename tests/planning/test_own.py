"""A machine that was measured: its coefficients from steps, and its file."""

import json
import random
from functools import cache
from pathlib import Path

import msgspec
import pytest

from penstock.core.errors import ConfigurationError
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import Device
from penstock.planning.latency import Deployment, MeasuredStep, Rows, step_time
from penstock.planning.own import (
    Answered,
    Answering,
    OwnMachine,
    answering_of,
    calibrated_machine,
    median_answering,
    read_machine,
)
from penstock.planning.priors import TPOT_INTERVAL, TYPICAL
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
HERE = Device("some processor", "cpu", 24e9, 20e9, {"fp32": 1e11, "bf16": 2e11, "int8": 4e11}, 0.0, 0.0, "measured")
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), HERE, weights=FORMATS["int8"])
TRUE = msgspec.structs.replace(
    TYPICAL, weights={**TYPICAL.weights, "int8": 0.6}, products={**TYPICAL.products, "int8": 0.7}, half_part=0.02
)


def steps(noise: float = 0.0) -> list[MeasuredStep]:
    """Steps that take what the true coefficients say, but for noise."""
    source = random.Random(0)
    kinds = [Rows(float(rows), float(context)) for rows in (1, 2, 4, 8, 16, 32) for context in (16, 256, 1024)]
    kinds += [Rows(chunks=((float(start), float(count)),)) for count in (16, 64, 256, 1024) for start in (0, 512)]
    return [
        MeasuredStep(rows, step_time(DEPLOYMENT, TRUE, rows).seconds * source.lognormvariate(0, noise))
        for rows in kinds
    ]


@cache
def made(noise: float) -> OwnMachine:
    return calibrated_machine(DEPLOYMENT, steps(noise), "2026-11-26", "llama", ("int8", "plain"))


def test_steps_that_were_not_measured_are_estimated() -> None:
    machine = made(0.03)
    for rows in (Rows(3.0, 600.0), Rows(24.0, 100.0), Rows(chunks=((100.0, 400.0),)), Rows(5.0, 64.0, ((0.0, 100.0),))):
        told, true = (step_time(DEPLOYMENT, which, rows).seconds for which in (machine.efficiency, TRUE))
        assert told == pytest.approx(true, rel=0.08)


def test_steps_of_another_format_are_told_from_bytes_and_not_from_fixed_costs() -> None:
    """Steps of one format cannot tell reading from fixed costs; the bandwidth that was measured can."""
    machine, other = made(0.0), msgspec.structs.replace(DEPLOYMENT, weights=FORMATS["int4"])
    weights = dict.fromkeys(TRUE.weights, TRUE.weights["int8"])
    true = msgspec.structs.replace(TRUE, weights=weights)
    told, right = (step_time(other, which, Rows(1.0, 16.0)).seconds for which in (machine.efficiency, true))
    assert told == pytest.approx(right, rel=0.1)


def test_the_interval_follows_the_noise() -> None:
    still, loud = made(0.0).interval, made(0.2).interval
    assert still[1] < 1.1 and loud[1] > 1.2 and loud[0] == pytest.approx(1 / loud[1])


def test_a_file_is_read_as_it_was_written() -> None:
    machine = made(0.05)
    assert read_machine(msgspec.json.encode(machine), "here.json") == machine
    assert "26 steps of llama (int8) on this machine, measured on 2026-11-26" in machine.basis(DEPLOYMENT).said
    assert machine.basis(DEPLOYMENT).tpot == machine.interval


def test_another_format_stands_on_less() -> None:
    machine, other = made(0.05), msgspec.structs.replace(DEPLOYMENT, weights=FORMATS["bfloat16"])
    basis = machine.basis(other)
    assert basis.tpot == TPOT_INTERVAL and "no others in this format" in basis.said


def test_what_answering_takes_is_added() -> None:
    machine = msgspec.structs.replace(made(0.05), answering=Answering(1e-3, 2e-4, 3e-3, 4e-3, 0.032))
    alone, behind = machine.efficiency, machine.basis(DEPLOYMENT).efficiency
    rows = Rows(4.0, 100.0)
    longer = step_time(DEPLOYMENT, behind, rows).seconds - step_time(DEPLOYMENT, alone, rows).seconds
    assert longer == pytest.approx(1e-3 + 4 * 2e-4)
    rows = Rows(4.0, 100.0, ((0.0, 32.0), (0.0, 64.0)))
    more = step_time(DEPLOYMENT, behind, rows).seconds - step_time(DEPLOYMENT, alone, rows).seconds
    assert more - longer == pytest.approx(2 * 3e-3)
    assert behind.first_layer_seconds == pytest.approx(1e-3)
    assert read_machine(msgspec.json.encode(machine), "here.json") == machine


def answered(rows: int, output: float, beside: float, prompt: float) -> Answered:
    """Steps of 10 s that clients see `beside` s later, and by others' prompts of `prompt` s."""
    return Answered(rows, output, 10.0, 10.0 + beside + prompt * (rows - 1) / output)


@pytest.mark.parametrize("request_seconds", [0.0, 0.2])
@pytest.mark.parametrize(
    ("longer", "step", "each"),
    [
        ((1.5, 3.0, 7.0), 1.0, 0.5),
        ((3.0, 2.0, 1.0), 2.0, 0.0),
        ((0.0, 2.4, 11.0), 0.0, 0.8795),
        ((-1.0, -1.0, -2.0), 0.0, 0.0),
    ],
)
def test_the_line_of_what_answering_takes(
    longer: tuple[float, ...], step: float, each: float, request_seconds: float
) -> None:
    prompt = 0.3 + request_seconds
    points = [answered(rows, 64.0, more, prompt) for rows, more in zip((1, 4, 12), longer, strict=True)]
    short = answered(12, 8.0, longer[-1], prompt)
    found = answering_of(points, short, 0.3, apart=0.1, first=9.0)
    assert (found.step_seconds, found.row_seconds) == (pytest.approx(step), pytest.approx(each, abs=1e-3))
    assert found.request_seconds == pytest.approx(request_seconds) and found.apart_seconds == 0.1
    told = found.step_seconds + found.row_seconds + found.request_seconds + found.first_seconds
    assert told == pytest.approx(9.0), "the first token has all of it once"


def test_what_clients_see_earlier_counts_as_nothing() -> None:
    points = [answered(rows, 64.0, 0.0, 0.3) for rows in (1, 4, 12)]
    found = answering_of(points, answered(12, 8.0, -5.0, 0.3), 0.3, apart=0.1, first=-1.0)
    assert (found.request_seconds, found.first_seconds) == (0.0, 0.0)


def test_other_files_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"here\.json is not what `penstock calibrate` writes"):
        read_machine(b'{"device": 1}', "here.json")
    with pytest.raises(ConfigurationError, match="4 steps are too few"):
        calibrated_machine(DEPLOYMENT, steps()[:4], "2026-11-26", "llama", ("int8", "plain"))


def test_integers_are_multiplied_as_such_on_processors() -> None:
    assert {HERE.rate(FORMATS[name]) for name in ("int8", "int4", "int8_weights", "q4_k_m")} == {4e11}
    assert HERE.rate(FORMATS["bfloat16"]) == 2e11 and HERE.rate(FORMATS["float32"]) == 1e11


def test_one_turn_of_several_that_was_disturbed_does_not_count() -> None:
    turns = [Answering(0.1, 0.2, 0.3, 0.4, 0.5), Answering(9.0, 9.0, 0.0, 9.0, 9.0), Answering(0.3, 0.1, 0.4, 0.2, 0.6)]
    assert median_answering(turns) == Answering(0.3, 0.2, 0.3, 0.4, 0.6)
    assert median_answering([turns[0], turns[2]]) == Answering(0.2, pytest.approx(0.15), 0.35, pytest.approx(0.3), 0.55)
