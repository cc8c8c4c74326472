"""Experts in one tensor are the same as a tensor for each."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.kernels.cpu.form import NativeForm
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeLinear
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.integers import kept_integers
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from support import checkpoints
from support.plain import plain
from support.quantized import LAYOUTS, in_mxfp4, quantize
from support.stepping import all_logits, make_stepper

OWN = PackedWeights("own", "own")
PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 6, [41, 3]]


def merged(folder: Path, out: Path) -> Path:
    """The checkpoint with all experts of a layer in one tensor."""
    tensors = load_file(folder / "model.safetensors")
    experts = sorted({name.rsplit(".experts.", 1)[0] for name in tensors if ".experts." in name})
    for layer in experts:
        count = 1 + max(
            int(name.split(".experts.")[1].split(".")[0]) for name in tensors if f"{layer}.experts." in name
        )

        def each(part: str, layer: str = layer, count: int = count) -> torch.Tensor:
            return torch.stack([tensors.pop(f"{layer}.experts.{n}.{part}.weight") for n in range(count)])

        gate, up, down = ("w1", "w3", "w2") if "sparse" in layer else ("gate_proj", "up_proj", "down_proj")
        tensors[f"{layer}.experts.gate_up_proj"] = torch.cat((each(gate), each(up)), dim=1)
        tensors[f"{layer}.experts.down_proj"] = each(down)
    out.mkdir()
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, out / "model.safetensors")
    return out


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))


def test_experts_as_matrices_of_inputs_and_outputs(original: Path, tmp_path: Path) -> None:
    found = merged(original, tmp_path / "across")
    tensors = load_file(found / "model.safetensors")
    for name in (each for each in tensors if ".experts." in each):
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, found / "model.safetensors")
    one, other = (all_logits(make_stepper(path), PROMPTS, None) for path in (original, found))
    assert all(torch.equal(mine, right) for mine, right in zip(one, other, strict=True))


def test_experts_in_one_tensor(original: Path, tmp_path: Path) -> None:
    found = merged(original, tmp_path / "merged")
    assert len(open_checkpoint(found).tensors) == len(open_checkpoint(original).tensors)
    one, other = (all_logits(make_stepper(path), PROMPTS, None) for path in (original, found))
    assert all(torch.equal(mine, right) for mine, right in zip(one, other, strict=True))


def test_an_expert_that_is_missing_is_named(original: Path, tmp_path: Path) -> None:
    tensors = load_file(original / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.5.up_proj.weight"]
    (tmp_path / "config.json").write_bytes((original / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelFileError, match=r"lacks tensor model\.layers\.1\.mlp\.experts\.5\.up_proj\.weight"):
        checkpoint.locate(model_of(checkpoint))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_are_rounded_as_projections_are(original: Path, quantization: str) -> None:
    exact = all_logits(make_stepper(original), PROMPTS, None)
    rounded = all_logits(make_stepper(original, packing=PackedWeights(quantization)), PROMPTS, None)
    off = torch.stack([(mine - right).abs().mean() for mine, right in zip(rounded, exact, strict=True)]).max()
    assert 0 < off < (0.1 if quantization == "int8" else 1.0)


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize(
    ("layout", "form"),
    [
        ("int8 rows", "int8"),
        ("packed 4", "int4_bfloat16 in groups of 16"),
        ("gptq 4", "int4_float16 in groups of 16 with zero points"),
        # An order of inputs is a matrix's own, and experts are one for the kernels.
        ("gptq act-order", "float32"),
        ("fp8 blocks", "float32"),
    ],
)
def test_experts_that_are_integers_stay_so(tmp_path: Path, layout: str, form: str) -> None:
    numbers = checkpoints.make("qwen3_moe", tmp_path / "plain")
    folder = quantize(numbers, *LAYOUTS[layout], tmp_path / "quantized")
    checkpoint, own = open_checkpoint(folder), PackedWeights("own", "own")
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=own)
    packed = {name: weight for name, weight in weights.items() if isinstance(weight, NativeLinear)}
    assert {str(weight.form) for name, weight in packed.items() if ".experts." in name} == {form}
    bodies = [packed[spec.name] for spec in declaration.weights if spec.role == "linear"]
    kept = sum(weight.memory.numel() for weight in bodies if weight.form != NativeForm("float32"))
    assert kept_integers(checkpoint, declaration).body_bytes == kept
    expected = torch.cat(list(all_logits(make_stepper(numbers), PROMPTS, None)))
    found = torch.cat(list(all_logits(make_stepper(folder, packing=own), PROMPTS, None)))
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_a_router_of_another_width_is_named(original: Path, tmp_path: Path) -> None:
    tensors = load_file(original / "model.safetensors")
    name = "model.layers.1.mlp.gate.weight"
    tensors[name] = tensors[name][:7].contiguous()
    (tmp_path / "config.json").write_bytes((original / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(
        ModelFileError, match=r"gate\.weight has shape \[7, 64\], but by config.json it must be \[8, 64\]"
    ):
        checkpoint.locate(model_of(checkpoint))


def test_a_step_of_which_no_logits_are_wanted(original: Path) -> None:
    """Behind the last layer's attention there are no rows then."""
    whole = all_logits(make_stepper(original), PROMPTS[:1], None)[0]
    stepper = make_stepper(original)
    stepper.step({0: PROMPTS[0][:-1]}, wanted="none")
    assert torch.equal(stepper.step({0: PROMPTS[0][-1:]})[0], whole[-1:])


