"""Mixtures of experts that are written with smaller weights, against torch with the numbers that these stand for."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.compression.checks import check, left_out
from penstock.compression.quantize import NO_TEXTS, Done, Measured, Texts, quantize_model
from penstock.compression.reach import Reached
from penstock.configuration.options import EngineOptions
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from penstock.quantization.recipe import Recipe
from penstock.quantization.rtn import Grid
from support import checkpoints
from support.stepping import all_logits, make_stepper
from support.written import all_tensors, numbers_of, with_stacked_experts, write_plain

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 4, [41, 3]]
FIRST = [[(7 * text + 3 * place) % 320 for place in range(40)] for text in range(6)]
TEXTS = Texts(FIRST, [[(5 * text + 11 * place) % 320 for place in range(40)] for text in range(18)])
_HEADS = {"num_key_value_heads": 2, "head_dim": 32}
_LATENT = {"kv_lora_rank": 32, "qk_rope_head_dim": 32, "head_dim": 32, "q_lora_rank": 64}
SIZES: dict[str, dict[str, Any]] = {
    "qwen3_moe": _HEADS,
    "qwen2_moe": {**_HEADS, "shared_expert_intermediate_size": 64},
    "mixtral": _HEADS,
    "olmoe": {},
    "glm4_moe": _HEADS,
    "minimax_m2": _HEADS,
    "deepseek_v3": _LATENT,
    "granitemoe": {},
    "gpt_oss": _HEADS,
    "gemma4_moe": {"head_dim": 32},
}
# Those whose files have all experts of a layer in one tensor.
STACKED = ("granitemoe", "gpt_oss")
RECIPES = {
    "rtn": Recipe("rtn", Grid(4, 32), "compressed-tensors"),
    "gptq": Recipe("gptq", Grid(4, 32), "compressed-tensors"),
    "awq": Recipe("awq", Grid(4, 32), "compressed-tensors"),
    "smoothquant": Recipe("smoothquant", Grid(8, 0), "compressed-tensors"),
    "fp8": Recipe("fp8", Grid(8, 0), "compressed-tensors"),
}


def write(model: Path, recipe: Recipe, texts: Texts, out: Path) -> list[Measured | Reached | Done]:
    prepared = prepare(EngineOptions.of(model=str(model), quantization="none", speculative="off"), api_beside=False)
    check(prepared.checkpoint, prepared.declaration, recipe)
    return list(quantize_model(prepared.checkpoint, prepared.declaration, recipe, texts, out, this_processor()))


def logits_of(folder: Path, packing: PackedWeights | None = None) -> torch.Tensor:
    stepper = make_stepper(folder) if packing is None else make_stepper(folder, packing=packing)
    return torch.cat(list(all_logits(stepper, PROMPTS, None)))


CASES = [(family, "gptq") for family in SIZES]
CASES += [(family, method) for family in ("qwen2_moe", "gemma4_moe") for method in RECIPES if method != "gptq"]


@pytest.mark.parametrize(("family", "method"), CASES)
def test_logits_are_those_of_the_rounded_numbers(tmp_path: Path, family: str, method: str) -> None:
    model = checkpoints.make(family, tmp_path / "model", **SIZES[family])
    recipe = RECIPES[method]
    events = write(model, recipe, TEXTS if recipe.calibrated else NO_TEXTS, tmp_path / "out")
    limit = 0.03 if recipe.grid.bits == 4 else 2e-3
    errors = [error for event in events if isinstance(event, Done) for error in event.error.values()]
    assert all(0 < error < limit for error in errors)
    numbers = numbers_of(tmp_path / "out", 4)
    plain = write_plain(numbers, model, tmp_path / "plain")
    found = logits_of(tmp_path / "out")
    assert torch.equal(found, logits_of(plain))
    if family not in STACKED:
        if family == "gemma4_moe":
            plain = write_plain(with_stacked_experts(numbers), model, tmp_path / "stacked")
        reference = checkpoints.load_reference(plain)
        expected = torch.cat([checkpoints.reference_logits(reference, prompt) for prompt in PROMPTS])
        assert (found - expected).abs().max() < 1e-4
    original = load_file(model / "model.safetensors")
    ends = (".gate.weight", "router.weight", "router.layer.weight", "router.proj.weight")
    routers = [name for name in original if name.endswith(ends)]
    assert routers
    ratios = torch.cat([(numbers[name] / original[name]).flatten() for name in routers])
    # Methods that divide norms multiply by powers of two.
    assert torch.equal(torch.exp2(ratios.log2().round()), ratios)
    assert method in ("awq", "smoothquant") or bool((ratios == 1).all())


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize(
    "recipe",
    [
        RECIPES["smoothquant"],
        RECIPES["gptq"],
        Recipe("gptq", Grid(4, 32, symmetric=False), "gptq"),
        Recipe("awq", Grid(4, 32, symmetric=False), "awq"),
        Recipe("gptq", Grid(8, 32), "compressed-tensors"),
    ],
    ids=["int8", "compressed", "gptq", "awq", "8 bits"],
)
def test_kernels_take_the_integers_of_experts(tmp_path: Path, recipe: Recipe) -> None:
    """Activations are rounded to 8 bits then, which is all that differs."""
    model = checkpoints.make("olmoe", tmp_path / "model", confident=True)
    write(model, recipe, TEXTS, tmp_path / "out")
    checkpoint, own = open_checkpoint(tmp_path / "out"), PackedWeights("own", "own")
    weights = load_weights(checkpoint, model_of(checkpoint), torch.float32, packing=own)
    packed = [weight for name, weight in weights.items() if ".experts." in name]
    assert packed and all(isinstance(each, NativeLinear) and str(each.form) != "float32" for each in packed)
    expected, found = logits_of(tmp_path / "out"), logits_of(tmp_path / "out", own)
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()


def without_two(path: Path, spread: float = 1.0) -> Path:
    """A model with two experts that no row is for; its preferences among the others are multiplied by `spread`."""
    model = checkpoints.make("minimax_m2", path, **_HEADS)
    tensors = load_file(model / "model.safetensors")
    for layer, never in ((0, 3), (1, None), (2, 5)):
        correction = tensors[f"model.layers.{layer}.block_sparse_moe.e_score_correction_bias"].mul_(spread)
        if never is not None:
            correction[never] = -10
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture(scope="module")
def unreached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_two(tmp_path_factory.mktemp("unreached"))


@pytest.mark.parametrize(("method", "texts"), [("gptq", [6, 12]), ("awq", [6])])
def test_texts_end_where_further_ones_reach_nothing(tmp_path: Path, method: str, texts: list[int]) -> None:
    """Experts that a router never chooses do not take all texts there are, and are named."""
    model, recipe = without_two(tmp_path / "model", spread=0.0), RECIPES[method]
    events = write(model, recipe, TEXTS, tmp_path / "out")
    reached = [event for event in events if isinstance(event, Reached)]
    assert [each.texts for each in reached] == texts < [len(TEXTS.all)]
    assert [each.gained > 0 for each in reached] == [count < texts[-1] for count in texts]
    assert (reached[-1].few, reached[-1].least, reached[-1].further) == (2, 0, False)
    rare = [{each.experts for each in event.rare} for event in events if isinstance(event, Done)]
    assert rare == [{(3,)}, set(), {(5,)}]
    # It is what those texts alone give.
    write(model, recipe, Texts(TEXTS.all[: texts[-1]]), tmp_path / "alone")
    for file in (tmp_path / "alone").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_experts_without_rows_are_rounded_to_the_nearest_and_told(unreached: Path, tmp_path: Path, method: str) -> None:
    recipe = RECIPES[method]
    events = write(unreached, recipe, TEXTS, tmp_path / "out")
    reached = [event for event in events if isinstance(event, Reached)]
    assert [each.texts for each in reached] == [6, 12, 18, 24] and {each.experts for each in reached} == {24}
    assert all(each.least == 0 and each.few >= 2 for each in reached) and reached[-1].few < reached[0].few
    assert [type(event) for event in events] == [Reached] * 4 + [Done] * 3
    rare = {event.block: event.rare for event in events if isinstance(event, Done)}
    for block, expert in ((0, 3), (2, 5)):
        assert len(rare[block]) == 2 and all(expert in each.experts for each in rare[block])
    assert {each.projection.split(".")[-2]: each.needed for each in rare[0]} == (
        {"gate_up_proj": 64, "down_proj": 32} if method == "gptq" else {"gate_up_proj": 32, "down_proj": 16}
    )
    assert all(each.count == 8 and each.least == 0 for each in (*rare[0], *rare[2]))
    write(unreached, RECIPES["rtn"], NO_TEXTS, tmp_path / "nearest")
    found, nearest = all_tensors(tmp_path / "out"), all_tensors(tmp_path / "nearest")
    same = {name for name in found if name.endswith("_packed") and torch.equal(found[name], nearest[name])}
    # Where a norm is divided, gates and ups are not what they were.
    parts = {"down_proj": ("w2",), "gate_up_proj": ("w1", "w3") if method == "gptq" else ()}
    expected = {
        f"{each.projection.split('.experts.')[0]}.experts.{expert}.{part}.weight_packed"
        for block in rare.values()
        for each in block
        for expert in each.experts
        for part in parts[each.projection.split(".")[-2]]
    }
    assert expected and (same == expected if method == "gptq" else same >= expected)


def test_an_interrupted_run_goes_on_with_its_texts_and_rare_experts(unreached: Path, tmp_path: Path) -> None:
    recipe = RECIPES["gptq"]
    whole = write(unreached, recipe, TEXTS, tmp_path / "whole")
    prepared = prepare(EngineOptions.of(model=str(unreached), quantization="none", speculative="off"), api_beside=False)
    checkpoint, declaration, out = prepared.checkpoint, prepared.declaration, tmp_path / "parts"
    first = list(itertools.islice(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()), 6))
    assert first == whole[:6]
    rest = list(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()))
    assert [event.resumed for event in rest if isinstance(event, Done)] == [True, True, False] and len(rest) == 3
    rare = [[event.rare for event in events if isinstance(event, Done)] for events in (rest, whole)]
    assert rare[0] == rare[1]
    for file in (tmp_path / "whole").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_rows_of_experts_are_counted(tmp_path: Path) -> None:
    model = checkpoints.make("qwen3_moe", tmp_path / "model", **_HEADS)
    events = write(model, RECIPES["gptq"], Texts(FIRST), tmp_path / "out")
    (reached,) = (event for event in events if isinstance(event, Reached))
    reference = checkpoints.load_reference(model)
    rows = torch.zeros(3, 8, dtype=torch.int64)
    for text in FIRST:
        with torch.inference_mode():
            logits = reference(torch.tensor([text]), output_router_logits=True).router_logits
        for layer, each in enumerate(logits):
            rows[layer] += torch.bincount(each.topk(3).indices.flatten(), minlength=8)
    assert (reached.texts, reached.experts) == (6, 24)
    assert reached.few == int((rows < 64).sum()) and reached.least == int(rows.min())


def test_widths_are_those_of_all_experts_of_a_layer(tmp_path: Path) -> None:
    model = checkpoints.make("mixtral", tmp_path / "model", **_HEADS, num_hidden_layers=1)
    recipe = Recipe("mixed", Grid(4, 32), "compressed-tensors", average_bits=4.0)
    events = write(model, recipe, Texts(FIRST), tmp_path / "out")
    measured = {event.name.split(".")[-2]: event.sensitivity for event in events if isinstance(event, Measured)}
    assert measured.keys() == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert all(each.loss[2] > each.loss[8] > 0 for each in measured.values())
    (done,) = (event for event in events if isinstance(event, Done))
    widths = {name: int(said.split()[0]) for name, said in done.stored.items()}
    entries = open_checkpoint(tmp_path / "out").tensors
    for name, entry in entries.items():
        if ".experts." in name:
            whole = "down_proj" if ".w2." in name else "gate_up_proj"
            assert entry.bits == widths[f"model.layers.0.block_sparse_moe.experts.{whole}.weight"]


def test_a_layer_that_predicts_further_tokens_is_left_out(tmp_path: Path) -> None:
    model = checkpoints.make("glm4_moe", tmp_path / "model", **_HEADS, num_nextn_predict_layers=1)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = torch.ones(64, 128)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    prepared = prepare(EngineOptions.of(model=str(model), quantization="none", speculative="off"), api_beside=False)
    assert left_out(prepared.checkpoint, prepared.declaration) == ["model.layers.3.eh_proj.weight"]
    write(model, RECIPES["rtn"], NO_TEXTS, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 0
    assert not any(name.startswith("model.layers.3.") for name in all_tensors(tmp_path / "out"))
    make_stepper(tmp_path / "out")


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("compressed-tensors", lambda kept: {"ignore": ["lm_head", *kept]}),
        ("awq", lambda kept: {"modules_to_not_convert": kept}),
        ("gptq", lambda kept: {"dynamic": {f"-:^{name.replace('.', chr(92) + '.')}$": {} for name in kept}}),
    ],
)
def test_other_programs_are_told_what_is_not_rounded(
    tmp_path: Path, layout: str, said: Callable[[list[str]], dict[str, Any]]
) -> None:
    model = checkpoints.make("qwen2_moe", tmp_path / "model", **SIZES["qwen2_moe"])
    write(model, Recipe("rtn", Grid(4, 32), layout), NO_TEXTS, tmp_path / "out")
    kept = [f"model.layers.{layer}.mlp.{name}" for layer in (1, 3) for name in ("gate", "shared_expert_gate")]
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert said(kept).items() <= config.items()
    written = all_tensors(tmp_path / "out")
    plain = {name for name, tensor in written.items() if tensor.ndim == 2 and name.endswith(".weight")}
    assert plain - {"model.embed_tokens.weight", "lm_head.weight"} == {f"{name}.weight" for name in kept}
