"""A model from a GGUF file is the checkpoint that it was made from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.checkpoint import open_checkpoint
from penstock.models.registry import declare
from support import checkpoints
from support.gguf_files import write_gguf
from support.stepping import all_logits, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 12, [41, 3]]
# What the format has no place for.
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {**checkpoints._LLAMA3_ROPE, "original_max_position_embeddings": 8192}},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "gemma3": {"query_pre_attn_scalar": 24, "attn_logit_softcapping": None, "hidden_size": 96},
}


def made(family: str, path: Path, kind: Kind, **changes: Any) -> tuple[Path, Path]:
    folder = checkpoints.make(family, path / "model", **{**CHANGES[family], **changes})
    return folder, write_gguf(folder, path / f"{family}.gguf", kind)


def assert_same(folder: Path, file: Path) -> None:
    """Bit by bit, of every position."""
    expected = all_logits(make_stepper(folder), PROMPTS, None)
    found = all_logits(make_stepper(file), PROMPTS, None)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_every_family_gives_the_same_logits(tmp_path: Path, family: str, kind: Kind) -> None:
    assert_same(*made(family, tmp_path, kind))


SMALL_KINDS = (Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.IQ4_NL)
LARGE_KINDS = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS)


@pytest.mark.parametrize("kind", SMALL_KINDS)
def test_every_kind_of_blocks_gives_the_same_logits(tmp_path: Path, kind: Kind) -> None:
    assert_same(*made("llama", tmp_path, kind))


@pytest.mark.parametrize("kind", LARGE_KINDS)
def test_every_kind_of_large_blocks_gives_the_same_logits(tmp_path: Path, kind: Kind) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
    assert_same(*made("llama", tmp_path, kind, **sizes))


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_the_configuration_is_the_checkpoints(tmp_path: Path, family: str) -> None:
    folder, file = made(family, tmp_path, Kind.F32)
    ours, theirs = declare(open_checkpoint(file).config), declare(open_checkpoint(folder).config)
    # Mistral is a Llama there.
    assert family == "mistral" or ours.architecture == theirs.architecture
    assert ours.decoder == theirs.decoder
    assert open_checkpoint(file).config["eos_token_id"] == checkpoints.EOS


def test_a_float16_file_is_not_rounded(tmp_path: Path) -> None:
    _, file = made("qwen3", tmp_path, Kind.F16)
    assert declare(open_checkpoint(file).config).dtype == "float16"
    _, file = made("qwen3", tmp_path / "other", Kind.Q8_0)
    assert declare(open_checkpoint(file).config).dtype == "float32"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("general.architecture", "mamba"), "'mamba', which is not implemented; these are: llama"),
        (("llama.block_count", None), "no llama.block_count"),
        (("llama.rope.scaling.type", "yarn"), "by yarn"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, change: tuple[str, Any], says: str) -> None:
    from penstock.loading.gguf import GgufFile, read_gguf
    from penstock.loading.gguf_model import config_of

    folder = checkpoints.make("llama", tmp_path / "model", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    file = read_gguf(write_gguf(folder, tmp_path / "a.gguf"))
    name, value = change
    metadata = {key: known for key, known in file.metadata.items() if key != name}
    if value is not None:
        metadata[name] = value
    with pytest.raises((ModelFileError, UnsupportedModel), match=says):
        config_of(GgufFile(file.path, metadata, file.tensors))


def test_other_divisors_of_frequencies_are_refused(tmp_path: Path) -> None:
    folder = checkpoints.make("llama", tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["rope_parameters"]["original_max_position_embeddings"] == 64
    file = write_gguf(folder, tmp_path / "a.gguf")
    with pytest.raises(UnsupportedModel, match="otherwise than Llama 3"):
        open_checkpoint(file)
