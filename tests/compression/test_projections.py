"""Matrices as files have them, and the same as kernels want them."""

from pathlib import Path

import pytest
import torch

from penstock.assembly.prepare import prepare
from penstock.compression.projections import Tensors, kept_modules, matrices, units
from penstock.configuration.options import EngineOptions
from penstock.loading.quantized import Entry
from penstock.loading.tensors import read_tensor
from penstock.models.declaration import ModelDeclaration
from support import checkpoints


def opened(model: Path) -> tuple[ModelDeclaration, dict[str, Entry]]:
    prepared = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False)
    return prepared.declaration, prepared.checkpoint.locate(prepared.declaration)


@pytest.mark.parametrize(
    "family", ["llama", "glm", "phi3", "gpt_neox", "minimax_m2", "gpt_oss", "deepseek_v3", "gemma4_moe"]
)
def test_rows_of_files_and_of_kernels_are_the_same_rows(family: str, tmp_path: Path) -> None:
    declaration, entries = opened(checkpoints.make(family, tmp_path))
    for block in declaration.decoder.blocks:
        tensors = Tensors(block.weights, entries)
        for spec in matrices(block):
            expected = torch.cat([read_tensor(entries[part.name]) for part in spec.parts])
            assert torch.equal(torch.cat([unit.ordered(tensors.of(unit)) for unit in units(spec)]), expected)


def test_what_is_not_rounded(tmp_path: Path) -> None:
    declaration, _ = opened(checkpoints.make("deepseek_v3", tmp_path))
    dense, sparse = declaration.decoder.blocks[0], declaration.decoder.blocks[-1]
    assert kept_modules(dense) == ["model.layers.0.self_attn.kv_b_proj"]
    assert kept_modules(sparse) == ["model.layers.2.self_attn.kv_b_proj", "model.layers.2.mlp.gate"]
    names = {spec.name.removeprefix("model.layers.2.") for spec in matrices(sparse)}
    assert names == {
        "self_attn.qkv_proj.weight",
        "self_attn.q_b_proj.weight",
        "self_attn.o_proj.weight",
        "mlp.experts.gate_up_proj.weight",
        "mlp.experts.down_proj.weight",
        "mlp.shared_experts.gate_up_proj.weight",
        "mlp.shared_experts.down_proj.weight",
    }


def test_factors_and_divisors_add_up(tmp_path: Path) -> None:
    declaration, entries = opened(checkpoints.make("llama", tmp_path))
    block = declaration.decoder.blocks[0]
    tensors, name = Tensors(block.weights, entries), "model.layers.0.mlp.up_proj.weight"
    before = tensors.stored(name)
    for _ in range(2):
        tensors.multiply(name, torch.full((64,), 3.0))
        tensors.divide(name, torch.tensor([1, 5]), torch.tensor([2.0, 4.0]))
    expected = before * 9
    expected[1] /= 4
    expected[5] /= 16
    torch.testing.assert_close(tensors.matrix(name), expected)
    assert torch.equal(tensors.stored(name), before)
