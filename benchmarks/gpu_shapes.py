"""Shapes of models whose weights are made on the GPU: their config.json is all of them that is written."""

import json
from pathlib import Path
from typing import Any

from checkpoint_shapes import EIGHT_BILLION, LARGE
from make_checkpoints import COMMON

_ALL: dict[str, Any] = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
# Prompts of 8,192 tokens are measured, and what comes behind them.
_LONG = {"max_position_embeddings": 16384}
# Of Llama 3.2 1B, 3.1 8B and 3.1 70B, of Qwen3-30B-A3B, DeepSeek-V2-Lite and gpt-oss 20B (its experts in bfloat16), and
# one small enough for kernels that are interpreted.
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {**LARGE, **_LONG},
    "8b": {**EIGHT_BILLION, **_LONG},
    "70b": {
        **EIGHT_BILLION,
        **_LONG,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "qwen3-30b-a3b": {
        **_LONG,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "tie_word_embeddings": False,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    "deepseek-v2-lite": {
        **_LONG,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "tie_word_embeddings": False,
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "gpt-oss-20b": {
        **_LONG,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "tie_word_embeddings": False,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rope_theta": 150000.0,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "attention_bias": True,
    },
    "tiny": {
        **EIGHT_BILLION,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": 300,
        "max_position_embeddings": 256,
    },
}


def config_of(shape: str) -> dict[str, Any]:
    """What is in the config.json of a shape."""
    return _ALL | SHAPES[shape]


def write_config(folder: Path, shape: str) -> Path:
    """A folder with the config.json of a shape, for `--load-format dummy`."""
    directory = folder / shape
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(shape)), encoding="utf-8")
    return directory
