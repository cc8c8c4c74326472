"""What the start says that rounding would gain."""

import dataclasses
import re

import msgspec
import pytest
import torch

from penstock.assembly.gain import describe_gain, measure_machine
from penstock.assembly.prepare import Prepared, prepare
from penstock.configuration.options import EngineOptions
from penstock.core.ceilings import Ceilings
from penstock.core.config import ModelConfig
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.cpu.weights import NativeLinear, pack_dense

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

CEILINGS = Ceilings(25.0, {"float32": 100.0})


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(EngineOptions.of(model="haiku"), api_beside=False)


@pytest.fixture(scope="module")
def large() -> NativeLinear:
    return pack_dense(torch.zeros(32_768, 1_024, dtype=torch.bfloat16))


def model(prepared: Prepared, quantization: str = "none") -> ModelConfig:
    return msgspec.structs.replace(prepared.config.model, quantization=quantization)


def test_bytes_make_the_difference(prepared: Prepared, large: NativeLinear) -> None:
    said = describe_gain(model(prepared), prepared.declaration, {"lm_head.weight": large}, CEILINGS)
    assert said is not None
    speed, now, int8, int4 = (float(found) for found in re.findall(r"[\d.]+(?:e\+\d+)?(?= GB/s| tokens| with)", said))
    assert int8 / now == pytest.approx(2.0, rel=0.02) and int4 / now == pytest.approx(2.0 / 0.53125, rel=0.02)
    step = prepared.declaration.parameters_in("linear") + prepared.declaration.decoder.output.weight.size
    assert now == pytest.approx(speed * 1e9 / (2 * step), rel=0.02)


def test_nothing_is_said_of_weights_in_caches_or_rounded_ones(prepared: Prepared, large: NativeLinear) -> None:
    small = dataclasses.replace(large, memory=large.memory[: 1 << 20])
    assert describe_gain(model(prepared), prepared.declaration, {"lm_head.weight": small}, CEILINGS) is None
    assert describe_gain(model(prepared), prepared.declaration, {"lm_head.weight": torch.zeros(1)}, CEILINGS) is None
    assert describe_gain(model(prepared, "int8"), prepared.declaration, {"lm_head.weight": large}, CEILINGS) is None
    assert describe_gain(model(prepared), prepared.declaration, {"lm_head.weight": large}, None) is None


def test_the_machine_is_measured_with_a_weight_or_without(large: NativeLinear) -> None:
    for weights in ({"lm_head.weight": large}, {}):
        ceilings = measure_machine(weights, 1)
        assert ceilings is not None and ceilings.read > 0 and ceilings.arithmetic["float32"] > 0


def test_without_a_weight_it_is_measured_once_for_the_same_threads_and_instructions(large: NativeLinear) -> None:
    used = native.instruction_set()
    try:
        measured = measure_machine({}, 1)
        assert measure_machine({}, 1) is measured
        assert measure_machine({}, 2) is not measured
        assert measure_machine({"lm_head.weight": large}, 1) is not measured
        for other in native.instruction_sets():
            native.use_instruction_set(other)
            assert (measure_machine({}, 1) is measured) == (other == used)
    finally:
        native.use_instruction_set(used)
