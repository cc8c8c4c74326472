"""What is multiplied in one place and divided in another leaves a model what it was."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.compression.folding import Fold, fold, folds
from penstock.configuration.options import EngineOptions
from support import checkpoints
from support.stepping import all_logits, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 4, [41, 3]]


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_logits_stay_what_they_were(family: str, tmp_path: Path) -> None:
    model = checkpoints.make(family, tmp_path / "model")
    blocks = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False).declaration.decoder.blocks
    tensors = load_file(model / "model.safetensors")
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(1)
    for block in blocks:
        found = folds(block)
        assert len(found) == 4
        for place in found:
            factors = place.shared(torch.rand(place.projection.inputs, generator=generator) * 3 + 0.2)
            used = fold(tensors, place, factors)
            torch.testing.assert_close(used, factors)
    changed = [name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])]
    assert len(changed) >= 9 * len(blocks)
    out = shutil.copytree(model, tmp_path / "out")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    expected, logits = (torch.cat(list(all_logits(make_stepper(path), PROMPTS, None))) for path in (model, out))
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_rounded_norm_is_made_up_for(family: str, tmp_path: Path) -> None:
    model = checkpoints.make(family, tmp_path / "model", dtype=torch.bfloat16)
    declaration = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False).declaration
    block = declaration.decoder.blocks[0]
    place = next(each for each in folds(block) if each.norm is block.before_mlp)
    assert place.norm is not None
    offset = 1.0 if place.norm.unit_offset else 0.0
    name, matrix = place.norm.weight.name, f"{place.projection.parts[0][0]}.weight"
    tensors = {each: tensor.float() for each, tensor in load_file(model / "model.safetensors").items()}
    tensors[name] = tensors[name].bfloat16()
    tensors[name][3] = -offset
    products = (tensors[name].float() + offset) * tensors[matrix]
    factors = torch.rand(place.projection.inputs, generator=torch.Generator().manual_seed(2)) + 0.5
    used = fold(tensors, place, factors)
    assert tensors[name].dtype is torch.bfloat16 and used[3] == 1
    # Within float32's own rounding: bfloat16's would be 2^-9.
    torch.testing.assert_close((tensors[name].float() + offset) * tensors[matrix], products, rtol=1e-6, atol=1e-7)


def test_heads_that_read_the_same_have_the_same_factors(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "model")
    declaration = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False).declaration
    place: Fold = next(each for each in folds(declaration.decoder.blocks[0]) if each.heads != (1, 1))
    sizes = place.shared(torch.arange(96.0)).view(2, 2, 24)
    assert torch.equal(sizes[:, 0], sizes[:, 1])
    torch.testing.assert_close(sizes[1, 0, 0], torch.tensor((48.0**2 + 72.0**2) / 2).sqrt())
