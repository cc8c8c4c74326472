"""Small configurations of every family, in which each feature changes the logits.

Windows and original context are far below the prompts tested, head_dim is not width / heads, and norms' eps is large.
"""

from typing import Any

from transformers.models.cohere2 import Cohere2Config
from transformers.models.deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.glm import GlmConfig
from transformers.models.glm4 import Glm4Config
from transformers.models.glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe_lite import Glm4MoeLiteConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.granite import GraniteConfig
from transformers.models.granitemoe import GraniteMoeConfig
from transformers.models.llama import LlamaConfig
from transformers.models.minimax_m2 import MiniMaxM2Config
from transformers.models.ministral3 import Ministral3Config
from transformers.models.mistral import MistralConfig
from transformers.models.mistral4 import Mistral4Config
from transformers.models.mixtral import MixtralConfig
from transformers.models.olmo2 import Olmo2Config
from transformers.models.olmo3 import Olmo3Config
from transformers.models.olmoe import OlmoeConfig
from transformers.models.phi3 import Phi3Config
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.smollm3 import SmolLM3Config
from transformers.models.starcoder2 import Starcoder2Config

VOCAB_SIZE = 320
BOS, EOS = 1, 2
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
# Whose layers have experts.
MIXTURES = (
    *("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe", "gpt_oss", "minimax_m2"),
    "gemma4_moe",
)
# Whose attention is latent.
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4")
# Dense ones with layer norms, and some with an MLP without a gate.
CENTRED = ("cohere2", "starcoder2", "gpt_neox", "gpt2")
# Dense ones that differ from those above in a few parts.
VARIANTS = ("ministral3", "gemma2", "gemma4", "phi3", "granite", "smollm3", "olmo2", "olmo3", "glm", "glm4")

