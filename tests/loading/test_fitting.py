"""Where a configuration and the tensors beside it say different things, the tensors are used, and that is told."""

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import penstock.loading.comparison as comparison
from penstock import LLM
from penstock.core.errors import ModelFileError
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from support import checkpoints
from support.gguf_files import write_gguf
from support.quantized import LAYOUTS
from support.stepping import all_logits, make_stepper

PROMPT = [5, 9, 200, 31, 7, 7, 300, 12] * 3
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FILE = "model.safetensors"


def change(folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(folder / FILE)
    edit(tensors)
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    return folder


def configure(folder: Path, **values: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | values
    kept = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def model(folder: Path) -> ModelDeclaration:
    checkpoint = open_checkpoint(folder)
    declaration = model_of(checkpoint)
    checkpoint.locate(declaration)
    return declaration


def told(folder: Path) -> dict[str, str]:
    return {reason.setting: f"{reason.value}: {reason.why}" for reason in model(folder).found}


def logits(folder: Path) -> Tensor:
    return all_logits(make_stepper(folder), [PROMPT], None)[0]


def reference(folder: Path) -> Tensor:
    return checkpoints.reference_logits(checkpoints.load_reference(folder), PROMPT)


def agree(folder: Path, expected: Tensor) -> None:
    assert (logits(folder) - expected).abs().max() <= 1e-4


def with_head(head: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({HEAD: head(tensors[EMBEDDING])})


def flipped(embedding: Tensor) -> Tensor:
    return embedding.flip(0).contiguous()


def one_row_apart(embedding: Tensor) -> Tensor:
    """A row between the samples."""
    head = embedding.clone()
    head[17] *= 2
    return head


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_a_head_that_is_not_the_embedding_is_used(tmp_path: Path, family: str) -> None:
    folder = change(checkpoints.make(family, tmp_path, tie_word_embeddings=True), with_head(flipped))
    agree(folder, reference(folder))
    assert HEAD in told(folder)["output head"] and "tie_word_embeddings" in told(folder)["output head"]


def test_a_head_of_a_single_other_row_is_used(tmp_path: Path) -> None:
    folder = change(checkpoints.make("qwen2", tmp_path), with_head(one_row_apart))
    agree(folder, reference(folder))
    assert "output head" in told(folder)


def test_a_head_that_is_the_embedding_once_more_stays_tied(tmp_path: Path) -> None:
    folder = change(checkpoints.make("qwen2", tmp_path), with_head(torch.clone))
    checkpoint = open_checkpoint(folder)
    declaration = model_of(checkpoint)
    assert declaration.found == () and declaration.decoder.head is None
    weights = load_weights(checkpoint, declaration, torch.float32, packing=PackedWeights(tied=True))
    assert weights[HEAD] is weights[EMBEDDING]
    agree(folder, reference(folder))


def test_a_tied_matrix_under_the_name_of_the_head_alone(tmp_path: Path) -> None:
    folder = checkpoints.make("mistral", tmp_path)
    expected = reference(folder)
    change(folder, lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)}))
    agree(folder, expected)
    assert HEAD in told(folder)["tensor names"]


def test_an_untied_model_without_a_head_says_what_would_tie_it(tmp_path: Path) -> None:
    folder = change(checkpoints.make("llama", tmp_path), lambda tensors: tensors.pop(HEAD))
    with pytest.raises(ModelFileError, match="lacks tensor lm_head.weight.*tie_word_embeddings = true"):
        model(folder)


