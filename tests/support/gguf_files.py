"""GGUF files made of checkpoints with the `gguf` package, as llama.cpp's converter makes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from support import checkpoints

# What the format has no place for is left out of checkpoints that become files; by family.
IN_GGUF: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {**checkpoints._LLAMA3_ROPE, "original_max_position_embeddings": 8192}},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "gemma3": {"attn_logit_softcapping": None},
}
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    model: Path, file: Path, kind: Kind = Kind.F32, others: Mapping[str, Kind] | None = None, **metadata: Any
) -> Path:
    """The checkpoint in the directory `model` as a file whose matrices are of a kind that `gguf` can make.

    Those whose names have one of the words in `others` are of that kind instead. The checkpoint's matrices become what
    the file's stand for, so that both are the same model.
    """
    config = json.loads((model / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"].removesuffix("_text")]
    writer = gguf.GGUFWriter(file, architecture)
    _write_sizes(writer, config, architecture)
    write_tokenizer(writer, model)
    for name, value in metadata.items():
        writer.add_string(name, value)
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        renamed = _renamed(name, architecture)
        own = next((other for word, other in (others or {}).items() if word in renamed), kind)
        tensors[name] = _write_tensor(writer, renamed, tensor, config, architecture, own)
    finish(writer)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return file


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str, architecture: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    _, _, number, inner = stem.split(".", 3)
    names = _BLOCK | (_GEMMA if architecture == "gemma3" else {})
    return f"blk.{number}.{names[inner]}.{kind}"


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(full.get("rope_theta", 10000.0))
    if full.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if full.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(config["head_dim"], full))
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _divisors(head_dim: int, rope: dict[str, Any]) -> np.ndarray[Any, Any]:
    """As the converter computes them."""
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    divisors = []
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(rope["factor"])
        else:
            smooth = rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


# Where scales of float16 stand in blocks that `gguf` can read, but not make.
_SCALES = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ4_NL: (0,),
    Kind.IQ4_XS: (0,),
}


def quantized(values: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """Rows of blocks; of kinds that `gguf` cannot make, any blocks with numbers of a usual size."""
    if kind not in _SCALES:
        return gguf.quants.quantize(values, kind)
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    luck = np.random.default_rng(values.size)
    blocks = luck.integers(0, 256, (values.size // elements, nbytes), dtype=np.uint8)
    for place in _SCALES[kind]:
        scales = luck.uniform(1e-4, 3e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8)
    return blocks.reshape(values.shape[0], -1)


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, config: dict[str, Any], architecture: str, kind: Kind
) -> torch.Tensor:
    """Write it, and return what it now stands for."""
    values = tensor.float().numpy()
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name.split(".")[-2])
    paired = config[heads] if architecture == "llama" and heads else 0
    if paired:
        values = values.reshape(paired, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    offset = np.float32(architecture == "gemma3" and name.endswith("norm.weight"))
    stored = np.ascontiguousarray(values + offset)
    if tensor.ndim == 1:
        writer.add_tensor(name, stored)
        values = stored - offset
    else:
        packed = quantized(stored, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        values = gguf.quants.dequantize(packed, kind)
    if paired:
        values = values.reshape(paired, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.ascontiguousarray(values))


def write_tokenizer(writer: gguf.GGUFWriter, model: Path) -> None:
    """The tokenizer in a checkpoint's directory."""
    raw = json.loads((model / "tokenizer.json").read_text())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    vocabulary = dict(raw["model"]["vocab"])
    added = {token["content"]: token for token in raw["added_tokens"]}
    vocabulary |= {content: token["id"] for content, token in added.items()}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in raw["model"]["merges"]]
    byte_level = "ByteLevel" in json.dumps(raw["pre_tokenizer"])
    kinds = [_kind(token, added, raw["model"].get("unk_token")) for token in tokens]
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if byte_level:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre(raw["pre_tokenizer"]))
        writer.add_token_merges(merges)
    else:
        writer.add_tokenizer_model("llama")
        # As SentencePiece numbers what it has learnt: what comes first is merged first.
        ranks = {merge.replace(" ", ""): rank for rank, merge in reversed(list(enumerate(merges)))}
        writer.add_token_scores([-float(ranks.get(token, len(merges))) for token in tokens])
        writer.add_add_space_prefix("Prepend" in json.dumps(raw["normalizer"]))
    for name, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        token = settings.get(f"{name}_token")
        if token in vocabulary:
            add(vocabulary[token])
    begins = json.dumps(raw.get("post_processor")).count(json.dumps(settings.get("bos_token"))) > 0
    writer.add_add_bos_token(begins)
    template = model / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())
    elif "chat_template" in settings:
        writer.add_chat_template(settings["chat_template"])


def _kind(token: str, added: dict[str, Any], unknown: str | None) -> int:
    if token == unknown:
        return 2
    if token in added:
        return 3 if added[token]["special"] else 4
    return 6 if len(token) == 6 and token.startswith("<0x") else 1


def _pre(pre_tokenizer: dict[str, Any]) -> str:
    text = json.dumps(pre_tokenizer)
    if "Digits" in text:
        return "smollm"
    if "{1,3}" in text:
        return "llama-bpe"
    return "qwen2" if "Split" in text else "gpt-2"