@pytest.mark.parametrize("family", ["mixtral", "minimax_m2"])
def test_experts_in_one_tensor_of_families_with_names_of_their_own(family: str, tmp_path: Path) -> None:
    path = checkpoints.make(family, tmp_path / family)
    found = merged(path, tmp_path / "merged")
    one, other = (all_logits(make_stepper(each), PROMPTS, None) for each in (path, found))
    assert all(torch.equal(mine, right) for mine, right in zip(one, other, strict=True))


def test_what_chooses_stays_in_float32(original: Path) -> None:
    checkpoint = open_checkpoint(original)
    weights = load_weights(checkpoint, model_of(checkpoint), torch.bfloat16, packing=plain)
    kinds = {name: weight.dtype for name, weight in weights.items() if isinstance(weight, torch.Tensor)}
    assert {kind for name, kind in kinds.items() if name.endswith("mlp.gate.weight")} == {torch.float32}
    assert {kind for name, kind in kinds.items() if "experts" in name} == {torch.bfloat16}


def test_experts_of_odd_widths_are_computed_by_torch_and_not_rounded(tmp_path: Path) -> None:
    path = checkpoints.make("qwen3_moe", tmp_path, moe_intermediate_size=40)
    model = checkpoints.load_reference(path)
    found = all_logits(make_stepper(path), PROMPTS, None)
    expected = [checkpoints.reference_logits(model, prompt) for prompt in PROMPTS]
    assert all((mine - right).abs().max() < 1e-4 for mine, right in zip(found, expected, strict=True))
    with pytest.raises(UnsupportedModel, match="multiples of 32"):
        make_stepper(path, packing=PackedWeights("int8"))


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    out = tmp_path_factory.mktemp("mxfp4")
    return in_mxfp4(checkpoints.make("gpt_oss", out / "gpt_oss"), out)


def test_blocks_are_the_numbers_that_transformers_makes_of_them(mxfp4: tuple[Path, Path]) -> None:
    blocks, numbers = (all_logits(make_stepper(path, packing=plain), PROMPTS, None) for path in mxfp4)
    assert all(torch.equal(mine, right) for mine, right in zip(blocks, numbers, strict=True))


@pytest.mark.skipif(OBSTACLE is not None, reason="needs the native kernels")
def test_kernels_take_blocks_as_they_are(mxfp4: tuple[Path, Path]) -> None:
    checkpoint = open_checkpoint(mxfp4[0])
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=OWN)
    forms = {name: weight.form for name, weight in weights.items() if ".experts." in name and "bias" not in name}
    assert len(forms) == 6 and set(forms.values()) == {NativeForm("mxfp4")}
    assert kept_integers(checkpoint, declaration).body == 3 * 8 * 3 * 64 * 32
    numbers = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    for name in forms:
        rows, inputs = numbers[name].shape
        found = torch.empty(rows, inputs)
        weights[name].handle.look_up(torch.arange(rows), found)
        assert torch.equal(found, numbers[name])


@pytest.mark.parametrize(
    ("end", "change", "says"),
    [
        ("gate_up_proj_scales", None, "gate_up_proj.weight is quantized, but the checkpoint lacks"),
        ("gate_up_proj_scales", lambda each: each[:, :, :1].contiguous(), "do not belong to one weight"),
        ("down_proj_blocks", lambda each: each[..., :8].contiguous(), "do not belong to one weight"),
        ("down_proj_blocks", lambda each: each.to(torch.int32), "is stored as I32; it must be U8"),
    ],
)
def test_blocks_that_do_not_fit_are_named(
    mxfp4: tuple[Path, Path], tmp_path: Path, end: str, change: Callable[[torch.Tensor], torch.Tensor] | None, says: str
) -> None:
    tensors = load_file(mxfp4[0] / "model.safetensors")
    for name in [each for each in tensors if each.endswith(end)]:
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name])
    (tmp_path / "config.json").write_bytes((mxfp4[0] / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=says):
        open_checkpoint(tmp_path)
