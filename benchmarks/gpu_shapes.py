"""Shapes of models whose weights are made on the GPU: their config.json is all of them that is written."""

import json
from pathlib import Path
from typing import Any

from make_checkpoints import COMMON, EIGHT_BILLION, LARGE

_ALL: dict[str, Any] = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
# Prompts of 8,192 tokens are measured, and what comes behind them.
_LONG = {"max_position_embeddings": 16384}
# Of Llama 3.2 1B, 3.1 8B and 3.1 70B, and one small enough for kernels that are interpreted.
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
