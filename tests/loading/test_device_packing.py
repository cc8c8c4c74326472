"""Weights arrive in a device's memory as they were, in the forms that its kernels take."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.assembly import prepare as preparing
from penstock.configuration.facts import KeptIntegers
from penstock.configuration.options import EngineOptions
from penstock.core.devices import Gpu, GpuFacts
from penstock.kernels.kv_bytes import raw
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.integers import fp8_numbers, kept_integers
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from support import checkpoints
from support.device import DEVICE, needs_gpu
from support.plain import plain
from support.quantized import LAYOUTS, quantize
from support.stepping import all_logits, make_stepper

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda.multiplying import numbers_of
from penstock.kernels.cuda.operations import implementations
from penstock.kernels.cuda.place import place_on
from penstock.kernels.cuda.weights import DeviceLinear
from penstock.loading.device_packing import DevicePacking, Uploader

pytestmark = pytest.mark.cuda

OLD, NEW = Gpu(0, "Made-up 86", (8, 6), 1 << 36, 1 << 36), Gpu(0, "Made-up 89", (8, 9), 1 << 36, 1 << 36)
# Queries, keys and values are one weight, in which blocks of 128 rows begin at multiples of 64.
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_hidden_layers": 2,
}
# Outputs of which each scale is, in the fused projection of queries, keys and values.
KEPT_FP8 = {"fp8 whole": 64, "fp8 rows": 1, "fp8 large blocks": 64}
PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12], [41, 3]]


def model(layout: str, tmp_path: Path) -> Path:
    original = checkpoints.make("llama", tmp_path / "plain", **SIZES)
    return quantize(original, *LAYOUTS[layout], tmp_path / "quantized")


def opened(path: Path) -> tuple[Checkpoint, ModelDeclaration]:
    checkpoint = open_checkpoint(path)
    return checkpoint, declare(checkpoint.config)


def projections(declaration: ModelDeclaration) -> list[str]:
    return [spec.name for spec in declaration.weights if spec.role == "linear"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_tensors_arrive_whole(dtype: torch.dtype) -> None:
    """Larger and smaller than the buffers that they go through, and some that are not contiguous."""
    upload = Uploader(DEVICE, 1 << 10)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator).mul(9).to(dtype) for shape in ((3,), (64, 31), (0, 5), (7, 1000))]
    given.append(given[1].t())
    for found, tensor in zip([upload(tensor) for tensor in given], given, strict=True):
        assert found.device == DEVICE and found.dtype is dtype
        assert torch.equal(raw(found.cpu()), raw(tensor.contiguous()))


@needs_gpu
def test_what_is_there_stays_where_it_is() -> None:
    tensor = torch.ones(3, device=DEVICE)
    assert Uploader(DEVICE)(tensor) is tensor


@pytest.mark.parametrize("layout", KEPT_FP8)
def test_fp8_stays_what_it_is(layout: str, tmp_path: Path) -> None:
    checkpoint, declaration = opened(model(layout, tmp_path))
    numbers = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    kept = load_weights(checkpoint, declaration, torch.float32, packing=DevicePacking("own", "own", DEVICE, fp8=True))
    size = 0
    for name in projections(declaration):
        weight = kept[name]
        assert isinstance(weight, DeviceLinear) and weight.kind == "fp8" and weight.data.device == DEVICE
        found = numbers_of(weight, torch.arange(weight.shape[0], device=DEVICE))
        assert torch.equal(found.cpu(), numbers[name]), name
        size += weight.data.nbytes + weight.scales.nbytes
    fused = next(spec.name for spec in declaration.weights if len(spec.parts) == 3)
    assert isinstance(kept[fused], DeviceLinear) and kept[fused].rows == KEPT_FP8[layout]
    own = kept_integers(checkpoint, declaration, gpu=NEW)
    assert own.fp8 and own.body == declaration.parameters_in("linear") and own.body_bytes == size
    assert fp8_numbers(checkpoint, declaration, NEW) == 0


def test_integers_in_an_order_of_their_own_become_numbers(tmp_path: Path) -> None:
    checkpoint, declaration = opened(model("gptq act-order", tmp_path))
    assert kept_integers(checkpoint, declaration, gpu=NEW) == KeptIntegers()
    numbers = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    found = load_weights(checkpoint, declaration, torch.float32, packing=DevicePacking("own", "own", DEVICE, fp8=True))
    for name in projections(declaration):
        weight = found[name]
        assert isinstance(weight, Tensor) and torch.equal(weight.cpu(), numbers[name])


@pytest.mark.parametrize(("layout", "gpu"), [("fp8 rows", OLD), ("fp8 large blocks", OLD), ("fp8 blocks", NEW)])
def test_fp8_becomes_numbers_where_it_cannot_be_multiplied(layout: str, gpu: Gpu, tmp_path: Path) -> None:
    """On a GPU without the instructions, and in blocks of a size that the kernels do not take."""
    checkpoint, declaration = opened(model(layout, tmp_path))
    packing = DevicePacking("own", "own", DEVICE, fp8=gpu.multiplies_fp8)
    numbers = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    found = load_weights(checkpoint, declaration, torch.float32, packing=packing)
    for name in projections(declaration):
        weight = found[name]
        assert isinstance(weight, Tensor) and torch.equal(weight.cpu(), numbers[name])
    assert kept_integers(checkpoint, declaration, gpu=gpu) == KeptIntegers()
    assert fp8_numbers(checkpoint, declaration, gpu) == declaration.parameters_in("linear")


@pytest.mark.parametrize("layout", ["fp8 rows", "fp8 large blocks"])
def test_logits_are_near_those_of_the_numbers(layout: str, tmp_path: Path) -> None:
    """They differ by the rounding of activations to three bits behind the point."""
    place = place_on(DEVICE, 64)
    if not place.fp8:
        pytest.skip("the GPU has no instructions for E4M3")
    path = model(layout, tmp_path)
    expected = torch.cat(all_logits(make_stepper(path, tokens=64), PROMPTS, None))
    packing = DevicePacking("own", "own", DEVICE, fp8=True)
    stepper = make_stepper(path, tokens=64, packing=packing, implementations=implementations(place), device=DEVICE)
    found = torch.cat(all_logits(stepper, PROMPTS, None))
    assert 0 < (found - expected).norm() < 0.2 * expected.norm()


@pytest.mark.parametrize(
    ("layout", "gpu", "asked", "found", "why"),
    [
        ("fp8 rows", NEW, "auto", "own", "own integers or FP8, .* FP8 meets activations rounded to it"),
        ("fp8 rows", OLD, "auto", "none", r"819,200 weights in FP8 become .* 8\.9, and it has 8\.6$"),
        ("fp8 blocks", NEW, "auto", "none", "weights in FP8 become numbers on cuda:0: its kernels take E4M3 with a"),
        ("fp8 rows", NEW, "none", "none", "few sequences decode as fast as they are read$"),
        ("int8 rows", OLD, "auto", "own", "own integers, .* with none they become numbers$"),
    ],
)  # fmt: skip
def test_the_start_says_what_becomes_of_it(
    layout: str, gpu: Gpu, asked: str, found: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "find_gpus", lambda: GpuFacts((gpu,)))
    options = EngineOptions.of(model=str(model(layout, tmp_path)), device="cuda", quantization=asked)
    prepared = preparing.prepare(options, api_beside=False)
    assert prepared.config.model.quantization == found
    (reason,) = [reason.why for reason in prepared.reasons if reason.setting == "quantization"]
    assert re.search(why, reason), reason
