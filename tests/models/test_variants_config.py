"""What configurations of mixtures and of newer dense families say, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.kernels.places import LongRope, RopeSpec, YarnRope
from penstock.kernels.signature import Routing
from penstock.layers.experts import MixtureOfExperts
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import SERVED, declare
from support import checkpoints

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MIXTURE = {
    **DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}


def mixtures(declaration: ModelDeclaration) -> list[MixtureOfExperts | None]:
    return [block.mlp if isinstance(block.mlp, MixtureOfExperts) else None for block in declaration.decoder.blocks]


def rope(architecture: str = "LlamaForCausalLM", **parameters: Any) -> RopeSpec | None:
    config = {**DENSE, "architectures": [architecture], "rope_parameters": parameters}
    return declare(config).decoder.blocks[0].attention.rope


def test_layers_with_experts_are_those_that_the_configuration_says() -> None:
    every = mixtures(declare(MIXTURE))
    assert all(each is not None and each.routing == Routing(16, 4, renormalise=True) for each in every)
    some = mixtures(declare({**MIXTURE, "decoder_sparse_step": 2, "mlp_only_layers": [3]}))
    assert [each is not None for each in some] == [False, True, False, False]


def test_only_what_a_token_uses_is_read_for_it() -> None:
    declaration = declare(MIXTURE)
    every = declaration.parameters_in("linear")
    experts = 4 * 16 * 3 * 64 * 32
    assert declaration.used_parameters == every - experts * 12 // 16


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_experts_per_tok": 17}, ModelFileError, "num_experts_per_tok = 17, but only 16 experts"),
        ({"num_experts": 0}, ModelFileError, "num_experts = 0, but it must be an integer"),
        ({"mlp_only_layers": [True]}, ModelFileError, "mlp_only_layers"),
        ({"n_group": 4}, UnsupportedModel, "n_group = 4, which is not implemented for qwen3_moe"),
        ({"hidden_act": "relu"}, UnsupportedModel, "hidden_act = 'relu'"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        declare({**MIXTURE, **changes})


def test_yarn_in_old_and_new_layouts() -> None:
    expected = YarnRope(4.0, 128, amplitude=pytest.approx(1.1386294), fast=32.0, slow=1.0)
    old = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}
    found = declare({**DENSE, **old}).decoder.blocks[0].attention.rope
    assert found is not None and found.scaling == expected
    new = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, rope_theta=10000.0)
    assert new == found
    # Both of them together: their ratio.
    scaled = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, mscale=1.0, mscale_all_dim=1.0)
    assert scaled is not None and isinstance(scaled.scaling, YarnRope) and scaled.scaling.amplitude == 1.0


def test_long_rope_follows_the_longest_context() -> None:
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    found = rope(rope_type="longrope", original_max_position_embeddings=128, **lists)
    amplitude = pytest.approx(1.1339, abs=1e-4)
    assert found is not None and found.scaling == LongRope((2.0,) * 8, amplitude, (1.0,) * 8, 128)
    parameters = {"rope_type": "longrope", "original_max_position_embeddings": 128, **lists}
    declaration = declare({**DENSE, "architectures": ["Phi3ForCausalLM"], "rope_parameters": parameters})
    assert declaration.up_to(129) is declaration and "Contexts of up to 128 tokens" in declaration.notes[0]
    within = declaration.up_to(128).decoder.blocks[-1].attention.rope
    assert within is not None and within.scaling == LongRope((1.0,) * 8, amplitude)
    short = rope(rope_type="longrope", original_max_position_embeddings=512, **lists)
    assert short is not None and short.scaling == LongRope((1.0,) * 8, 1.0)
    with pytest.raises(UnsupportedModel, match="it must have 8 numbers"):
        rope(rope_type="longrope", original_max_position_embeddings=128, short_factor=[1.0], long_factor=[2.0])


def test_a_part_of_a_head_turns() -> None:
    assert rope("Phi3ForCausalLM", partial_rotary_factor=0.5) == RopeSpec(16, 10000.0, None, 8)
    with pytest.raises(UnsupportedModel, match="it must leave an even number of columns"):
        rope("Phi3ForCausalLM", partial_rotary_factor=0.2)


def test_layers_that_do_not_turn() -> None:
    config = {**DENSE, "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0, 1, 1]}
    ropes = [block.attention.rope for block in declare(config).decoder.blocks]
    assert [each is not None for each in ropes] == [True, False, True, True]
    with pytest.raises(ModelFileError, match="2 no_rope_layers for 4 layers"):
        declare({**config, "no_rope_layers": [1, 0]})


def test_an_architecture_that_is_not_there() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"architectures = Qwen4MoeForCausalLM.* the nearest .*Qwen3MoeForCausalLM"
    ):
        declare({**DENSE, "architectures": ["Qwen4MoeForCausalLM"]})


@pytest.mark.parametrize("family", checkpoints.NEWER)
def test_a_configuration_as_transformers_writes_it_is_read_without_complaint(family: str, tmp_path: Path) -> None:
    path = checkpoints.make(family, tmp_path)
    config = json.loads((path / "config.json").read_text())
    declaration = declare(config)
    model = checkpoints.load_reference(path)
    # What scores are corrected by is none there, nor are the numbers that blocks of Gemma 4 end with.
    more = [each for name, each in model.named_buffers() if name.endswith(("e_score_correction_bias", "layer_scalar"))]
    assert declaration.num_parameters == sum(each.numel() for each in (*model.parameters(), *more))
    assert config["architectures"][0] in SERVED


@pytest.mark.parametrize("family", checkpoints.EVERY)
def test_what_a_file_leaves_out_is_what_transformers_takes(family: str) -> None:
    bare, whole = checkpoints.bare_config(family)
    assert declare(bare) == declare(whole)


def test_layers_of_qwen2_moe_slide_in_turn() -> None:
    config = {**MIXTURE, "architectures": ["Qwen2MoeForCausalLM"], "use_sliding_window": True, "max_window_layers": 3}
    windows = [block.attention.window for block in declare(config).decoder.blocks]
    assert windows == [4096, None, 4096, None]


def test_values_that_published_files_have_and_that_change_nothing() -> None:
    gemma = {**DENSE, "architectures": ["Gemma2ForCausalLM"], "sliding_window": 64}
    assert declare({**gemma, "sliding_window_size": 64}) == declare(gemma)
    with pytest.raises(UnsupportedModel, match="sliding_window_size = 65"):
        declare({**gemma, "sliding_window_size": 65})
    phi = {**DENSE, "architectures": ["Phi3ForCausalLM"]}
    assert declare({**phi, "full_attn_mod": 1, "interpolate_factor": 1}) == declare(phi)
    with pytest.raises(UnsupportedModel, match="interpolate_factor = 2"):
        declare({**phi, "interpolate_factor": 2})
    smollm = {**DENSE, "architectures": ["SmolLM3ForCausalLM"]}
    assert declare({**smollm, "max_window_layers": 28}) == declare(smollm)


def test_groups_of_fewer_experts_than_their_score_takes() -> None:
    config = {**DENSE, "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 8, "num_experts_per_tok": 2}
    with pytest.raises(ModelFileError, match="n_group = 8 for 8 experts"):
        declare({**config, "n_group": 8, "topk_group": 4})


def test_a_zero_of_yarn_says_nothing() -> None:
    given = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert rope(**given, mscale=0, mscale_all_dim=0, beta_fast=0, beta_slow=None) == rope(**given)


def test_an_original_context_beside_the_parameters_wins() -> None:
    config = {**DENSE, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}
    found = declare({**config, "original_max_position_embeddings": 64}).decoder.blocks[0].attention.rope
    assert found is not None and isinstance(found.scaling, YarnRope) and found.scaling.original_context == 64


GEMMA4: dict[str, Any] = {
    **DENSE,
    "architectures": ["Gemma4ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}


def test_what_layers_of_gemma_4_read() -> None:
    blocks = declare({**GEMMA4, "num_kv_shared_layers": 2}).decoder.blocks
    assert [(block.attention.layer, block.attention.borrows) for block in blocks] == [
        (0, False),
        (1, False),
        (0, True),
        (1, True),
    ]
    sizes = {"head_dim": 64, "num_key_value_heads": 1}
    wide = declare({**GEMMA4, "per_layer_config": {"1": sizes, "3": sizes}}).decoder.blocks[1].attention.heads
    assert (wide.kv_heads, wide.head_dim) == (1, 64)
    # transformers writes layers' numbers with as many digits.
    layers = {"num_hidden_layers": 12, "layer_types": None, "per_layer_config": {"05": sizes, "11": sizes}}
    assert declare({**GEMMA4, **layers}).decoder.blocks[5].attention.heads == wide


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "the last layer.*must be full_attention"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers = 3 of 4 layers, which leaves no layer"),
        ({"num_kv_shared_layers": 9}, "num_kv_shared_layers = 9 of 4 layers, which leaves no layer"),
        ({"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input = 9"),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "the same head_dim and num_key_value_heads for each"),
        ({"per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 32}}}, "and for no other"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "full_attention layers of 3 KV heads"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5}, "top_k_experts = 5, but only 4 experts"),
        ({"enable_moe_block": True}, "no num_experts, which gemma4 models need"),
    ],
)
def test_what_gemma_4_cannot_have(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=said):
        declare({**GEMMA4, **changes})