# Those beside the five first ones, and all.
NEWER = (*MIXTURES, *LATENT, *CENTRED, *VARIANTS)
EVERY = (*FAMILIES, *NEWER)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Of what others have and a family does not.
ABSENT = object()
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-2,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
# Pairs of a head of 24 columns, of which three quarters turn.
_TURNED = 9
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.05 * pair for pair in range(_TURNED)],
    "long_factor": [1.5 + 0.4 * pair for pair in range(_TURNED)],
    # transformers takes the shorter ones up to here, and would for the keys of short prompts.
    "original_max_position_embeddings": 1,
    "attention_factor": 1.19,
}
_OLMO3_ROPE = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "attention_factor": 1.15,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
}
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
}
# Parts of a head that are no powers of two, and a latent vector that is.
_LATENT_SIZES: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "n_shared_experts": 2,
}
_DEEPSEEK_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "mscale": 0.8,
    "mscale_all_dim": 0.6,
}
_MINISTRAL_ROPE = {
    **_DEEPSEEK_ROPE,
    "max_position_embeddings": 1024,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
_GEMMA4_ROPE = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 20000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
}
_GEMMA4: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_hidden_layers": 6,
    "sliding_window": 29,
    "global_head_dim": 32,
    "rope_parameters": _GEMMA4_ROPE,
    "final_logit_softcapping": 2.0,
    "tie_word_embeddings": True,
}
BY_FAMILY: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": False}),
    "mistral": (MistralConfig, {"sliding_window": 37, "tie_word_embeddings": True}),
    "qwen2": (
        Qwen2Config,
        {
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 45,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": (Qwen3Config, {"tie_word_embeddings": False}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        {**_EXPERTS, "num_hidden_layers": 4, "norm_topk_prob": True, "mlp_only_layers": [2], "decoder_sparse_step": 1},
    ),
    "qwen2_moe": (
        Qwen2MoeConfig,
        {**_EXPERTS, "decoder_sparse_step": 2, "num_hidden_layers": 4, "shared_expert_intermediate_size": 48},
    ),
    "mixtral": (MixtralConfig, {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 41}),
    "olmoe": (OlmoeConfig, {"num_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "intermediate_size": 32}),
    "granitemoe": (
        GraniteMoeConfig,
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "head_dim": 16,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": (
        Gemma2Config,
        {
            "hidden_size": 72,
            "num_hidden_layers": 4,
            "sliding_window": 29,
            "query_pre_attn_scalar": 9,
            "final_logit_softcapping": 2.0,
            "attn_logit_softcapping": 25.0,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": (
        Phi3Config,
        {
            "sliding_window": 47,
            "rope_parameters": _LONG_ROPE,
            "original_max_position_embeddings": 1,
            "tie_word_embeddings": False,
            "hidden_size": 96,
        },
    ),
    "granite": (
        GraniteConfig,
        {
            "head_dim": 16,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
            "tie_word_embeddings": False,
            "mlp_bias": True,
        },
    ),
    "smollm3": (
        SmolLM3Config,
        {
            "num_hidden_layers": 4,
            "no_rope_layer_interval": 3,
            "use_sliding_window": True,
            "sliding_window": 33,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": (Olmo2Config, {"tie_word_embeddings": False}),
    "olmo3": (
        Olmo3Config,
        {"num_hidden_layers": 4, "sliding_window": 31, "rope_parameters": _OLMO3_ROPE, "tie_word_embeddings": False},
    ),
    "glm": (GlmConfig, {"attention_bias": True}),
    "glm4": (Glm4Config, {"tie_word_embeddings": True}),
    "glm4_moe": (
        Glm4MoeConfig,
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.7,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "ministral3": (
        Ministral3Config,
        {"sliding_window": None, "rope_parameters": _MINISTRAL_ROPE, "tie_word_embeddings": False},
    ),
    "cohere2": (
        Cohere2Config,
        {
            "num_hidden_layers": 4,
            "rms_norm_eps": ABSENT,
            "head_dim": 16,
            "layer_norm_eps": 1e-2,
            "sliding_window": 31,
            "sliding_window_pattern": 3,
            "logit_scale": 0.5,
            "tie_word_embeddings": False,
        },
    ),
    "starcoder2": (
        Starcoder2Config,
        {
            "rms_norm_eps": ABSENT,
            "head_dim": 16,
            "norm_epsilon": 1e-2,
            "sliding_window": 41,
            "tie_word_embeddings": False,
        },
    ),
    "gpt_neox": (
        GPTNeoXConfig,
        {
            "layer_norm_eps": 1e-2,
            **dict.fromkeys(("num_key_value_heads", "head_dim", "rms_norm_eps"), ABSENT),
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": (
        GPT2Config,
        {
            **dict.fromkeys(COMMON.keys() - {"vocab_size", *_TOKENS}, ABSENT),
            "n_embd": 64,
            "n_layer": 3,
            "n_head": 4,
            "n_inner": 96,
            "n_positions": 1024,
            "layer_norm_epsilon": 1e-2,
            "tie_word_embeddings": False,
        },
    ),
    "deepseek_v2": (
        DeepseekV2Config,
        {
            **_LATENT_SIZES,
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "rope_parameters": _DEEPSEEK_ROPE,
        },
    ),
    "deepseek_v3": (
        DeepseekV3Config,
        {
            **_LATENT_SIZES,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.7,
            "rope_parameters": _DEEPSEEK_ROPE,
            "attention_bias": True,
        },
    ),
    "glm4_moe_lite": (
        Glm4MoeLiteConfig,
        {
            **_LATENT_SIZES,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "rope_interleave": False,
        },
    ),
    "mistral4": (
        Mistral4Config,
        {
            **_LATENT_SIZES,
            # Of both together, the part that turns is a half: transformers multiplies by it.
            "qk_rope_head_dim": 32,
            "head_dim": 64,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.3,
            "rope_parameters": {**_DEEPSEEK_ROPE, "llama_4_scaling_beta": 0.1},
        },
    ),
    "gpt_oss": (
        GptOssConfig,
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "hidden_size": 64,
            "intermediate_size": 32,
            "sliding_window": 27,
            "rope_parameters": _GPT_OSS_ROPE,
            "tie_word_embeddings": False,
        },
    ),
    "minimax_m2": (
        MiniMaxM2Config,
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 32,
            "rotary_dim": 12,
            "tie_word_embeddings": False,
        },
    ),
    # As the small ones are, and as the ones with experts are.
    "gemma4": (
        Gemma4TextConfig,
        {
            **_GEMMA4,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_moe": (
        Gemma4TextConfig,
        {
            **_GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 32,
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        {
            "hidden_size": 72,
            "num_hidden_layers": 8,
            "sliding_window": 29,
            "query_pre_attn_scalar": 40,
            "final_logit_softcapping": 2.0,
            "attn_logit_softcapping": 12.0,
            "rope_parameters": _GEMMA_ROPE,
            "tie_word_embeddings": True,
        },
    ),
}
