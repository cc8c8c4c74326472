"""What GGUF files of one architecture may say in several ways, and what they say that is not implemented."""

from array import array
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.weights import HeadRows
from penstock.loading.gguf import GgufFile, read_gguf
from penstock.loading.gguf_model import config_of, entries_of
from penstock.models.registry import declare
from support import checkpoints
from support.gguf_files import IN_GGUF, changed, write_gguf

NAMES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "phi3", "ministral3", "cohere2", "glm", "olmo3")
NAMES += ("gemma4",)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufFile]:
    found = {}
    for name in (*NAMES, "starcoder2", "qwen3", "glm4"):
        folder = checkpoints.make(name, tmp_path_factory.mktemp("made") / "model", **IN_GGUF[name])
        found[name] = read_gguf(write_gguf(folder, folder / f"{name}.gguf", Kind.F32))
    return found


@pytest.mark.parametrize(
    ("family", "values", "says"),
    [
        ("deepseek_v3", {"deepseek2.expert_gating_func": 3}, "expert_gating_func = 3; implemented: 1 or 2"),
        ("deepseek_v3", {"deepseek2.attention.temperature_scale": 0.1}, "temperature_scale = 0.1; implemented: 0"),
        ("deepseek_v3", {"deepseek2.attention.kv_lora_rank": None}, "no deepseek2.attention.kv_lora_rank"),
        ("deepseek_v3", {"deepseek2.expert_count": None}, "no deepseek2.expert_count"),
        ("deepseek_v3", {"deepseek2.rope.scaling.type": "linear"}, "type = 'linear'; implemented: yarn"),
        ("deepseek_v3", {"deepseek2.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor = 0.5; implemented: 1"),
        (
            "gemma4",
            {"gemma4.feed_forward_length": array("I", [96, 96, 48, 96, 192, 192])},
            "an array of 6; implemented",
        ),
        ("gemma4", {"gemma4.block_count": 0}, "block_count = 0; implemented: at least 1"),
        ("gemma4", {"gemma4.attention.head_count_kv": array("I", [2])}, "one for each of 6 layers"),
        ("gemma4", {"gemma4.attention.value_length_swa": 48}, "value_length_swa = 48; implemented: 24"),
        ("gemma4", {"gemma4.attention.key_length_swa": None}, "no gemma4.attention.key_length_swa"),
        ("mistral4", {"mistral4.expert_gating_func": 2}, "expert_gating_func = 2; implemented: 1"),
        ("mistral4", {"mistral4.attention.temperature_length": 8192}, "temperature_length = 8192; implemented: 64"),
        ("mistral4", {"mistral4.rope.scaling.type": "none"}, "temperature_scale = None; implemented: that of a file"),
        ("ministral3", {"mistral3.rope.scaling.type": "linear"}, "type = 'linear'; implemented: yarn"),
        ("ministral3", {"mistral3.attention.temperature_length": 3}, "temperature_length = 3; implemented: 64"),
        ("ministral3", {"mistral3.expert_count": 4}, "4 experts in each layer, which is not implemented"),
        ("phi3", {"phi3.attention.sliding_window": None}, "no phi3.attention.sliding_window"),
        ("phi3", {"phi3.rope.scaling.original_context_length": None}, "no phi3.rope.scaling.original_context_length"),
        ("cohere2", {"cohere2.attention.sliding_window_pattern": array("B", [1, 0])}, "an array of 2; implemented"),
        ("cohere2", {"cohere2.attention.sliding_window_pattern": -1}, "= -1; implemented: a whole number, or one of"),
        ("glm", {"chatglm.rope.dimension_sections": array("i", [4, 2, 2, 0])}, "an array of 4; implemented: none"),
        ("glm4", {"glm4.rope.dimension_sections": array("i", [4, 2, 2, 0])}, "an array of 4; implemented: none"),
        ("qwen3", {"qwen3.rope.scaling.type": "longrope"}, "by longrope; implemented: none, linear, yarn"),
    ],
)
def test_what_is_not_implemented_is_refused(
    files: dict[str, GgufFile], family: str, values: dict[str, Any], says: str
) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=says):
        config_of(changed(files[family], **values))


def test_experts_of_deepseek_are_chosen_as_files_say_or_as_their_tensors_tell(files: dict[str, GgufFile]) -> None:
    gating, norm = "deepseek2.expert_gating_func", "deepseek2.expert_weights_norm"
    flash = files["glm4_moe_lite"]
    assert gating not in flash.metadata
    assert config_of(flash)["architectures"] == ["DeepseekV3ForCausalLM"]
    older = changed(files["deepseek_v2"], **{gating: None})
    assert config_of(older)["architectures"] == ["DeepseekV2ForCausalLM"]
    # Mistral Large 3.
    length, scale = "deepseek2.attention.temperature_length", "deepseek2.attention.temperature_scale"
    large = config_of(changed(older, **{norm: True, scale: 0.1, length: 64}))
    assert large["architectures"] == ["Mistral4ForCausalLM"] and large["norm_topk_prob"]
    assert declare(large).decoder.blocks[0].attention.query_scale == (0.1, 64)
    plain = config_of(changed(older, **{norm: True, "deepseek2.rope.scaling.type": None}))
    assert declare(plain).decoder.blocks[0].attention.query_scale is None


