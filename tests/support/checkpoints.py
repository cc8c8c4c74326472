"""Small random checkpoints of every family, made with transformers, whose every feature changes the logits.

Windows and original context are far below the prompts tested, head_dim is not width / heads, norms and biases are not
at their neutral values, and query and key weights are large, so that attention is peaked.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.glm import GlmConfig
from transformers.models.glm4 import Glm4Config
from transformers.models.glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe_lite import Glm4MoeLiteConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.granite import GraniteConfig
from transformers.models.granitemoe import GraniteMoeConfig
from transformers.models.llama import LlamaConfig
from transformers.models.minimax_m2 import MiniMaxM2Config
from transformers.models.mistral import MistralConfig
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
from transformers.utils import logging

logging.disable_progress_bar()

VOCAB_SIZE = 320
BOS, EOS = 1, 2
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
# Whose layers have experts.
MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe", "gpt_oss", "minimax_m2")
# Whose attention is latent.
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
# Dense ones that differ from those above in a few parts.
VARIANTS = ("gemma2", "phi3", "granite", "smollm3", "olmo2", "olmo3", "glm", "glm4")

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)

_COMMON: dict[str, Any] = {
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
_LLAMA3_ROPE = {
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
_BY_FAMILY: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": _LLAMA3_ROPE, "tie_word_embeddings": False}),
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


# What a block adds to the residual stream.
_MADE = ("o_proj.weight", "o_proj.bias", "down_proj.weight", "experts.down_proj", "experts.down_proj_bias")


def make(
    family: str,
    path: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    confident: bool = False,
    **changes: Any,
) -> Path:
    """Write a checkpoint of `family` (one of FAMILIES) with a tokenizer to `path`; `changes` override its config.

    A `confident` one has a likeliest token as clear as a trained model's; else rounding to bfloat16 alone changes the
    likeliest token at every tenth position.
    """
    model = make_model(family, seed=seed, **changes)
    if confident:
        _make_confident(model, torch.Generator().manual_seed(seed))
    model.to(dtype).save_pretrained(path)
    write_tokenizer(path)
    return path


def make_model(family: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """The model of `make` in float32, with eager attention."""
    config_class, own = _BY_FAMILY[family]
    config = config_class(**{**_COMMON, **own, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(model, torch.Generator().manual_seed(seed), unit_offset=float(family in ("gemma2", "gemma3")))
    return model.eval()


def bare_config(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What config.json may say at least, and what transformers makes of that: all that it knows of the family."""
    config_class, own = _BY_FAMILY[family]
    needed = ("vocab_size", "intermediate_size", "num_hidden_layers")
    # As many heads as any family has KV heads where nothing says how many.
    bare = {key: own.get(key, _COMMON[key]) for key in needed} | {"hidden_size": 128, "num_attention_heads": 32}
    model = AutoModelForCausalLM._model_mapping[config_class].__name__
    return {**bare, "architectures": [model]}, {**config_class(**bare).to_dict(), "architectures": [model]}


def load_reference(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """transformers' model of the checkpoint at `path`, with eager attention."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """float32 [tokens, vocab] logits of every position."""
    return model(torch.tensor([token_ids]), use_cache=False, **_given_with_calls(model)).logits[0].float()


@torch.inference_mode()
def reference_states(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """float32 [tokens, width] hidden states of every position, behind the final norm."""
    return (
        model.model(torch.tensor([token_ids]), use_cache=False, **_given_with_calls(model)).last_hidden_state[0].float()
    )


def _given_with_calls(model: PreTrainedModel) -> dict[str, Any]:
    """Gemma 3 reads attn_logit_softcapping, but does not hand it to its attention function."""
    cap = model.config.attn_logit_softcapping if isinstance(model.config, Gemma3TextConfig) else None
    return {} if cap is None else {"softcap": cap}


@torch.inference_mode()
def peakedness(model: PreTrainedModel, token_ids: list[int]) -> float:
    """Mean over layers, heads and positions of the largest attention probability."""
    attentions = model(torch.tensor([token_ids]), use_cache=False, output_attentions=True).attentions
    return float(torch.stack([layer.amax(-1).mean() for layer in attentions]).mean())


def randomise(model: PreTrainedModel, generator: torch.Generator, *, unit_offset: float) -> None:
    """Give every parameter values by which its feature changes the logits; norms are about 1 - `unit_offset`."""
    # A tied head would otherwise find every token most like itself.
    tied = model.config.tie_word_embeddings
    latent = hasattr(model.config, "kv_lora_rank")
    qk_norm = any("q_norm" in name for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            value = 2.6 + 0.3 * noise - unit_offset
        elif "norm" in name:
            # Eight layers of peaked attention add up rounding; halved logits (and cap) halve it in what is compared.
            size = 0.5 if name == "model.norm.weight" and unit_offset else 1.0
            value = size * (1.0 + 0.3 * noise) - unit_offset
        elif name.endswith("gate_up_proj_bias"):
            # Large enough for bounds of gates and ups.
            value = 3.0 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif name.endswith("sinks"):
            value = 1.0 + noise
        elif "embed_tokens" in name:
            value = noise * (0.12 if tied else 1.0)
        else:
            value = noise * parameter.shape[-1] ** -0.5
            if latent and name.endswith(("q_proj.weight", "q_b_proj.weight")):
                value = value * 8
            elif name.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight")) and not qk_norm:
                value = value * 2.2
        parameter.data.copy_(value)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


@torch.no_grad()
def _make_confident(model: PreTrainedModel, generator: torch.Generator) -> None:
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    gemma = isinstance(model.config, (Gemma2Config, Gemma3TextConfig))
    behind = isinstance(model.config, (Olmo2Config, Olmo3Config))
    ends = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
    if isinstance(model.config, Glm4Config):
        behind, ends = True, ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")
    # Gates that reach their bounds make much larger values.
    factor = 0.1 if isinstance(model.config, GptOssConfig) else 0.5
    for name, parameter in model.named_parameters():
        if gemma and name.endswith(ends):
            parameter.copy_(0.5 * (1 + parameter) - 1)
        elif behind and name.endswith(ends) or name.endswith(_MADE):
            parameter.mul_(factor)
    if model.config.tie_word_embeddings:
        embedding.mul_(2 if gemma else 8)
    else:
        head.copy_(0.3 * embedding[torch.randperm(len(embedding), generator=generator)])


def write_tokenizer(path: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """A byte-level tokenizer with a few merges, BOS before every text, and a chat template, in `path`."""
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("Ġ", "the"), ("o", "n"), ("Ġ", "a"), ("l", "l")]
    words = [*specials, *alphabet, *(left + right for left, right in merges)]
    vocabulary = {word: index for index, word in enumerate(words)}
    assert len(vocabulary) <= vocab_size
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in specials])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
    )
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "model_max_length": 1024,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
