"""Heads on hidden states: what their files may say, and that they compute what their papers say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu.operations import kv_layout
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.processor import this_processor
from penstock.kernels.program import compile_program
from penstock.kernels.tape import Tape
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.weights import load_weights
from penstock.models.heads import EagleHead, MedusaHeads, declare_heads, size_of
from penstock.models.registry import declare
from support.checkpoints import VOCAB_SIZE, make
from support.heads import medusa_logits, medusa_tensors, write_eagle, write_medusa
from support.stepping import ShuffledStorage

WIDTH, HEADS, LAYERS = 64, 3, 2


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("target"), tie_word_embeddings=True)


def declared(kind: Any, path: Path, target: Path) -> Any:
    checkpoint = open_checkpoint(path)
    return declare_heads(kind, checkpoint.config, checkpoint.tensors, declare(open_checkpoint(target).config))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_medusa_heads_are_residual_blocks_and_a_projection(
    target: Path, tmp_path: Path, bias: bool, first: bool
) -> None:
    path = write_medusa(tmp_path, WIDTH, VOCAB_SIZE, HEADS, LAYERS, bias=bias, first=first)
    heads = declared("medusa", path, target)
    assert isinstance(heads, MedusaHeads) and (heads.heads, heads.layers, heads.bias) == (HEADS, LAYERS, bias)
    tape = Tape()
    heads.record(tape)
    weights = load_weights(open_checkpoint(path), heads, torch.float32)
    storage = ShuffledStorage(declare(open_checkpoint(target).config).kv_layers, torch.float32, 16, 1)
    program = compile_program(tape, weights, storage, torch.float32, Dispatcher(this_processor().implementations))
    states = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
    zeros = torch.zeros(5, dtype=torch.int64)
    found = program.results(StepBatch(zeros, zeros, [1] * 5, [1] * 5, 5, torch.arange(5), (), 16), states)
    tensors = medusa_tensors(WIDTH, VOCAB_SIZE, HEADS, LAYERS, bias=bias)
    for logits, expected in zip(found, medusa_logits(tensors, states, HEADS, LAYERS), strict=True):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    whole = sum(tensor.numel() for tensor in tensors.values())
    assert size_of(heads)[0] == whole and size_of(heads)[2] == HEADS * VOCAB_SIZE * WIDTH


@pytest.mark.parametrize("layers", [1, 2])
def test_an_eagle_head_is_decoder_layers_over_tokens_and_states(target: Path, tmp_path: Path, layers: int) -> None:
    config = json.loads((target / "config.json").read_text())
    tensors = write_eagle(tmp_path, config, layers, bias=layers == 2)
    head = declared("eagle", tmp_path, target)
    assert isinstance(head, EagleHead) and len(head.kv_layers) == layers
    declaration = declare(open_checkpoint(target).config)
    dtype, tape = torch.float32, Tape()
    head.record(tape)
    own = load_weights(open_checkpoint(tmp_path), head, dtype)
    weights = {**load_weights(open_checkpoint(target), declaration, dtype), **own}
    storage = ShuffledStorage(head.kv_layers, dtype, 32, 1)
    storage.layout = kv_layout(storage.spec, dtype)
    storage.own(int(storage.tables[0][0, 0]))
    program = compile_program(tape, weights, storage, dtype, Dispatcher(this_processor().implementations))
    luck = torch.Generator().manual_seed(1)
    tokens, states = torch.randint(0, VOCAB_SIZE, (9,), generator=luck), torch.randn(9, WIDTH, generator=luck)
    batch = StepBatch(tokens, torch.arange(9), [9], [9], 0, torch.arange(9), (storage.tables[0][:1].contiguous(),), 16)
    logits, found = program.results(batch, states)
    expected_logits, expected = eagle_by_transformers(target, tmp_path, tensors, tokens, states)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-3, atol=1e-3)


def eagle_by_transformers(
    target: Path, path: Path, tensors: dict[str, torch.Tensor], tokens: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and states by the layers of transformers, the first of them without its first norm."""
    from safetensors.torch import load_file

    config = LlamaConfig(**json.loads((path / "config.json").read_text()), attn_implementation="eager")
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    joined = torch.cat((embedding[tokens], states), dim=1)
    x = torch.nn.functional.linear(joined, tensors["fc.weight"], tensors.get("fc.bias"))[None]
    rope = LlamaRotaryEmbedding(config)(x, torch.arange(len(tokens))[None])
    mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
    for place in range(config.num_hidden_layers):
        layer = LlamaDecoderLayer(config, place)
        own = {
            name.removeprefix(f"layers.{place}."): value
            for name, value in tensors.items()
            if f"layers.{place}." in name
        }
        layer.load_state_dict(own, strict=False)
        if place == 0:
            layer.input_layernorm = torch.nn.Identity()
        with torch.no_grad():
            made = layer(x, attention_mask=mask, position_embeddings=rope)
        x = made[0] if isinstance(made, tuple) else made
    return torch.nn.functional.linear(x[0], embedding), x[0]


def test_heads_for_another_model_are_refused(target: Path, tmp_path: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    for name, width, vocabulary, problem in (
        ("narrow", 32, VOCAB_SIZE, "hidden_size = 32, but the model's is 64"),
        ("words", WIDTH, 100, "vocab_size = 100, but the model's is 320"),
    ):
        with pytest.raises(ModelFileError, match=problem):
            declared("medusa", write_medusa(tmp_path / name, width, vocabulary), target)
    write_eagle(tmp_path / "eagle", {**config, "hidden_size": 32})
    with pytest.raises(ModelFileError, match="hidden_size = 32"):
        declared("eagle", tmp_path / "eagle", target)
    path = write_medusa(tmp_path / "truncated", WIDTH, VOCAB_SIZE)
    written = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**written, "truncated_vocab_size": 100}))
    with pytest.raises(UnsupportedModel, match="truncated_vocab_size"):
        declared("medusa", path, target)


def test_a_missing_tensor_is_named(target: Path, tmp_path: Path) -> None:
    path = write_medusa(tmp_path, WIDTH, VOCAB_SIZE, HEADS, LAYERS)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_heads": HEADS + 1}))
    with pytest.raises(ModelFileError, match=r"lacks tensor blocks.3.layers.0.weight, which MedusaModel needs"):
        load_weights(open_checkpoint(path), declared("medusa", path, target), torch.float32)
