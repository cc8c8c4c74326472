"""A model from a GGUF file is the checkpoint that it was made from."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.kernels.cpu.native import OBSTACLE
from penstock.layers.experts import ExpertNames
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.gguf import GgufFile, read_gguf
from penstock.loading.gguf_model import config_of
from penstock.loading.packing import PackedWeights
from penstock.models.registry import declare
from support import checkpoints
from support.gguf_files import IN_GGUF, changed, write_gguf
from support.stepping import all_logits, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 12, [41, 3]]
MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe", "gpt_oss", "minimax_m2")
MIXTURES += ("gemma4_moe",)
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4")
CENTRED = ("cohere2", "starcoder2", "gpt_neox", "gpt2")
VARIANTS = ("gemma2", "gemma4", "granite", "smollm3", "olmo2", "olmo3", "glm", "glm4", "phi3", "ministral3")
FAMILIES = (*checkpoints.FAMILIES, *MIXTURES, *LATENT, *CENTRED, *VARIANTS)
CHANGES = {**IN_GGUF, "gemma3": {**IN_GGUF["gemma3"], "query_pre_attn_scalar": 24, "hidden_size": 96}}


def made(family: str, path: Path, kind: Kind, *, whole: bool = False, **changes: Any) -> tuple[Path, Path]:
    folder = checkpoints.make(family, path / "model", **{**CHANGES[family], **changes})
    return folder, write_gguf(folder, path / f"{family}.gguf", kind, whole=whole)


def assert_same(folder: Path, file: Path) -> None:
    """Bit by bit, of every position."""
    expected = all_logits(make_stepper(folder), PROMPTS, None)
    found = all_logits(make_stepper(file), PROMPTS, None)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_every_family_gives_the_same_logits(tmp_path: Path, family: str, kind: Kind) -> None:
    assert_same(*made(family, tmp_path, kind))


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm", "glm4"])
def test_projections_that_some_files_have_as_one_give_the_same_logits(tmp_path: Path, family: str) -> None:
    folder, file = made(family, tmp_path, Kind.Q8_0, whole=True)
    assert_same(folder, file)
    assert declare(open_checkpoint(file).config).decoder == declare(open_checkpoint(folder).config).decoder


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_matrices_across_are_rounded_as_those_of_files_that_have_them_by_rows(tmp_path: Path, bits: str) -> None:
    packing = PackedWeights(bits, "none")
    one, other = (
        all_logits(make_stepper(path, packing=packing), PROMPTS, None) for path in made("gpt2", tmp_path, Kind.F32)
    )
    assert all(torch.equal(mine, right) for mine, right in zip(one, other, strict=True))


SMALL_KINDS = (Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.IQ4_NL)


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe"])
def test_experts_in_mxfp4_give_the_same_logits(tmp_path: Path, family: str) -> None:
    folder = checkpoints.make(family, tmp_path / "model", **CHANGES[family])
    assert_same(folder, write_gguf(folder, tmp_path / "a.gguf", others={"_exps.weight": Kind.MXFP4}))


LARGE_KINDS = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS)


@pytest.mark.parametrize("kind", SMALL_KINDS)
def test_every_kind_of_blocks_gives_the_same_logits(tmp_path: Path, kind: Kind) -> None:
    assert_same(*made("llama", tmp_path, kind))


@pytest.mark.parametrize("kind", LARGE_KINDS)
def test_every_kind_of_large_blocks_gives_the_same_logits(tmp_path: Path, kind: Kind) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
    assert_same(*made("llama", tmp_path, kind, **sizes))


def as_files_have_it(family: str, block: Any) -> Any:
    """A block but for how a checkpoint's tensors are stored otherwise."""
    if family == "gpt_oss":
        return replace(block, mlp=replace(block.mlp, names=ExpertNames("router")))
    if family in LATENT:
        return replace(block, attention=replace(block.attention, apart=True))
    if family == "gpt_neox":
        return replace(block, attention=replace(block.attention, by_head=False))
    if family == "gpt2":
        attention, mlp = replace(block.attention, across=False), replace(block.mlp, across=False)
        return replace(block, attention=attention, mlp=mlp)
    return block


@pytest.mark.parametrize("family", ["deepseek_v3", "phi3", "ministral3", "glm", "cohere2"])
def test_small_blocks_give_the_same_logits(tmp_path: Path, family: str) -> None:
    assert_same(*made(family, tmp_path, Kind.Q4_0))


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gpt2", {"n_embd": 256, "n_inner": 256}),
        ("gpt_neox", {"hidden_size": 256, "intermediate_size": 256}),
        ("olmo3", {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}),
    ],
)
def test_large_blocks_give_the_same_logits(tmp_path: Path, family: str, sizes: dict[str, int]) -> None:
    assert_same(*made(family, tmp_path, Kind.Q4_K, **sizes))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_is_the_checkpoints(tmp_path: Path, family: str) -> None:
    folder, file = made(family, tmp_path, Kind.F32)
    ours, theirs = declare(open_checkpoint(file).config), declare(open_checkpoint(folder).config)
    # Mistral is a Llama there, and GLM-4.7-Flash a DeepSeek.
    assert family in ("mistral", "glm4_moe_lite") or ours.architecture == theirs.architecture
    blocks = tuple(as_files_have_it(family, block) for block in theirs.decoder.blocks)
    assert ours.decoder == replace(theirs.decoder, blocks=blocks)
    assert open_checkpoint(file).config["eos_token_id"] == [checkpoints.EOS]


