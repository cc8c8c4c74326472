"""A trained decoder as an ordinary Hugging Face directory, and back."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.model import Decoder, ModelShape
from training.recipe import WORK, Recipe

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# What a reader of poems wants: varied, but close to what the model is sure of.
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}


def load_tokenizer() -> Tokenizer:
    """The tokenizer that training.tokenizer saved."""
    return Tokenizer.from_file(str(WORK / "tokenizer" / "tokenizer.json"))


def save_weights(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write them in bfloat16 into a directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().to(torch.bfloat16).contiguous() for name, value in tensors.items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    # The library writes files that only their owner may read.
    (directory / "model.safetensors").chmod(0o644)


def export_model(model: Decoder, recipe: Recipe, directory: Path) -> None:
    """Write weights in bfloat16, configuration, sampling defaults and tokenizer."""
    save_weights(model.state_dict(), directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(WORK / "tokenizer" / name, directory / name)
    tokenizer = load_tokenizer()
    ids = {
        f"{role}_token_id": tokenizer.token_to_id(f"<|{word}|>")
        for role, word in (("bos", "begin"), ("eos", "end"), ("pad", "pad"))
    }
    write_json(directory / "config.json", config_of(recipe.shape) | ids)
    write_json(directory / "generation_config.json", SAMPLING | ids)


def fingerprint(*parts: bytes) -> str:
    """A short digest of what something was made from."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(hashlib.blake2b(part).digest())
    return digest.hexdigest()


def weights_fingerprint(directory: Path) -> str:
    """Of the weights of an exported model."""
    return fingerprint((directory / "model.safetensors").read_bytes())


_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}


def _mixture_config_of(shape: ModelShape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.intermediate,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def config_of(shape: ModelShape) -> dict[str, object]:
    """config.json without its token ids."""
    return (_mixture_config_of(shape) if shape.experts else _LLAMA) | {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def write_json(path: Path, value: object) -> None:
    """Indented, with a newline at the end."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def load_model(directory: Path, shape: ModelShape) -> Decoder:
    """The decoder of an exported directory, in float32."""
    model = Decoder(shape)
    model.load_state_dict({name: value.float() for name, value in load_file(directory / "model.safetensors").items()})
    return model.eval()
