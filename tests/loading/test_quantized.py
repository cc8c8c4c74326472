"""A quantized checkpoint is the plain one of the numbers that it stands for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.weights import load_weights
from penstock.models.registry import declare
from support import checkpoints
from support.plain import plain
from support.quantized import LAYOUTS, Layout, gptq, mlx, quantize
from support.stepping import all_logits, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 12, [41, 3]]


def made(tmp_path: Path, layout: str, family: str = "llama") -> tuple[Path, Path]:
    """A plain checkpoint and the quantized one of the same numbers."""
    plain = checkpoints.make(family, tmp_path / "plain")
    return plain, quantize(plain, *LAYOUTS[layout], tmp_path / "quantized")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_logits(tmp_path: Path, layout: str) -> None:
    plain, folder = made(tmp_path, layout)
    expected = all_logits(make_stepper(plain), PROMPTS, None)
    found = all_logits(make_stepper(folder), PROMPTS, None)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_layers_of_several_widths(tmp_path: Path) -> None:
    """As checkpoints of mixed precision declare: each layer is what its tensors say."""
    by_module: list[Layout] = [gptq(2), gptq(4, act_order=True), gptq(8), gptq(3)]

    def mixed(module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return by_module[len(module) % len(by_module)](module, weight)

    original = checkpoints.make("llama", tmp_path / "plain")
    folder = quantize(original, mixed, {"quant_method": "gptq", "bits": 4, "dynamic": {}}, tmp_path / "quantized")
    expected = all_logits(make_stepper(original), PROMPTS, None)
    found = all_logits(make_stepper(folder), PROMPTS, None)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("family", (*checkpoints.FAMILIES, "qwen3_moe", "glm", "phi3"))
def test_every_family_has_the_same_weights(tmp_path: Path, family: str) -> None:
    original, folder = (open_checkpoint(path) for path in made(tmp_path, "gptq act-order", family))
    declaration = declare(folder.config)
    assert declaration == declare(original.config)

    expected = load_weights(original, declaration, torch.float32, packing=plain)
    for name, weight in load_weights(folder, declaration, torch.float32, packing=plain).items():
        assert torch.equal(weight, expected[name]), name


def test_a_zero_of_nothing_in_the_first_version_of_gptq(tmp_path: Path) -> None:
    # Weights of one sign have a zero at the end of what four bits hold, which the format's first version borrows for.
    plain = checkpoints.make("llama", tmp_path / "plain")
    tensors = load_file(plain / "model.safetensors")
    tensors = {name: tensor.abs() if name.endswith("_proj.weight") else tensor for name, tensor in tensors.items()}
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    folder = quantize(plain, *LAYOUTS["gptq 4"], tmp_path / "quantized")
    assert torch.equal(
        all_logits(make_stepper(folder), PROMPTS, None)[0], all_logits(make_stepper(plain), PROMPTS, None)[0]
    )


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Other tensors for those that the names, with _ for a dot, end with; None takes them away."""
    file = folder / "model.safetensors"
    kept = load_file(file)
    for suffix, tensor in tensors.items():
        name = next(each for each in sorted(kept) if each.endswith(f".{suffix}"))
        if tensor is None:
            del kept[name]
        else:
            kept[name] = tensor
    save_file(kept, file, metadata={"format": "pt"})


