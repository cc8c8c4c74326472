"""Random Medusa heads and EAGLE heads on disk, in the layouts they are published in, and what they compute in torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from penstock.loading.hub import resolve_model

Tensors = dict[str, Tensor]


def _write(path: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


def medusa_tensors(width: int, vocabulary: int, heads: int, layers: int, *, bias: bool, seed: int = 0) -> Tensors:
    """By their newer names."""
    luck = torch.Generator().manual_seed(seed)
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"blocks.{head}.layers.{layer}.weight"] = torch.randn(width, width, generator=luck) / width**0.5
            if bias:
                tensors[f"blocks.{head}.layers.{layer}.bias"] = torch.randn(width, generator=luck)
        tensors[f"lm_heads.{head}.weight"] = torch.randn(vocabulary, width, generator=luck) / width**0.5
    return tensors


def write_medusa(
    path: Path, width: int, vocabulary: int, heads: int = 3, layers: int = 2, *, bias: bool = False, first: bool = False
) -> Path:
    """The `first` releases name their tensors and settings otherwise."""
    tensors = medusa_tensors(width, vocabulary, heads, layers, bias=bias)
    if not first:
        config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": width}
        sizes = {"vocab_size": vocabulary, "num_heads": heads, "num_hidden_layers": layers, "max_paths": 64, "topk": 10}
        return _write(path, {**config, **sizes}, tensors)
    renamed = {}
    for name, tensor in tensors.items():
        kind, head, *rest = name.split(".")
        place = f"{rest[1]}.linear.{rest[2]}" if kind == "blocks" else f"{layers}.weight"
        renamed[f"{head}.{place}"] = tensor
    sizes = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "some/model"}
    return _write(path, sizes, renamed)


def medusa_logits(tensors: Tensors, states: Tensor, heads: int, layers: int) -> list[Tensor]:
    """Cai et al., section 2.1: x + silu(W x + b), then a projection."""
    found = []
    for head in range(heads):
        x = states
        for layer in range(layers):
            name = f"blocks.{head}.layers.{layer}"
            x = x + functional.silu(functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias")))
        found.append(functional.linear(x, tensors[f"lm_heads.{head}.weight"]))
    return found


def write_eagle(
    path: Path, target: Mapping[str, Any], layers: int = 1, *, bias: bool = False, seed: int = 0
) -> Tensors:
    """A head for the model whose config.json is `target`; its tensors."""
    luck = torch.Generator().manual_seed(seed)
    width, inner = target["hidden_size"], 80
    heads, kv_heads, size = 4, 2, 16
    config = {
        **{name: target[name] for name in ("hidden_size", "vocab_size", "max_position_embeddings")},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
    }
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, 2 * width)}
    if bias:
        shapes["fc.bias"] = (width,)
    for layer in range(layers):
        name = f"layers.{layer}"
        shapes |= {f"{name}.self_attn.q_proj.weight": (heads * size, width)}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (kv_heads * size, width) for part in "kv"}
        shapes |= {f"{name}.self_attn.o_proj.weight": (width, heads * size)}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (width, inner), f"{name}.post_attention_layernorm.weight": (width,)}
        if layer:
            shapes[f"{name}.input_layernorm.weight"] = (width,)
    tensors = {name: torch.randn(shape, generator=luck) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    _write(path, config, tensors)
    return tensors


def write_haiku_heads(folder: Path) -> dict[str, str]:
    """Random heads of both kinds for the bundled model; their directories."""
    config = json.loads((resolve_model("haiku") / "config.json").read_text())
    write_medusa(folder / "medusa", config["hidden_size"], config["vocab_size"], layers=1, bias=True)
    write_eagle(folder / "eagle", config)
    return {kind: str(folder / kind) for kind in ("medusa", "eagle")}
