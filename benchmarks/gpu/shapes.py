"""Shapes of models whose weights are made on the GPU: their config.json is all of them that is written."""

import json
from pathlib import Path
from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 16384,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Of Llama 3.2 1B, 3.1 8B and 3.1 70B, and one small enough for kernels that are interpreted.
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "tiny": {
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


def write_config(folder: Path, shape: str) -> Path:
    """A folder with the config.json of a shape, for `--load-format dummy`."""
    directory = folder / shape
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_LLAMA | SHAPES[shape]), encoding="utf-8")
    return directory
