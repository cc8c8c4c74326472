"""Weights in memory: fused, converted, packed, and reported as they come."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.core.config import ModelConfig
from penstock.core.errors import ModelFileError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.torch.packing import PackedLinear, packing_obstacle
from penstock.loading import packing
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.weights import dummy_weights, load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from support import checkpoints
from support.plain import plain
from support.stepping import all_logits, make_stepper

needs_native = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("qwen2", tmp_path_factory.mktemp("model"))


@pytest.fixture
def declaration(path: Path) -> ModelDeclaration:
    return declare(open_checkpoint(path).config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_the_files_tensors(path: Path, declaration: ModelDeclaration, dtype: torch.dtype) -> None:
    tensors = load_file(path / "model.safetensors")
    weights = load_weights(open_checkpoint(path), declaration, dtype, packing=plain)
    assert set(weights) == {spec.name for spec in declaration.weights}
    for spec in declaration.weights:
        expected = torch.cat([tensors[part.tensor] for part in spec.parts]).to(dtype)
        assert torch.equal(weights[spec.name], expected)


@needs_native
def test_linear_weights_are_packed_and_only_they(path: Path, declaration: ModelDeclaration) -> None:
    weights = load_weights(open_checkpoint(path), declaration, torch.float32)
    for spec in declaration.weights:
        weight = weights[spec.name]
        assert isinstance(weight, NativeLinear) == (spec.role in ("linear", "head"))
        assert tuple(weight.shape) == spec.shape


@pytest.mark.skipif(packing_obstacle(torch.float32) is not None, reason="this torch packs nothing")
def test_without_native_kernels_torch_packs(path: Path, declaration: ModelDeclaration) -> None:
    plain = packing.packing_of(ModelConfig("/model", "/model", "float32"), declaration, native=False)
    weights = load_weights(open_checkpoint(path), declaration, torch.float32, packing=plain)
    packed = {spec.name for spec in declaration.weights if isinstance(weights[spec.name], PackedLinear)}
    assert packed == {spec.name for spec in declaration.weights if spec.role in ("linear", "head")}


@needs_native
@pytest.mark.parametrize("body, head", [("int8", "int8"), ("int4", "int4"), ("int4", "int8"), ("none", "none")])
def test_a_tied_matrix_is_packed_once(path: Path, declaration: ModelDeclaration, body: str, head: str) -> None:
    config = ModelConfig("/model", "/model", "float32", quantization=body, quantize_head=head)
    form = packing.packing_of(config, declaration, native=True)
    assert form.tied
    weights = load_weights(open_checkpoint(path), declaration, torch.float32, packing=form)
    assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]
    formats = {name: str(weight.form) for name, weight in weights.items() if isinstance(weight, NativeLinear)}
    assert formats.pop("lm_head.weight") == formats.pop("model.embed_tokens.weight")
    assert set(formats.values()) == {"float32" if body == "none" else body}
    assert str(weights["lm_head.weight"].form) == ("float32" if head == "none" else head)


@needs_native
def test_what_cannot_be_rounded_is_refused(path: Path, declaration: ModelDeclaration) -> None:
    spec = next(spec for spec in declaration.weights if spec.role == "linear")
    for broken in (float("nan"), float("inf")):
        with pytest.raises(ModelFileError, match="--quantization"):
            packing.PackedWeights("int4", "int4")(spec, torch.full(spec.shape, broken))


def test_progress_ends_at_the_total(path: Path, declaration: ModelDeclaration) -> None:
    seen: list[tuple[int, int]] = []
    load_weights(open_checkpoint(path), declaration, torch.float32, lambda done, total: seen.append((done, total)))
    assert len(seen) == len(declaration.weights)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {seen[-1][0]}


def test_files_are_not_changed_by_what_happens_to_weights(path: Path, declaration: ModelDeclaration) -> None:
    before = (path / "model.safetensors").read_bytes()
    for weight in load_weights(open_checkpoint(path), declaration, torch.float32, packing=plain).values():
        weight.fill_(3.0)
    assert (path / "model.safetensors").read_bytes() == before


def test_half_precision_checkpoints_are_converted(tmp_path: Path) -> None:
    checkpoints.make("llama", tmp_path, dtype=torch.float16)
    checkpoint = open_checkpoint(tmp_path)
    declaration = declare(checkpoint.config)
    assert declaration.dtype == "float16"
    weights = load_weights(checkpoint, declaration, torch.bfloat16, packing=plain)
    expected = load_file(tmp_path / "model.safetensors")["model.norm.weight"]
    assert torch.equal(weights["model.norm.weight"], expected.to(torch.bfloat16))


def test_dummy_weights(declaration: ModelDeclaration) -> None:
    weights = dummy_weights(declaration, torch.bfloat16, seed=3, packing=plain)
    again = dummy_weights(declaration, torch.bfloat16, seed=3, packing=plain)
    assert {spec.name: spec.shape for spec in declaration.weights} == {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    assert all(torch.equal(weights[name], again[name]) and weights[name].dtype is torch.bfloat16 for name in weights)
    assert torch.equal(weights["model.norm.weight"], torch.ones(64, dtype=torch.bfloat16))
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    deviation = weights["model.layers.0.mlp.gate_up_proj.weight"].float().std()
    assert 0.018 < deviation < 0.022
    other = dummy_weights(declaration, torch.bfloat16, seed=4, packing=plain)
    assert not torch.equal(weights["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_text_part_of_a_multimodal_checkpoint(tmp_path: Path, prefix: str) -> None:
    """Both spellings of the tensors' names give what the text-only checkpoint gives."""
    plain, wrapped = tmp_path / "plain", tmp_path / "wrapped"
    checkpoints.make("gemma3", plain)
    wrapped.mkdir()
    text = json.loads((plain / "config.json").read_text())
    text.pop("architectures")
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    (wrapped / "config.json").write_text(json.dumps({**config, "vision_config": {"hidden_size": 8}}))
    tensors = {
        prefix + name.removeprefix("model."): tensor for name, tensor in load_file(plain / "model.safetensors").items()
    }
    tensors["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(3)
    tensors["model.multi_modal_projector.mm_soft_emb_norm.weight"] = torch.ones(3)
    save_file(tensors, wrapped / "model.safetensors")
    prompt = [list(range(5, 60))]
    expected, found = (all_logits(make_stepper(path), prompt, None)[0] for path in (plain, wrapped))
    assert torch.equal(expected, found)


@needs_native
def test_tables_stay_the_files_pages_unless_they_are_rounded(tmp_path: Path) -> None:
    """Nothing multiplies by what tokens give layers, although it is kept as a tied head is where that is rounded."""
    declaration = declare(open_checkpoint(checkpoints.make("gemma4", tmp_path)).config)
    spec = next(spec for spec in declaration.weights if spec.role == "table")
    head = declaration.decoder.output.weight
    numbers = torch.randn(spec.shape, generator=torch.Generator().manual_seed(0))
    plainly = packing.PackedWeights(tied=True)
    assert plainly(spec, numbers) is numbers and isinstance(plainly(head, torch.zeros(head.shape)), NativeLinear)
    rounded = packing.PackedWeights("int4", "int8", tied=True)(spec, numbers)
    assert isinstance(rounded, NativeLinear) and rounded.form.format == "int8"
