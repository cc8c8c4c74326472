"""What a device reaches at most is measured, in the units that shares are taken of."""

import pytest

from penstock.runtime import gpu_ceilings
from penstock.runtime.gpu_ceilings import measure_copies, measure_device_ceilings, measure_products
from support.device import DEVICE

pytestmark = pytest.mark.cuda


def test_a_device_reaches_something() -> None:
    found = measure_device_ceilings(DEVICE)
    assert found.read > 0 and found.peak("bfloat16") > 0


def test_each_byte_is_read_and_written_and_each_product_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_ceilings, "seconds_of", lambda call, count, device: [0.5, 0.25, 9.0])
    assert measure_copies(DEVICE, 1 << 20) == pytest.approx(2 * (1 << 20) / 0.5 / 1e9)
    assert measure_products(DEVICE, 64) == pytest.approx(2 * 64**3 / 0.5 / 1e9)
