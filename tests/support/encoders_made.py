"""Small encoders with random weights, as directories and as the GGUF files that a converter would write of them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from support.gguf_files import finish, quantized, writer_arch
from support.tokenizers_made import write_words

WORDS = [f"word{number}" for number in range(60)]
VOCABULARY = len(WORDS) + 5
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
    "initializer_range": 0.3,
}
_SPECIAL = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
ENCODERS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "bert": ("bert", lambda: transformers.BertConfig(**SMALL)),
    "roberta": ("bert", lambda: transformers.RobertaConfig(**SMALL, type_vocab_size=1, pad_token_id=1)),
    "nomic": ("nomic-bert", lambda: transformers.NomicBertConfig(**SMALL, head_dim=16)),
    "modernbert": ("modern-bert", lambda: transformers.ModernBertConfig(**SMALL, local_attention=16, **_SPECIAL)),
    "embeddinggemma": (
        "gemma-embedding",
        lambda: transformers.Gemma3TextConfig(
            **{**SMALL, "initializer_range": 0.1, "num_hidden_layers": 7},
            num_key_value_heads=2,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=14,
            use_bidirectional_attention=True,
        ),
    ),
}
# Rows of a table of positions that are of padding.
_OF_PADDING = {"roberta": 2}
_DENSE = (96, 64)


def make(family: str, folder: Path) -> Path:
    """A checkpoint of a family, as sentence-transformers would have it: the mean, of length 1."""
    torch.manual_seed(len(family))
    model = transformers.AutoModel.from_config(ENCODERS[family][1]()).eval()
    for name, parameter in model.named_parameters():
        # Biases begin at 0 and norms at 1, where they would not be seen.
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    write_words(folder, WORDS)
    kinds = ["Transformer", "Pooling", *(["Dense", "Dense"] if family == "embeddinggemma" else []), "Normalize"]
    listed = []
    for number, kind in enumerate(kinds):
        path = "" if number == 0 else f"{number}_{kind}"
        listed.append({"path": path, "type": f"sentence_transformers.models.{kind}"})
        if kind == "Pooling":
            _write(folder / path / "config.json", {"pooling_mode_mean_tokens": True})
        if kind == "Dense":
            outputs = _DENSE[number - 2]
            inputs = SMALL["hidden_size"] if number == 2 else _DENSE[0]
            activation = "torch.nn.modules.linear.Identity"
            said = {"in_features": inputs, "out_features": outputs, "bias": False, "activation_function": activation}
            _write(folder / path / "config.json", said)
            weight = torch.randn(outputs, int(inputs)) / 8
            save_file({"linear.weight": weight}, folder / path / "model.safetensors")
    _write(folder / "modules.json", listed)
    return folder


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_gguf(family: str, model: Path, file: Path, kind: Kind = Kind.F32, **metadata: Any) -> Path:
    """The file of a checkpoint that `make` made, with matrices of a kind; and further metadata."""
    architecture, config = ENCODERS[family][0], json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(file, architecture)
    layers = config["num_hidden_layers"]
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"] - _OF_PADDING.get(family, 0))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    _write_own(writer, family, config)
    write_tokenizer(writer, model, config.get("type_vocab_size", 1))
    for name, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool}[type(value)]
        add(name, value)
    by_name = gguf.get_tensor_name_map(writer_arch(architecture), layers)
    for name, tensor in tensors_of(family, model).items():
        stem, _, end = name.rpartition(".")
        theirs = name if stem.startswith("dense_") else f"{by_name.get_name(stem)}.{end}"
        values = np.ascontiguousarray(tensor.float().numpy())
        if family == "embeddinggemma" and name.endswith("norm.weight"):
            values = values + 1.0
        if values.ndim == 1 or any(word in theirs for word in ("position_embd", "token_types", "token_embd")):
            writer.add_tensor(theirs, values)
        else:
            writer.add_tensor(theirs, quantized(values, kind), raw_dtype=kind)
    finish(writer)
    return file


def tensors_of(family: str, model: Path) -> dict[str, torch.Tensor]:
    """What the converter takes of a checkpoint."""
    found = {
        name: tensor
        for name, tensor in load_file(model / "model.safetensors").items()
        if "pooler" not in name and not name.endswith("position_ids")
    }
    for name in found:
        if name.endswith("position_embeddings.weight"):
            found[name] = found[name][_OF_PADDING.get(family, 0) :]
    for number in (2, 3):
        path = model / f"{number}_Dense" / "model.safetensors"
        if path.exists():
            found[f"dense_{number}.weight"] = load_file(path)["linear.weight"]
    return found


def _write_own(writer: gguf.GGUFWriter, family: str, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or {}
    if family == "embeddinggemma":
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        for number, (inputs, outputs) in enumerate(((64, _DENSE[0]), _DENSE), 2):
            writer.add_uint32(f"gemma-embedding.dense_{number}_feat_in", inputs)
            writer.add_uint32(f"gemma-embedding.dense_{number}_feat_out", outputs)
        return
    writer.add_layer_norm_eps(config["norm_eps" if family == "modernbert" else "layer_norm_eps"])
    if family == "nomic":
        writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if family == "modernbert":
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_sliding_window(config["local_attention"])
        writer.add_uint32("modern-bert.attention.sliding_window_pattern", 3)


def write_tokenizer(writer: gguf.GGUFWriter, model: Path, types: int = 2) -> None:
    """BERT's tokenizer in a checkpoint's directory, of a model with so many types of tokens."""
    raw = json.loads((model / "tokenizer.json").read_text())
    special = {token["content"] for token in raw["added_tokens"] if token["special"]}
    vocabulary = raw["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_type_count(types)
    writer.add_token_list([token if token in special else _in_file(token) for token in tokens])
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_unk_token_id(vocabulary["[UNK]"])
    writer.add_sep_token_id(vocabulary["[SEP]"])
    writer.add_pad_token_id(vocabulary["[PAD]"])
    writer.add_uint32("tokenizer.ggml.cls_token_id", vocabulary["[CLS]"])
    writer.add_bos_token_id(vocabulary["[CLS]"])
    writer.add_eos_token_id(vocabulary["[SEP]"])


def _in_file(token: str) -> str:
    return token[2:] if token.startswith("##") else f"\u2581{token}"