def test_older_files_of_deepseek_do_not_say_how_experts_are_grouped(files: dict[str, GgufFile]) -> None:
    groups, kept = "deepseek2.expert_group_count", "deepseek2.expert_group_used_count"
    none = {groups: None, kept: None}
    few = config_of(changed(files["deepseek_v2"], **none))
    assert (few["n_group"], few["topk_group"], few["topk_method"]) == (1, 1, "greedy")
    for count, expected in ((160, (8, 3)), (256, (8, 4))):
        many = config_of(changed(files["deepseek_v3"], **none, **{"deepseek2.expert_count": count}))
        assert (many["n_group"], many["topk_group"]) == expected


def test_layers_that_predict_further_tokens_are_not_used(files: dict[str, GgufFile]) -> None:
    more = changed(files["glm4_moe_lite"], **{"deepseek2.block_count": 4, "deepseek2.nextn_predict_layers": 1})
    assert declare(config_of(more)).decoder == declare(config_of(files["glm4_moe_lite"])).decoder


def test_yarn_of_deepseek_widens_scores_by_ten_times_what_a_file_says(files: dict[str, GgufFile]) -> None:
    assert config_of(files["deepseek_v3"])["rope_scaling"]["mscale_all_dim"] == 0.6
    none = {"deepseek2.rope.scaling.yarn_log_multiplier": None}
    attention = declare(config_of(changed(files["deepseek_v3"], **none))).decoder.blocks[0].attention
    assert isinstance(attention, LatentAttention) and attention.scale == (32 + 16) ** -0.5


def test_mistral_3_without_temperature_is_mistral_small(files: dict[str, GgufFile]) -> None:
    prefix = "mistral3.rope.scaling"
    none = {"mistral3.attention.temperature_scale": None, f"{prefix}.type": None, f"{prefix}.factor": None}
    found = declare(config_of(changed(files["ministral3"], **none)))
    attention = found.decoder.blocks[0].attention
    assert found.architecture == "MistralForCausalLM" and attention.window is None and attention.query_scale is None
    entry = entries_of(files["ministral3"])["model.layers.0.self_attn.k_proj.weight"]
    assert entry.rows == HeadRows(2, 24, turned=24, paired=True)


def test_phi_has_a_window_of_none_and_rotary_divisors_of_two_kinds(files: dict[str, GgufFile]) -> None:
    config = config_of(changed(files["phi3"], **{"phi3.attention.sliding_window": 0}))
    assert declare(config).decoder.blocks[0].attention.window is None
    assert config["rope_scaling"]["rope_type"] == "longrope" and "attention_factor" not in config["rope_scaling"]
    other = config_of(changed(files["phi3"], **{"phi3.rope.scaling.attn_factor": 1.25}))
    assert other["rope_scaling"]["attention_factor"] == 1.25
    left = {name: entry for name, entry in files["phi3"].tensors.items() if name != "rope_factors_short.weight"}
    with pytest.raises(UnsupportedModel, match=r"no tensor rope_factors_short\.weight"):
        config_of(GgufFile(files["phi3"].path, files["phi3"].metadata, left))


def test_layers_with_windows_are_said_as_a_number_or_one_by_one(files: dict[str, GgufFile]) -> None:
    pattern = "cohere2.attention.sliding_window_pattern"
    for value, expected in ((None, "sssf"), (2, "sfsf"), (array("B", [0, 0, 1, 1]), "ffss")):
        found = config_of(changed(files["cohere2"], **{pattern: value}))["layer_types"]
        assert [kind[0] for kind in found] == list(expected)


def test_olmo_3_scales_positions_of_layers_that_see_everything(files: dict[str, GgufFile]) -> None:
    config = config_of(files["olmo3"])
    assert config["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 3000.0}
    assert config["rope_parameters"]["full_attention"]["attention_factor"] == 1.15
    same = config_of(changed(files["olmo3"], **{"olmo2.rope.freq_base_swa": None, "olmo2.rope.scaling.type": None}))
    assert same["rope_parameters"]["sliding_attention"]["rope_theta"] == 5000.0
    earlier = config_of(changed(files["olmo3"], **{"olmo2.attention.sliding_window": None}))
    assert earlier["architectures"] == ["Olmo2ForCausalLM"]


def test_starcoder_2_has_its_window_where_a_file_does_not_say_it(files: dict[str, GgufFile]) -> None:
    assert "starcoder2.attention.sliding_window" not in files["starcoder2"].metadata
    assert config_of(files["starcoder2"])["sliding_window"] == 4096


def test_any_architecture_may_scale_positions_by_yarn(files: dict[str, GgufFile]) -> None:
    said = {"type": "yarn", "factor": 4.0, "original_context_length": 256}
    values = {f"qwen3.rope.scaling.{name}": value for name, value in said.items()}
    scaling = config_of(changed(files["qwen3"], **values))["rope_scaling"]
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert scaling == {**expected, "beta_fast": 32.0, "beta_slow": 1.0}


def test_heads_that_do_not_fit_a_tensor_are_refused(tmp_path: Path) -> None:
    folder = checkpoints.make("glm", tmp_path / "model", **IN_GGUF["glm"])
    file = read_gguf(write_gguf(folder, tmp_path / "glm.gguf", Kind.F32, whole=True))
    with pytest.raises(ModelFileError, match=r"attn_qkv\.(weight|bias) of 128 rows, none of 9 heads"):
        entries_of(changed(file, **{"chatglm.attention.head_count": 5}))
