"""Shards of weights in every format that files have, or that they are rounded to, are parts of the same weights."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.core.shares import Share, TensorRank
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.packing import Weight
from penstock.kernels.torch.packing import PackedLinear
from penstock.layers.weights import WeightPart, WeightRole, WeightSpec
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.integers import common_group, lost_integers
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from support import checkpoints
from support.quantized import LAYOUTS, in_mxfp4, quantize
from support.ranks import RanksStepper
from support.stepping import all_logits, difference, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 5, [41, 3]]
# Heads, and columns of hidden layers, are whole groups of every layout.
SIZES = {"head_dim": 32, "intermediate_size": 128}
OWN = PackedWeights(body="own", head="own")


def _numbers(weight: Weight) -> Tensor:
    """What it is multiplied by."""
    if isinstance(weight, Tensor):
        return weight
    assert isinstance(weight, NativeLinear) and not isinstance(weight, PackedLinear)
    outputs, inputs = weight.shape
    found, first = torch.empty(outputs, inputs), 0
    for handle, (_, count) in zip(weight.handles, weight.form.pieces(outputs), strict=True):
        handle.look_up(torch.arange(count), found[first : first + count])
        first += count
    return found


def _part_of(whole: WeightSpec, numbers: Tensor, part: WeightSpec) -> Tensor:
    """What one process has of what `part` says."""
    first, begins = 0, {}
    for each in whole.parts:
        begins[each.tensor, each.cut] = first
        first += each.shape[0]
    rows = []
    for each in part.parts:
        begin = begins[each.tensor, each.cut] + (0 if each.share is None else each.share.first)
        rows.append(numbers[begin : begin + each.shape[0]])
    over = part.over
    found = torch.cat(rows)
    return found if over is None else found[:, over.first : over.first + over.count]


def _check_parts(path: Path, packing: PackedWeights, size: int = 2, *, integers: bool = True) -> None:
    """All ranks have parts of the weights that one process has; where they are `integers`, that is what they stay."""
    checkpoint = open_checkpoint(path)
    whole = model_of(checkpoint)
    unit = common_group(checkpoint, whole)
    every = load_weights(checkpoint, whole, torch.float32, packing=packing)
    numbers = {spec.name: (spec, _numbers(every[spec.name])) for spec in whole.weights}
    for rank in range(size):
        part = whole.of_rank(TensorRank(rank, size, unit))
        found = load_weights(checkpoint, part, torch.float32, packing=packing)
        for spec in part.weights:
            mine = found[spec.name]
            assert torch.equal(_numbers(mine), _part_of(*numbers[spec.name], spec)), spec.name
            if integers and spec.role == "linear":
                one = every[spec.name]
                assert isinstance(mine, NativeLinear) and isinstance(one, NativeLinear)
                forms = [{str(form) for form, _ in each.form.pieces(each.shape[0])} for each in (mine, one)]
                assert forms[0] == forms[1], spec.name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_of_every_layout(tmp_path: Path, layout: str) -> None:
    path = quantize(checkpoints.make("llama", tmp_path / "plain"), *LAYOUTS[layout], tmp_path / "quantized")
    _check_parts(path, PackedWeights(), integers=False)
    expected = all_logits(make_stepper(path), PROMPTS, None)
    found = all_logits(RanksStepper(path, 2), PROMPTS, None)
    assert difference(found, expected) <= 1e-4


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "layout", ["gptq 2", "gptq 4", "gptq 3, v2", "awq", "packed 4", "packed 2, symmetric", "packed 8", "int8 rows"]
)
def test_integers_stay_what_they_are(tmp_path: Path, layout: str, size: int) -> None:
    """With three ranks, two have a head of keys and values each, which several query heads read, or a part of these."""
    made = checkpoints.make("llama", tmp_path / "plain", **SIZES)
    _check_parts(quantize(made, *LAYOUTS[layout], tmp_path / "quantized"), OWN, size)


def test_columns_in_another_order_become_numbers(tmp_path: Path) -> None:
    """Those of a rank are in groups of any size then; rows keep their order."""
    made = checkpoints.make("llama", tmp_path / "plain", **SIZES)
    _check_parts(quantize(made, *LAYOUTS["gptq act-order"], tmp_path / "quantized"), OWN, integers=False)


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    made = checkpoints.make("gpt_oss", tmp_path / "plain", intermediate_size=64)
    path, _ = in_mxfp4(made, tmp_path)
    _check_parts(path, OWN, integers=False)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "glm", "gemma3", "deepseek_v2"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_what_is_rounded_at_start_are_the_integers_of_one_process(
    tmp_path: Path, quantization: str, family: str
) -> None:
    sizes = {"moe_intermediate_size": 64} if family in ("qwen3_moe", "deepseek_v2") else {}
    sizes |= {} if family == "deepseek_v2" else SIZES
    path = checkpoints.make(family, tmp_path / family, **sizes)
    _check_parts(path, PackedWeights(body=quantization, head=quantization))


def test_what_is_no_projection_is_not_rounded() -> None:
    """Of a table of biases by distance a rank has some columns, one for each of its heads."""
    over = Share(0, 2, 4)
    packing = PackedWeights(body="int8", head="int8")
    roles: tuple[WeightRole, ...] = ("linear", "head", "positions", "norm", "bias", "router")
    specs = (WeightSpec("w", (WeightPart("w", (32, 2), over=over),), role) for role in roles)
    assert [packing.rounds_whole(spec) for spec in specs] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    "layout, size, lost", [("gptq 4", 2, False), ("gptq act-order", 2, True), ("packed 8", 3, False)]
)
def test_integers_that_become_numbers_are_counted(tmp_path: Path, layout: str, size: int, lost: bool) -> None:
    made = checkpoints.make("llama", tmp_path / "plain", **SIZES)
    checkpoint = open_checkpoint(quantize(made, *LAYOUTS[layout], tmp_path / "quantized"))
    whole = model_of(checkpoint)
    part = whole.of_rank(TensorRank(0, size, common_group(checkpoint, whole)))
    expected = sum(spec.size for spec in part.weights if spec.over is not None) if lost else 0
    assert lost_integers(checkpoint, whole, part) == expected
