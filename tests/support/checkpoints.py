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
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.utils import logging

logging.disable_progress_bar()

VOCAB_SIZE = 320
BOS, EOS = 1, 2
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")

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
    _randomise(model, torch.Generator().manual_seed(seed), unit_offset=float(family == "gemma3"))
    return model.eval()


def load_reference(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """transformers' model of the checkpoint at `path`, with eager attention."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """float32 [tokens, vocab] logits of every position.

    transformers' Gemma 3 reads attn_logit_softcapping but does not hand it to its attention function, so it is given
    with the call.
    """
    cap = getattr(model.config, "attn_logit_softcapping", None)
    extra = {} if cap is None else {"softcap": cap}
    return model(torch.tensor([token_ids]), use_cache=False, **extra).logits[0].float()


@torch.inference_mode()
def reference_states(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """float32 [tokens, width] hidden states of every position, behind the final norm."""
    cap = getattr(model.config, "attn_logit_softcapping", None)
    extra = {} if cap is None else {"softcap": cap}
    return model.model(torch.tensor([token_ids]), use_cache=False, **extra).last_hidden_state[0].float()


@torch.inference_mode()
def peakedness(model: PreTrainedModel, token_ids: list[int]) -> float:
    """Mean over layers, heads and positions of the largest attention probability."""
    attentions = model(torch.tensor([token_ids]), use_cache=False, output_attentions=True).attentions
    return float(torch.stack([layer.amax(-1).mean() for layer in attentions]).mean())


def _randomise(model: PreTrainedModel, generator: torch.Generator, *, unit_offset: float) -> None:
    # A tied head would otherwise find every token most like itself.
    tied = model.config.tie_word_embeddings
    qk_norm = any("q_norm" in name for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            value = 2.6 + 0.3 * noise - unit_offset
        elif "norm" in name:
            # Eight layers of peaked attention add up rounding; halved logits (and cap) halve it in what is compared.
            size = 0.5 if name == "model.norm.weight" and unit_offset else 1.0
            value = size * (1.0 + 0.3 * noise) - unit_offset
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif "embed_tokens" in name:
            value = noise * (0.12 if tied else 1.0)
        else:
            value = noise * parameter.shape[1] ** -0.5
            if name.endswith(("q_proj.weight", "k_proj.weight")) and not qk_norm:
                value = value * 2.2
        parameter.data.copy_(value)


@torch.no_grad()
def _make_confident(model: PreTrainedModel, generator: torch.Generator) -> None:
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    gemma = isinstance(model.config, Gemma3TextConfig)
    for name, parameter in model.named_parameters():
        if gemma and name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            parameter.copy_(0.5 * (1 + parameter) - 1)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.mul_(0.5)
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