def test_what_was_compared_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading as much as the embedding takes is for the first start alone, and for files that have changed."""
    folder = change(checkpoints.make("qwen2", tmp_path / "model"), with_head(torch.clone))
    read, original = 0, os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal read
        read += size
        return original(descriptor, size, offset)

    def compared() -> tuple[bool, int]:
        nonlocal read
        read = 0
        tied = model(folder).decoder.head is None
        return tied, read

    monkeypatch.setattr(comparison.os, "pread", pread)
    samples = 2 * 16 * 4096
    whole = 2 * checkpoints.VOCAB_SIZE * 64 * 4
    assert compared() == (True, samples + whole)
    assert compared() == (True, samples)
    change(folder, with_head(one_row_apart))
    assert compared() == (False, samples + whole)
    assert compared() == (False, samples)
    change(folder, with_head(flipped))
    tied, few = compared()
    assert not tied and few == 2 * 4096, "matrices that differ everywhere differ in the first sample"


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    folder = change(checkpoints.make("qwen2", tmp_path / "model"), with_head(torch.clone))
    assert model(folder).decoder.head is None


@pytest.mark.parametrize("layout", ["gptq 4", "awq", "packed 4"])
def test_a_quantized_head_beside_an_embedding_that_it_is_tied_to(tmp_path: Path, layout: str) -> None:
    pack, declared = next((each for name, each in LAYOUTS.items() if name.startswith(layout)))
    folder = checkpoints.make("qwen2", tmp_path)
    parts, numbers = pack("lm_head", load_file(folder / FILE)[EMBEDDING])
    plain = change(checkpoints.make("qwen2", tmp_path / "plain"), with_head(lambda _: numbers.clone()))
    change(folder, lambda tensors: tensors.update(parts))
    configure(folder, quantization_config=declared)
    assert "output head" in told(folder)
    agree(folder, reference(plain))


def biases(names: Mapping[str, int], value: float = 0.5) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        for name, size in names.items():
            for layer in range(3):
                noise = (
                    torch.randn(size, generator=torch.Generator().manual_seed(layer)) if value else torch.zeros(size)
                )
                tensors[f"model.layers.{layer}.{name}.bias"] = value * noise

    return edit


def without(end: str) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(end)]:
            del tensors[name]

    return edit


QKV = {"self_attn.q_proj": 96, "self_attn.k_proj": 48, "self_attn.v_proj": 48}


@pytest.mark.parametrize("said", [False, True], ids=["not said", "said of all"])
def test_biases_of_some_projections(tmp_path: Path, said: bool) -> None:
    """As of Qwen's weights under Llama's name: queries, keys and values have biases, their output has none."""
    folder = change(checkpoints.make("llama", tmp_path, attention_bias=True), biases({"self_attn.o_proj": 64}, 0.0))
    expected = reference(folder)
    change(folder, without("o_proj.bias"))
    configure(folder, attention_bias=said)
    agree(folder, expected)
    assert ("o_proj: none" if said else "q_proj and k_proj and v_proj: used") in told(folder)["biases"]


def test_biases_that_a_family_never_declares(tmp_path: Path) -> None:
    """Llama knows them in its MLP, Mistral does not, and is otherwise the same."""
    changes = {"mlp_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
    folder = checkpoints.make("llama", tmp_path, **changes)
    expected = reference(folder)
    configure(folder, architectures=["MistralForCausalLM"], mlp_bias=..., attention_bias=..., sliding_window=None)
    agree(folder, expected)
    assert "down_proj: used" in told(folder)["biases"]


def test_biases_of_zeros_are_none(tmp_path: Path) -> None:
    folder = checkpoints.make("mistral", tmp_path)
    expected = reference(folder)
    change(folder, biases({**QKV, "mlp.down_proj": 64}, 0.0))
    assert told(folder) == {}
    agree(folder, expected)


def test_a_bias_that_one_layer_lacks(tmp_path: Path) -> None:
    folder = change(checkpoints.make("qwen2", tmp_path), without("layers.1.self_attn.q_proj.bias"))
    with pytest.raises(ModelFileError, match=r"lacks tensor model\.layers\.1\.self_attn\.q_proj\.bias"):
        model(folder)
    change(folder, without("layers.1.self_attn.k_proj.bias"))
    change(folder, without("layers.1.self_attn.v_proj.bias"))
    with pytest.raises(ModelFileError, match=r"lacks tensor model\.layers\.1\.self_attn\.q_proj\.bias"):
        model(folder)


def test_a_bias_for_a_part_of_what_is_one_projection(tmp_path: Path) -> None:
    folder = change(checkpoints.make("mistral", tmp_path), biases({"self_attn.q_proj": 96}))
    with pytest.raises(ModelFileError, match=r"lacks tensor model\.layers\.0\.self_attn\.k_proj\.bias"):
        model(folder)


PREFIXES = (
    ("", "lm_head."),
    ("language_model.", "language_model.lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.language_model.", "lm_head."),
    ("transformer.", "transformer.lm_head."),
    ("base_model.model.model.", "base_model.model.lm_head."),
    ("_orig_mod.model.", "_orig_mod.lm_head."),
)


def renamed(body: str, head: str) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        old = dict(tensors)
        tensors.clear()
        for name, tensor in old.items():
            ours, theirs = ("model.", body) if name.startswith("model.") else ("lm_head.", head)
            tensors[theirs + name.removeprefix(ours)] = tensor

    return edit


@pytest.mark.parametrize(("body", "head"), PREFIXES, ids=lambda value: value)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_names_with_other_beginnings(tmp_path: Path, family: str, body: str, head: str) -> None:
    folder = checkpoints.make(family, tmp_path)
    expected = logits(folder)
    change(folder, renamed(body, head))
    assert torch.equal(logits(folder), expected)
    assert "model." in told(folder)["tensor names"]


def test_a_quantized_model_with_another_beginning(tmp_path: Path) -> None:
    plain = checkpoints.make("llama", tmp_path / "plain")
    pack, declared = LAYOUTS["gptq 4"]

    def quantized(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            module = name.removesuffix(".weight")
            parts, tensors[name] = pack(module, tensors[name])
            kept.update(parts)

    kept: dict[str, Tensor] = {}
    change(plain, quantized)
    folder = checkpoints.make("llama", tmp_path / "quantized")

    def edit(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            del tensors[name]
        tensors.update(kept)
        renamed("language_model.model.", "language_model.lm_head.")(tensors)

    configure(change(folder, edit), quantization_config=declared)
    assert torch.equal(logits(folder), logits(plain))


def test_tensors_of_another_architecture_are_named(tmp_path: Path) -> None:
    folder = change(
        checkpoints.make("llama", tmp_path),
        lambda tensors: (tensors.clear(), tensors.update({"tok_embeddings.weight": torch.ones(4, 4)}))[0],
    )
    with pytest.raises(ModelFileError, match="lacks tensor model.embed_tokens.weight.*tok_embeddings.weight"):
        model(folder)


def test_the_type_of_weights_where_the_configuration_does_not_say(tmp_path: Path) -> None:
    folder = checkpoints.make("qwen3", tmp_path, dtype=torch.bfloat16)
    configure(folder, dtype=..., torch_dtype=...)
    assert model(folder).dtype == "bfloat16" and "stored dtype" in told(folder)
    configure(folder, torch_dtype="float32")
    assert model(folder).dtype == "float32", "as transformers reads it"
    assert "bfloat16" in told(folder)["stored dtype"] and "--dtype" in told(folder)["stored dtype"]
    configure(folder, torch_dtype="bfloat16")
    assert told(folder) == {}


def test_of_a_gguf_file_the_file_is_named(tmp_path: Path) -> None:
    file = write_gguf(checkpoints.make("qwen3", tmp_path / "model", head_dim=24), tmp_path / "a.gguf")
    content = file.read_bytes()
    size = b"qwen3.attention.head_count_kv" + struct.pack("<II", 4, 2)
    assert content.count(size) == 1
    file.write_bytes(content.replace(size, size[:-4] + struct.pack("<I", 3)))
    with pytest.raises(ModelFileError, match=r"^a\.gguf, read as config\.json, has num_attention_heads = 4"):
        model_of(open_checkpoint(file))


def test_python_users_are_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = change(checkpoints.make("qwen2", tmp_path), with_head(flipped))
    LLM(str(folder), threads=1, max_model_len=64, max_num_seqs=1)
    assert any("output head: lm_head.weight" in record.getMessage() for record in caplog.records)