def test_a_float16_file_is_not_rounded(tmp_path: Path) -> None:
    _, file = made("qwen3", tmp_path, Kind.F16)
    assert declare(open_checkpoint(file).config).dtype == "float16"
    _, file = made("qwen3", tmp_path / "other", Kind.Q8_0)
    assert declare(open_checkpoint(file).config).dtype == "float32"


def test_tokens_that_end_a_turn_end_an_output_too(tmp_path: Path) -> None:
    folder = checkpoints.make("qwen3", tmp_path / "model")
    raw = json.loads((folder / "tokenizer.json").read_text())
    taken = len(raw["model"]["vocab"])
    end = {"id": taken, "content": "<|im_end|>", "special": True, "normalized": False}
    raw["added_tokens"].append({**end, "single_word": False, "lstrip": False, "rstrip": False})
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    file = write_gguf(folder, tmp_path / "a.gguf")
    assert open_checkpoint(file).config["eos_token_id"] == [checkpoints.EOS, taken]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    folder = tmp_path_factory.mktemp("plain")
    rope = {"rope_type": "default", "rope_theta": 1e4}
    return read_gguf(write_gguf(checkpoints.make("llama", folder / "model", rope_parameters=rope), folder / "a.gguf"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("general.architecture", "mamba", "'mamba', which is not implemented; these are: llama"),
        ("llama.block_count", None, "no llama.block_count"),
        ("llama.block_count", array("i", [1, 2]), "an array of 2; implemented: a whole number"),
        ("llama.rope.scaling.type", "longrope", "by longrope; implemented: none, linear, yarn"),
        ("llama.rope.scaling.type", "yarn", "no llama.rope.scaling.factor"),
        ("llama.attention.value_length", 8, "llama.attention.value_length = 8; implemented: that of its keys, 24"),
        ("llama.expert_count", 8, "no llama.expert_used_count"),
    ],
)
def test_what_cannot_be_served_is_refused(plain: GgufFile, name: str, value: Any, says: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=says):
        config_of(changed(plain, **{name: value}))


def test_rotary_positions_are_scaled_as_files_say_in_either_way(plain: GgufFile) -> None:
    kind, factor, older = "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.scale_linear"
    by_four = {"rope_type": "linear", "factor": 4.0}
    for values, expected in (
        ({}, None),
        ({factor: 4.0}, by_four),
        ({older: 4.0}, by_four),
        ({kind: "linear", factor: 4.0, older: 2.0}, by_four),
        ({kind: "linear"}, None),
        ({factor: 0.0}, None),
        ({kind: "none", factor: 4.0}, None),
    ):
        assert config_of(changed(plain, **values)).get("rope_scaling") == expected


def test_gemma_3_has_the_bases_that_older_files_call_otherwise(tmp_path: Path) -> None:
    file = read_gguf(made("gemma3", tmp_path, Kind.F32)[1])
    none = {"gemma3.rope.freq_base": None, "gemma3.rope.freq_base_swa": None}
    config = config_of(changed(file, **none))
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 10000.0)
    older = {"gemma3.rope.global.freq_base": 5e5, "gemma3.rope.local.freq_base": 2e4}
    config = config_of(changed(file, **none, **older))
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (5e5, 2e4)
    with pytest.raises(UnsupportedModel, match="sliding_window_pattern = 5; implemented: 6"):
        config_of(changed(file, **{"gemma3.attention.sliding_window_pattern": 5}))


def test_other_divisors_of_frequencies_are_refused(tmp_path: Path) -> None:
    folder = checkpoints.make("llama", tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["rope_parameters"]["original_max_position_embeddings"] == 64
    file = write_gguf(folder, tmp_path / "a.gguf")
    with pytest.raises(UnsupportedModel, match="otherwise than Llama 3"):
        open_checkpoint(file)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_divisors_that_make_no_sense_are_refused(tmp_path: Path, factor: float) -> None:
    file = made("llama", tmp_path, Kind.F32)[1]
    entry = read_gguf(file).tensors["rope_freqs.weight"]
    content = bytearray(file.read_bytes())
    content[entry.offset : entry.offset + entry.nbytes] = array("f", [factor] * (entry.nbytes // 4)).tobytes()
    file.write_bytes(content)
    with pytest.raises(UnsupportedModel, match="otherwise than Llama 3"):
        open_checkpoint(file)
