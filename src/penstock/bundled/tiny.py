"""A tiny Llama-shaped checkpoint with random weights: it answers with noise, in milliseconds, on any machine."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ConfigurationError

# The number rises whenever what is written changes, so that nobody meets what an older version made.
NAME = "tiny-random-1"
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>")
LAYERS, WIDTH, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 4, 128, 384, 4, 2, 32
CONTEXT = 4096
CHAT_TEMPLATE = (
    "<|bos|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|eos|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def cache_directory() -> Path:
    """Where Penstock keeps what it made itself: $XDG_CACHE_HOME/penstock, or ~/.cache/penstock."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "penstock"


def tiny_checkpoint(directory: Path | None = None) -> Path:
    """The checkpoint's directory, made if it is not there. Several processes may ask at once.

    Raises ConfigurationError where it cannot be made.
    """
    target = directory or cache_directory() / NAME
    try:
        if not (target / "config.json").exists():
            _make(target)
    except OSError as error:
        raise ConfigurationError(
            f"The tiny model cannot be written to {target} ({error.strerror}); set XDG_CACHE_HOME to a folder that can "
            "be written to, or give a model."
        ) from None
    return target


def _make(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / NAME
        made.mkdir()
        write_tiny_checkpoint(made)
        try:
            made.rename(target)
        except OSError:
            # Another process was quicker; its checkpoint is the same.
            if not (target / "config.json").exists():
                raise


def write_tiny_checkpoint(directory: Path) -> None:
    """Write config, weights (seeded) and a byte-level tokenizer into an empty directory."""
    from safetensors.numpy import save_file

    vocabulary = _write_tokenizer(directory)
    save_file(_weights(vocabulary), directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def _weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(0)

    def random(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)

    tensors = {
        "model.embed_tokens.weight": random(vocabulary, WIDTH),
        "model.norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, WIDTH),
            f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, WIDTH),
            f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, WIDTH),
            f"{prefix}.self_attn.o_proj.weight": random(WIDTH, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": random(INTERMEDIATE, WIDTH),
            f"{prefix}.mlp.up_proj.weight": random(INTERMEDIATE, WIDTH),
            f"{prefix}.mlp.down_proj.weight": random(WIDTH, INTERMEDIATE),
            f"{prefix}.input_layernorm.weight": np.ones(WIDTH, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
        }
    return tensors


def _write_tokenizer(directory: Path) -> int:
    """A byte-level tokenizer without merges; returns its size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": CONTEXT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return int(tokenizer.get_vocab_size(with_added_tokens=True))
