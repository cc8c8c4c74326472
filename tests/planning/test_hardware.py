"""A processor's measured ceilings are a device's limits."""

import pytest

from penstock.core.ceilings import Ceilings
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of_ceilings


@pytest.mark.parametrize(
    ("arithmetic", "kept", "rate"),
    [
        ({"int8": 400.0, "bfloat16": 200.0, "float32": 100.0}, "bfloat16", 200e9),
        ({"int8": 400.0, "bfloat16": 200.0, "float32": 100.0}, "float32", 100e9),
        ({"int8": 400.0, "bfloat16": 200.0, "float32": 100.0}, "int4", 400e9),
        ({"int8": 400.0, "bfloat16": 0.0, "float32": 100.0}, "bfloat16", 100e9),
        ({"int8": 0.0, "float32": 100.0}, "int8", 100e9),
    ],
)
def test_what_has_no_arithmetic_of_its_own_is_computed_in_float32(
    arithmetic: dict[str, float], kept: str, rate: float
) -> None:
    device = device_of_ceilings(Ceilings(10.0, arithmetic), "here", 2e9)
    assert device.rate(FORMATS[kept]) == rate
    assert (device.bandwidth, device.memory, device.link) == (10e9, 2e9, 0.0)
