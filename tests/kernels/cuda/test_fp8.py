"""Products of E4M3 by E4M3 against float32 ones of activations that are rounded alike."""

import pytest
import torch
from torch import Tensor

from penstock.kernels.cases import CASES, Case
from penstock.kernels.dispatch import Binding
from penstock.kernels.kv_bytes import raw, to_bytes
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import Linear
from support.device import DEVICE, INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda.fp8 import round_fp8_kernel
from penstock.kernels.cuda.multiplying import linear, numbers_of
from penstock.kernels.cuda.place import place_on
from penstock.kernels.cuda.weights import DeviceLinear, fp8_linear

ANY, SAME = place_on(DEVICE, 64), place_on(DEVICE, 64, deterministic=True)
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not ANY.fp8, reason="the GPU has no instructions for E4M3")]

FP8 = torch.float8_e4m3fn
# Instructions may keep 14 bits of what they sum of 128 inputs.
TOLERANCE = {torch.float32: 2e-5 if INTERPRETED else 1e-3, torch.bfloat16: 4e-2}
# Outputs and inputs that share a scale, 0 for all of them.
BLOCKS = {"whole": (0, 0), "outputs": (1, 0), "blocks": (128, 128), "cut": (64, 128), "groups": (1, 128)}
LINEAR = Linear(WeightRef("weight"), WeightRef("bias"))
WIDE = (
    Case("groups and a piece", LINEAR, (300,), ((1, 1),) * 3, {"weight": (200, 300), "bias": (200,)}),
    Case("many rows", Linear(WeightRef("weight")), (256,), ((1, 1),) * 20, {"weight": (130, 256)}),
)
# Of few inputs all share a scale anyway.
SHARED = [case for case in CASES if isinstance(case.operation, Linear) and case.use == "tests" and case.tokens < 20]


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight_of(case: Case, blocks: str) -> DeviceLinear:
    """A random weight, on the CPU."""
    shape = outputs, inputs = case.weights["weight"]
    rows, group = (min(size, side) or side for size, side in zip(BLOCKS[blocks], shape, strict=True))
    scales = normal((-(-outputs // rows), -(-inputs // group)), 1).abs() / 16
    return fp8_linear((8 * normal(shape, 2)).to(FP8), scales, rows, group)


def reference(x: Tensor, weight: DeviceLinear, bias: Tensor | None) -> Tensor:
    """float32: group by group of the inputs, what is rounded to bytes times both scales."""
    outputs, inputs = weight.shape
    values, of_row = weight.data.view(FP8).float(), torch.arange(outputs) // weight.rows
    found = torch.zeros(x.shape[0], outputs)
    for group, first in enumerate(range(0, inputs, weight.group)):
        places = slice(first, first + weight.group)
        rounded, x_scales = to_bytes(x[:, places], FP8)
        found += rounded.float() @ values[:, places].T * (x_scales[:, None] * weight.scales[of_row, group])
    return found if bias is None else found + bias.float()


def product(case: Case, x: Tensor, weight: DeviceLinear, bias: Tensor | None, deterministic: bool = False) -> Tensor:
    place = SAME if deterministic else ANY
    there = DeviceLinear(
        weight.kind,
        weight.data.to(DEVICE),
        weight.scales.to(DEVICE),
        None,
        weight.group,
        weight.shape,
        weight.rows,
    )
    weights = {"weight": there} | ({} if bias is None else {"bias": bias.to(DEVICE)})
    part = linear(case.operation, Binding(weights, None, x.dtype), place)
    return part.run(None, x.to(DEVICE)).cpu()


def inputs_of(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    bias = case.weights.get("bias")
    x = normal((case.tokens, case.widths[0]), 3).to(dtype)
    return x, None if bias is None else normal(bias, 4).to(dtype)


@pytest.mark.parametrize(
    ("case", "blocks", "dtype"),
    [
        *((WIDE[0], blocks, torch.float32) for blocks in BLOCKS),
        *((WIDE[1], blocks, torch.bfloat16) for blocks in ("outputs", "blocks")),
        *((case, "outputs", torch.float32) for case in SHARED),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else str(each),
)
def test_agrees_with_reference(case: Case, blocks: str, dtype: torch.dtype) -> None:
    weight, (x, bias) = weight_of(case, blocks), inputs_of(case, dtype)
    found, expected = product(case, x, weight, bias), reference(x, weight, bias)
    assert found.dtype is dtype and found.shape == expected.shape
    scale = expected.abs().amax(1, keepdim=True).clamp(min=1.0)
    assert ((found.float() - expected).abs() / scale).max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("blocks", ["outputs", "blocks"])
def test_a_row_alone_is_the_same_bits(blocks: str) -> None:
    case = WIDE[1]
    weight, (x, bias) = weight_of(case, blocks), inputs_of(case, torch.bfloat16)
    together = product(case, x, weight, bias, deterministic=True)
    for rows in (slice(0, 1), slice(2, 20), slice(19, 20)):
        assert torch.equal(product(case, x[rows], weight, bias, deterministic=True), together[rows])


@pytest.mark.parametrize("group", [128, 300])
def test_activations_are_rounded_as_on_a_cpu(group: int) -> None:
    """To the same bits, whatever they are; what is not all finite has a scale that is no number."""
    x = normal((12, 300), 5)
    for row, value in enumerate((0.0, torch.inf, torch.nan, 1e-45, 1e-38, 3e38)):
        x[row] = value
    x[6] *= 1e-20
    x[7, ::3] = -0.0
    x[8, -1] = -torch.inf
    x[9] = torch.linspace(-448, 448, 300)
    x[10] = torch.logspace(-12, 8, 300, base=2)
    groups = -(-300 // group)
    rounded = torch.empty(x.shape, dtype=torch.uint8, device=DEVICE)
    scales = torch.empty((len(x), groups), device=DEVICE)
    with ANY.current():
        round_fp8_kernel[(len(x),)](
            x.to(DEVICE),
            rounded,
            scales,
            INPUTS=300,
            GROUP=group,
            PADDED_GROUPS=4 if groups > 1 else 1,
            PADDED_GROUP=512,
        )
    for index in range(groups):
        places = slice(index * group, (index + 1) * group)
        right, right_scales = to_bytes(x[:, places], FP8)
        assert torch.equal(rounded[:, places].cpu(), raw(right))
        torch.testing.assert_close(scales[:, index].cpu(), right_scales, rtol=0, atol=0, equal_nan=True)


def test_what_is_not_finite_is_seen_in_its_row_alone() -> None:
    case = WIDE[0]
    weight, (x, bias) = weight_of(case, "blocks"), inputs_of(case, torch.float32)
    expected = product(case, x, weight, bias)
    x[1, 200] = torch.inf
    found = product(case, x, weight, bias)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("blocks", BLOCKS)
def test_rows_are_looked_up(blocks: str) -> None:
    """As an embedding: a byte's number times its block's scale."""
    weight = weight_of(WIDE[0], blocks)
    outputs, inputs = weight.shape
    which = torch.tensor([0, 199, 63, 64, 150])
    spread = weight.scales.repeat_interleave(weight.rows, 0)[:outputs].repeat_interleave(weight.group, 1)[:, :inputs]
    assert torch.equal(numbers_of(weight, which), (weight.data.view(FP8).float() * spread)[which])
