"""Products of integers of few bits are those of the numbers that they stand for, whatever the number of rows."""

import pytest
import torch
from torch import Tensor

from penstock.kernels.dispatch import Binding
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import Linear
from support.device import DEVICE, INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda import multiplying
from penstock.kernels.cuda.multiplying import linear, numbers_of
from penstock.kernels.cuda.place import Place, place_on
from penstock.kernels.cuda.weights import ROW_STEPS, DeviceLinear, int4_linear, int8_linear

pytestmark = pytest.mark.cuda

ANY, SAME = place_on(DEVICE, 64), place_on(DEVICE, 64, deterministic=True)
# More and less than a tile's outputs and inputs.
OUTPUTS, INPUTS = 70, 832
# Some for each kernel that there is.
ROWS = (1, *ROW_STEPS, ROW_STEPS[-1] + 5)
# Where sums have one order there is one kernel for all, which takes long where it is interpreted.
ROWS_OF_SAME = (1, 40) if INTERPRETED else ROWS
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def int4(group: int) -> DeviceLinear:
    """Of groups that have whole half runs (multiples of 32), and that have not."""
    source = torch.Generator().manual_seed(group)
    integers = torch.randint(16, (OUTPUTS, INPUTS), generator=source, dtype=torch.uint8)
    groups = (OUTPUTS, INPUTS // group)
    zeros = torch.randint(16, groups, generator=source)
    return int4_linear(integers, normal(groups, 1).abs().bfloat16() / 64, zeros)


def placed(weight: DeviceLinear, device: torch.device) -> DeviceLinear:
    zeros = None if weight.zeros is None else weight.zeros.to(device)
    data, scales = weight.data.to(device), weight.scales.to(device)
    return DeviceLinear(weight.kind, data, scales, zeros, weight.group, weight.shape)


def product(x: Tensor, weight: DeviceLinear, place: Place, bias: Tensor | None = None) -> Tensor:
    tensors = {"weight": placed(weight, place.device)} | ({} if bias is None else {"bias": bias.to(place.device)})
    op = Linear(WeightRef("weight"), None if bias is None else WeightRef("bias"))
    part = linear(op, Binding(tensors, None, x.dtype), place)  # type: ignore[arg-type]
    return part.run(None, x.to(place.device)).cpu()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("place", [ANY, SAME], ids=["fast", "deterministic"])
@pytest.mark.parametrize("group", [16, 32, 64, 416, INPUTS])
def test_int4(group: int, place: Place, dtype: torch.dtype) -> None:
    weight, bias = int4(group), normal((OUTPUTS,), 2).to(dtype)
    numbers = numbers_of(weight, torch.arange(OUTPUTS)).double()
    for rows in ROWS if place is ANY else ROWS_OF_SAME:
        x = normal((rows, INPUTS), 3).to(dtype)
        expected = x.double() @ numbers.T + bias.double()
        found = product(x, weight, place, bias)
        assert found.dtype is dtype
        assert float((found.double() - expected).abs().max() / expected.abs().max()) <= TOLERANCE[dtype]


def test_numbers_are_expanded_some_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = int4(64), normal((ROW_STEPS[0] + 1, INPUTS), 5)
    expected = product(x, weight, ANY)
    monkeypatch.setattr(multiplying, "_EXPANDED_NUMBERS", 33 * INPUTS)
    assert float((product(x, weight, ANY) - expected).abs().max() / expected.abs().max()) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_int8_is_exact_behind_its_scales(dtype: torch.dtype) -> None:
    """The same bits for a row, whatever is beside it."""
    source = torch.Generator().manual_seed(0)
    weight = int8_linear(
        torch.randint(-127, 128, (OUTPUTS, INPUTS), generator=source, dtype=torch.int8),
        normal((OUTPUTS,), 1).abs() / 64,
    )
    x = normal((max(ROWS), INPUTS), 2).to(dtype)
    whole = product(x, weight, ANY)
    scale = x.float().abs().amax(1) / 127
    integers = (x.float() / scale[:, None]).round()
    exact = integers.double() @ weight.data.view(torch.int8).double().T
    expected = exact.float() * (scale[:, None] * weight.scales.T)
    assert float((whole.float() - expected).abs().max() / expected.abs().max()) <= TOLERANCE[dtype]
    for rows in ROWS:
        assert torch.equal(product(x[:rows], weight, ANY), whole[:rows])


def test_int4_rows_do_not_depend_on_others_where_sums_have_one_order() -> None:
    weight, x = int4(32), normal((max(ROWS_OF_SAME), INPUTS), 4).bfloat16()
    whole = product(x, weight, SAME)
    for rows in ROWS_OF_SAME:
        assert torch.equal(product(x[:rows], weight, SAME), whole[:rows])
