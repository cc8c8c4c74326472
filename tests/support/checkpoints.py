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
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.glm4 import Glm4Config
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.mistral4 import Mistral4Config, Mistral4ForCausalLM
from transformers.models.olmo2 import Olmo2Config
from transformers.models.olmo3 import Olmo3Config
from transformers.utils import logging

from support.families import (
    ABSENT,
    BOS,
    BY_FAMILY,
    COMMON,
    EOS,
    EVERY,
    FAMILIES,
    LLAMA3_ROPE,
    MIXTURES,
    NEWER,
    VOCAB_SIZE,
)

logging.disable_progress_bar()
# transformers has the class, and does not know it by its configuration.
AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)

__all__ = ["BOS", "EOS", "EVERY", "FAMILIES", "LLAMA3_ROPE", "MIXTURES", "NEWER", "VOCAB_SIZE"]

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)

# What a block adds to the residual stream.
_LAST = ("o_proj", "down_proj", "c_proj", "attention.dense", "dense_4h_to_h")
_MADE = (
    *(f"{last}.{kind}" for last in _LAST for kind in ("weight", "bias")),
    "experts.down_proj",
    "experts.down_proj_bias",
)


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
    config_class, own = BY_FAMILY[family]
    settings = {**COMMON, **own, **changes}
    config = config_class(**{key: value for key, value in settings.items() if value is not ABSENT})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(model, torch.Generator().manual_seed(seed), unit_offset=float(family in ("gemma2", "gemma3")))
    return model.eval()


def bare_config(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What config.json may say at least, and what transformers makes of that: all that it knows of the family."""
    config_class, own = BY_FAMILY[family]
    bare = {key: own.get(key, COMMON[key]) for key in ("vocab_size", "intermediate_size", "num_hidden_layers")}
    bare = {key: value for key, value in bare.items() if value is not ABSENT}
    # As many heads as any family has KV heads where nothing says how many; those of GPT-NeoX turn a quarter.
    heads = 8 if family == "gpt_neox" else 32
    bare |= {"n_embd": 192} if family == "gpt2" else {"hidden_size": 128, "num_attention_heads": heads}
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
    # Gemma 4 does not divide scores by the root of a head's columns. Its values are as large as its queries.
    newest = hasattr(model.config.get_text_config(), "num_kv_shared_layers")
    peak = 1.15 if newest else 2.6
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            value = peak + 0.3 * noise - unit_offset
        elif "norm" in name or ".ln_" in name or name.endswith(("router.scale", "per_expert_scale")):
            # Eight layers of peaked attention add up rounding; halved logits (and cap) halve it in what is compared.
            size = 0.5 if name == "model.norm.weight" and (unit_offset or newest) else 1.0
            size *= 0.4 if newest and ".post_" in name else 1.0
            value = size * (1.0 + 0.3 * noise) - unit_offset
        elif name.endswith("gate_up_proj_bias"):
            # Large enough for bounds of gates and ups.
            value = 3.0 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif name.endswith("sinks"):
            value = 1.0 + noise
        elif name.endswith(("embed_tokens.weight", "embed_in.weight", "wte.weight", "wpe.weight")):
            value = noise * (0.12 if tied else 1.0)
        else:
            value = noise * parameter.shape[-1] ** -0.5
            if latent and name.endswith(("q_proj.weight", "q_b_proj.weight")):
                value = value * 6
            elif name.endswith(("query_key_value.weight", "c_attn.weight")):
                value = value * 3.5
            elif name.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight")) and not qk_norm:
                value = value * 2.2
        parameter.data.copy_(value)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
        elif name.endswith("layer_scalar"):
            buffer.data.copy_(0.8 + 0.1 * torch.randn(buffer.shape, generator=generator))


@torch.no_grad()
def _make_confident(model: PreTrainedModel, generator: torch.Generator) -> None:
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    gemma = isinstance(model.config, (Gemma2Config, Gemma3TextConfig))
    behind = isinstance(model.config, (Olmo2Config, Olmo3Config, Gemma4TextConfig))
    ends = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "post_per_layer_input_norm.weight")
    if isinstance(model.config, Glm4Config):
        behind, ends = True, ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")
    # Gates that reach their bounds, and values that are as large as queries, make more.
    factor = 0.1 if isinstance(model.config, (GptOssConfig, GPTNeoXConfig)) else 0.5
    for name, parameter in model.named_parameters():
        if gemma and name.endswith(ends):
            parameter.copy_(0.5 * (1 + parameter) - 1)
        elif behind and name.endswith(ends) or name.endswith(_MADE):
            parameter.mul_(factor)
    if model.config.tie_word_embeddings:
        embedding.mul_(2 if gemma or isinstance(model.config, Gemma4TextConfig) else 8)
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