WRONG: tuple[tuple[str, dict[str, torch.Tensor | None], str], ...] = (
    ("gptq 4", {"scales": None}, "lacks .*scales"),
    ("gptq 4", {"qzeros": None}, "lacks .*qzeros"),
    ("gptq 4", {"qzeros": torch.zeros(4, 5, dtype=torch.int32)}, "do not belong"),
    ("gptq 4", {"scales": torch.zeros(3, 64, dtype=torch.float16)}, "do not belong"),
    ("gptq 4", {"scales": torch.zeros(4, 64, dtype=torch.int32)}, "stored as I32"),
    ("gptq 4", {"g_idx": torch.zeros(7, dtype=torch.int32)}, "do not belong"),
    (
        "gptq without order",
        {"qzeros": torch.zeros(5, 8, dtype=torch.int32), "scales": torch.ones(5, 64).half()},
        "equal",
    ),
    ("awq", {"qweight": torch.zeros(64, 9, dtype=torch.int32)}, "do not belong"),
    ("awq", {"qweight": torch.zeros(64, dtype=torch.int32)}, "must be a matrix"),
    ("packed 4", {"weight_shape": torch.tensor([1 << 40, -3])}, "cannot be"),
    ("packed 4", {"weight_shape": torch.tensor([64, 64, 64])}, "do not belong"),
    ("packed 4", {"weight_shape": torch.zeros(1 << 18, dtype=torch.int64)}, "do not belong"),
    ("packed 3", {"weight_zero_point": torch.zeros(1, 1, dtype=torch.int32)}, "do not belong"),
    ("fp8 blocks", {"weight_scale_inv": torch.ones(9, 9)}, "do not belong"),
    ("fp8 whole", {"weight_scale": None}, "lacks .*weight_scale"),
    ("nf4", {"quant_state.bitsandbytes__nf4": torch.tensor([91], dtype=torch.uint8)}, "does not describe"),
    ("nf4", {"quant_state.bitsandbytes__nf4": None}, "lacks .*quant_state"),
    ("nf4", {"absmax": torch.ones(3)}, "do not belong"),
    ("LLM.int8", {"SCB": torch.ones(3)}, "do not belong"),
    ("LLM.int8", {"weight_format": torch.tensor(True)}, "stored as BOOL"),
    ("gptq act-order", {"g_idx": None}, "lacks .*g_idx"),
    ("mlx 4", {"scales": None}, "lacks .*scales"),
    ("mlx 4", {"biases": None}, "lacks .*biases"),
    ("mlx 4", {"biases": torch.zeros(3, 2)}, "do not belong"),
    ("mlx 4", {"scales": torch.zeros(64, 2, dtype=torch.int32)}, "stored as I32"),
    ("mlx 4", {"scales": torch.zeros(64, 4), "biases": torch.zeros(64, 4)}, "4 bits in groups of 32"),
)


@pytest.mark.parametrize(("layout", "tensors", "says"), WRONG)
def test_parts_that_do_not_fit(tmp_path: Path, layout: str, tensors: dict[str, torch.Tensor | None], says: str) -> None:
    _, folder = made(tmp_path, layout)
    change(folder, **tensors)
    with pytest.raises(ModelFileError, match=says):
        open_checkpoint(folder)


def test_an_order_beyond_the_groups(tmp_path: Path) -> None:
    _, folder = made(tmp_path, "gptq act-order")
    for wrong in (-1, 99):
        order = torch.zeros(64, dtype=torch.int32)
        order[5] = wrong
        change(folder, **{"k_proj.g_idx": order})
        with pytest.raises(ModelFileError, match=r"k_proj\.g_idx names a group beyond the 4"):
            make_stepper(folder)


def test_an_order_for_gpus_is_refused(tmp_path: Path) -> None:
    _, folder = made(tmp_path, "LLM.int8")
    change(folder, weight_format=torch.tensor(1, dtype=torch.uint8))
    with pytest.raises(ModelFileError, match="order of rows"):
        make_stepper(folder)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"quant_method": "exl2"}, "exl2's format"),
        ({"quant_method": "aqlm"}, "'aqlm'; implemented: gptq, awq"),
        ({}, "None; implemented"),
        ({"bits": 4, "group_size": 64, "mode": "mxfp4"}, "MLX in the mode 'mxfp4'; implemented: affine"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
        ({"quant_method": "awq", "version": "GEMV"}, "GEMV"),
        ({"quant_method": "awq", "version": 1}, "version 1"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "marlin"),
    ],
)
def test_methods_that_are_not_read(tmp_path: Path, said: dict[str, Any], says: str) -> None:
    _, folder = made(tmp_path, "gptq 4")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    with pytest.raises(UnsupportedModel, match=says):
        open_checkpoint(folder)


def test_a_bias_of_nothing_that_the_model_does_not_have(tmp_path: Path) -> None:
    _, folder = made(tmp_path, "gptq 4")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    outputs = tensors[f"{name}.scales"].shape[1]
    save_file({**tensors, f"{name}.bias": torch.zeros(outputs)}, folder / "model.safetensors")
    make_stepper(folder)
    save_file({**tensors, f"{name}.bias": torch.ones(outputs)}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"lacks tensor model\.layers\.0\.self_attn\.k_proj\.bias"):
        make_stepper(folder)


@pytest.mark.parametrize(
    ("layout", "weights", "says"),
    [
        ("packed 4", {"num_bits": 4, "symmetric": False}, "lacks .*weight_zero_point"),
        ("packed 4", {"num_bits": 4, "actorder": "group"}, "lacks .*weight_g_idx"),
        ("packed 4", {"num_bits": 3}, "cannot be"),
        ("int8 rows", {"num_bits": 8, "symmetric": False}, "lacks .*weight_zero_point"),
    ],
)
def test_parts_that_the_configuration_speaks_of(
    tmp_path: Path, layout: str, weights: dict[str, Any], says: str
) -> None:
    _, folder = made(tmp_path, layout)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=says):
        open_checkpoint(folder)


