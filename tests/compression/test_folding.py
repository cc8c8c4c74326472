"""What is multiplied in one place and divided in another leaves a model what it was."""

from pathlib import Path

import pytest
import torch

from penstock.assembly.prepare import prepare
from penstock.compression.folding import Fold, fold, folds
from penstock.compression.projections import Tensors
from penstock.configuration.options import EngineOptions
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import WeightSpec
from penstock.loading.quantized import Entry
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.awq import powers_of_two
from support import checkpoints
from support.stepping import all_logits, make_stepper
from support.written import write_plain

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 4, [41, 3]]


# One of each way in which blocks differ.
FAMILIES = (
    *checkpoints.FAMILIES,
    "phi3",
    "glm",
    "olmo2",
    "cohere2",
    "starcoder2",
    "gpt_neox",
    "mixtral",
    "qwen2_moe",
    "glm4_moe",
    "gpt_oss",
    "deepseek_v3",
    "gemma4",
    "gemma4_moe",
)


def opened(model: Path) -> tuple[ModelDeclaration, dict[str, Entry]]:
    prepared = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False)
    return prepared.declaration, prepared.checkpoint.locate(prepared.declaration)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stay_what_they_were(family: str, tmp_path: Path) -> None:
    model = checkpoints.make(family, tmp_path / "model")
    declaration, entries = opened(model)
    tensors = Tensors(declaration.weights, entries)
    written = {part.tensor for spec in declaration.weights for part in spec.parts}
    generator = torch.Generator().manual_seed(1)
    read = set[str]()
    for block in declaration.decoder.blocks:
        for place in folds(block):
            factors = place.shared(torch.rand(place.inputs, generator=generator) * 3 + 0.2)
            if place.kept:
                factors = powers_of_two(factors)
            used = fold(tensors, place, factors)
            torch.testing.assert_close(used, factors)
            read |= {name for unit in place.units for name in unit.tensors}
            read |= {spec.name for spec in place.kept}
    matrices = {name for spec in declaration.weights for name in shapes(spec) if spec.role in ("linear", "router")}
    assert len(read) >= 2 * len(declaration.decoder.blocks) and read <= matrices
    changed = {name: tensors.matrix(name) if name in matrices else tensors.kept(name) for name in written}
    assert not any(torch.equal(changed[name], tensors.stored(name)) for name in read)
    out = write_plain(changed, model, tmp_path / "out")
    expected, logits = (torch.cat(list(all_logits(make_stepper(path), PROMPTS, None))) for path in (model, out))
    torch.testing.assert_close(logits, expected, rtol=2e-3, atol=2e-3)


def shapes(spec: WeightSpec) -> set[str]:
    """Tensors of two dimensions."""
    return {part.tensor for part in spec.parts if len(part.stored) == 2}


def test_what_chooses_experts_keeps_all_its_digits(tmp_path: Path) -> None:
    model = checkpoints.make("qwen2_moe", tmp_path / "model", dtype=torch.bfloat16, decoder_sparse_step=1)
    declaration, entries = opened(model)
    block = declaration.decoder.blocks[0]
    place = next(each for each in folds(block) if each.kept)
    assert [spec.name.split(".")[-2] for spec in place.kept] == ["gate", "shared_expert_gate"]
    assert place.norm is block.before_mlp and len(place.units) == 9
    tensors = Tensors(block.weights, entries)
    before = {spec.name: tensors.kept(spec.name) for spec in place.kept}
    norm = tensors.kept(block.before_mlp.weight.name)
    factors = powers_of_two(torch.rand(place.inputs, generator=torch.Generator().manual_seed(2)) * 3 + 0.2)
    assert torch.equal(fold(tensors, place, factors), factors)
    for name, weight in before.items():
        found = tensors.kept(name)
        assert found.dtype is torch.bfloat16 and not torch.equal(found, weight)
        products = found.float() * tensors.kept(block.before_mlp.weight.name).float()
        assert torch.equal(products, weight.float() * norm.float())


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_rounded_norm_is_made_up_for(family: str, tmp_path: Path) -> None:
    model = checkpoints.make(family, tmp_path / "model", dtype=torch.bfloat16)
    declaration, entries = opened(model)
    block = declaration.decoder.blocks[0]
    place = next(each for each in folds(block) if each.norm is block.before_mlp)
    assert isinstance(place.norm, RmsNorm)
    offset = 1.0 if place.norm.unit_offset else 0.0
    name, matrix = place.norm.weight.name, next(iter(place.units[0].tensors))
    tensors = Tensors(block.weights, entries)
    norm = tensors.kept(name)
    norm[3] = -offset
    tensors.put(name, norm)
    products = (norm.float() + offset) * tensors.matrix(matrix)
    factors = torch.rand(place.inputs, generator=torch.Generator().manual_seed(2)) + 0.5
    used = fold(tensors, place, factors)
    assert tensors.kept(name).dtype is torch.bfloat16 and used[3] == 1
    # Within float32's own rounding: bfloat16's would be 2^-9.
    found = (tensors.kept(name).float() + offset) * tensors.matrix(matrix)
    torch.testing.assert_close(found, products, rtol=1e-6, atol=1e-7)


def test_heads_that_read_the_same_have_the_same_factors(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "model")
    declaration, _ = opened(model)
    place: Fold = next(each for each in folds(declaration.decoder.blocks[0]) if each.heads != (1, 1))
    sizes = place.shared(torch.arange(96.0)).view(2, 2, 24)
    assert torch.equal(sizes[:, 0], sizes[:, 1])
    torch.testing.assert_close(sizes[1, 0, 0], torch.tensor((48.0**2 + 72.0**2) / 2).sqrt())