def test_a_weight_that_is_there_twice(tmp_path: Path) -> None:
    _, folder = made(tmp_path, "gptq 4")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.q_proj.weight": torch.ones(4)}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match="both as it is and quantized"):
        open_checkpoint(folder)


@pytest.mark.parametrize(("key", "value"), [("bits", 9), ("bits", "4"), ("group_size", None), ("group_size", 0)])
def test_sizes_that_mlx_cannot_have_are_named(tmp_path: Path, key: str, value: object) -> None:
    _, folder = made(tmp_path, "mlx 4")
    config = json.loads((folder / "config.json").read_text())
    config["quantization"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=f"quantization has {key} = "):
        open_checkpoint(folder)


def test_a_model_as_mlx_writes_it(tmp_path: Path) -> None:
    """Embedding and projections are integers, some of other widths, one is as it was, and no type is said."""
    original = checkpoints.make("qwen2", tmp_path / "plain", hidden_size=64, dtype=torch.bfloat16)
    config = json.loads((original / "config.json").read_text())
    folder = tmp_path / "mlx"
    folder.mkdir()
    numbers = load_file(original / "model.safetensors")
    tensors: dict[str, torch.Tensor] = {}
    said: dict[str, Any] = {"group_size": 32, "bits": 4}
    for name, tensor in list(numbers.items()):
        module = name.removesuffix(".weight")
        if tensor.dim() == 1 or name.endswith("layers.2.mlp.up_proj.weight"):
            tensors[name] = tensor
            if tensor.dim() > 1:
                said[module] = False
            continue
        own = name.endswith("down_proj.weight")
        stored, found = mlx(8 if own else 4, group=16 if own else 32)(module, tensor)
        if own:
            said[module] = {"group_size": 16, "bits": 8}
        tensors |= stored
        numbers[name] = found
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    plain_config = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    both = {"quantization": said, "quantization_config": said}
    (folder / "config.json").write_text(json.dumps(plain_config | both))
    save_file({name: tensor.float() for name, tensor in numbers.items()}, original / "model.safetensors")
    (original / "config.json").write_text(json.dumps(plain_config | {"torch_dtype": "float32"}))
    declaration = model_of(open_checkpoint(folder))
    assert declaration.dtype == "bfloat16" and declaration.decoder.head is None
    (found,) = all_logits(make_stepper(folder, dtype=torch.float32), [PROMPTS[0]], None)
    (same,) = all_logits(make_stepper(original), [PROMPTS[0]], None)
    assert torch.equal(found, same)
    expected = checkpoints.reference_logits(checkpoints.load_reference(original), PROMPTS[0])
    assert (found - expected).abs().max() <= 1e-4


OLDER = {
    "gptq 4": ("quantize_config.json", {"bits": 4, "group_size": 16, "desc_act": False, "sym": False}),
    "gptq 3, v2": ("quantize_config.json", {"bits": 3, "group_size": 16, "checkpoint_format": "gptq_v2"}),
    "awq": ("quant_config.json", {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"}),
}


@pytest.mark.parametrize("layout", OLDER)
def test_what_older_programs_wrote_beside_the_weights(tmp_path: Path, layout: str) -> None:
    plain, folder = made(tmp_path, layout)
    name, content = OLDER[layout]
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=r"quantized by GPTQ or AWQ.*quantize_config\.json or quant_config\.json"):
        open_checkpoint(folder)
    (folder / name).write_text(json.dumps(content))
    assert torch.equal(*(all_logits(make_stepper(path), PROMPTS[1:], None)[0] for path in (plain, folder)))
    (reason,) = open_checkpoint(folder).found
    assert (reason.setting, reason.value) == ("quantization config", name)
    (folder / name).write_text(json.dumps({**content, "version": "GEMV", "checkpoint_format": "marlin"}))
    with pytest.raises(UnsupportedModel, match="GEMV|marlin"):
        open_checkpoint(folder)
    (plain / name).write_text(json.dumps(content))
    assert open_checkpoint(plain).found == (), "left beside weights that are not quantized, it says nothing"


@pytest.mark.parametrize(("layout", "method"), [("packed 4", "compressed-tensors"), ("nf4", "bitsandbytes")])
def test_quantized_weights_of_which_nothing_says_how(tmp_path: Path, layout: str, method: str) -> None:
    _, folder = made(tmp_path, layout)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=f"quantized by {method}.*no quantization_config"):
        open_checkpoint(folder)
