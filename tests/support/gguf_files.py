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

from penstock.loading.gguf import GgufFile
from support import checkpoints
from support.families import BY_FAMILY
from support.gguf_gemma4 import renamed
from support.gguf_orders import in_checkpoint, in_file
from support.gguf_sizes import SHIFTED, layers_of, write_sizes

# Of YaRN, a file has one of the two factors of DeepSeek's models: they are equal.
_EQUAL_FACTORS = {"mscale": 0.6, "mscale_all_dim": 0.6}
_LONG_ROPE = {
    **BY_FAMILY["phi3"][1]["rope_parameters"],
    "short_factor": [1.0 + pair / 16 for pair in range(9)],
    "long_factor": [1.5 + pair / 2 for pair in range(9)],
    "original_max_position_embeddings": 64,
    "attention_factor": None,
}


def _rope(family: str, **changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {**BY_FAMILY[family][1]["rope_parameters"], **changes}}


# What the format has no place for is left out of checkpoints that become files; by family.
IN_GGUF: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {**checkpoints.LLAMA3_ROPE, "original_max_position_embeddings": 8192}},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "gemma3": {"attn_logit_softcapping": None},
    "qwen3_moe": {"mlp_only_layers": []},
    "qwen2_moe": {"decoder_sparse_step": 1, "norm_topk_prob": False, "shared_expert_intermediate_size": 64},
    "mixtral": {"sliding_window": None},
    "olmoe": {},
    "granite": {"mlp_bias": False},
    "granitemoe": {},
    "gemma2": {"query_pre_attn_scalar": 256, "hidden_size": 96},
    "smollm3": {"no_rope_layer_interval": 4, "use_sliding_window": False},
    "olmo2": {},
    "glm4": {},
    "glm4_moe": {},
    "gpt_oss": {},
    "minimax_m2": {},
    "deepseek_v2": _rope("deepseek_v2", **_EQUAL_FACTORS),
    "deepseek_v3": {"attention_bias": False, "q_lora_rank": 64, **_rope("deepseek_v3", **_EQUAL_FACTORS)},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"], "rope_interleave": True, "q_lora_rank": 64},
    "mistral4": {"q_lora_rank": 64, **_rope("mistral4", **_EQUAL_FACTORS)},
    "phi3": {"rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 64},
    "ministral3": {},
    "cohere2": {"sliding_window_pattern": 4, "tie_word_embeddings": True},
    "glm": {"head_dim": 16},
    "olmo3": {},
    "starcoder2": {"sliding_window": 4096},
    "gpt_neox": _rope("gpt_neox", rope_theta=10000.0),
    "gpt2": {},
    "gemma4": {"hidden_size_per_layer_input": 32},
    "gemma4_moe": {},
}
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "smollm3": "smollm3",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax-m2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "mistral4": "mistral4",
    "phi3": "phi3",
    "ministral3": "mistral3",
    "cohere2": "cohere2",
    "glm": "chatglm",
    "olmo3": "olmo2",
    "starcoder2": "starcoder2",
    "gpt_neox": "gptneox",
    "gpt2": "gpt2",
    "gemma4": "gemma4",
}
# Whose converter puts rows that turn together side by side.
_PAIRED = ("llama", "mistral3", "granite", "granitemoe", "smollm3")
# Matrices that are in float32 in all files.
_EXACT = ("ffn_gate_inp", "position_embd")
# Names that checkpoints have and the `gguf` package does not, since its converter cuts these tensors.
_GRANITE_PARTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def write_gguf(
    model: Path,
    file: Path,
    kind: Kind = Kind.F32,
    others: Mapping[str, Kind] | None = None,
    *,
    whole: bool = False,
    **metadata: Any,
) -> Path:
    """The checkpoint in the directory `model` as a file whose matrices are of a kind that `gguf` can make.

    Those whose names have one of the words in `others` are of that kind instead. `whole` files have projections in one
    tensor that others have in several. The checkpoint's matrices become what the file's stand for, so that both are the
    same model.
    """
    config = json.loads((model / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"].removesuffix("_text")]
    writer = gguf.GGUFWriter(file, architecture)
    write_sizes(writer, config, architecture, whole=whole)
    write_tokenizer(writer, model)
    for name, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(name, value)
    tensors = in_file(load_file(model / "model.safetensors"), config, architecture, whole=whole)
    by_name = gguf.get_tensor_name_map(writer_arch(architecture), layers_of(config))
    for name, tensor in tensors.items():
        theirs = _renamed(name, by_name)
        own = next((other for word, other in (others or {}).items() if word in theirs), kind)
        tensors[name] = _write_tensor(writer, theirs, tensor, config, architecture, own)
    finish(writer)
    tensors = in_checkpoint(tensors, config, architecture, whole=whole)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return file


def changed(file: GgufFile, **values: Any) -> GgufFile:
    """What is read of a file, with other metadata; None: without them."""
    metadata = {**file.metadata, **values}
    return GgufFile(file.path, {name: value for name, value in metadata.items() if value is not None}, file.tensors)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def writer_arch(architecture: str) -> gguf.MODEL_ARCH:
    """The package's own name of an architecture."""
    return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _renamed(name: str, by_name: gguf.TensorNameMap) -> str:
    if name.endswith("e_score_correction_bias"):
        # The converter gives it this ending.
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    if name.endswith(".sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    if (of_gemma4 := renamed(name)) is not None:
        return of_gemma4
    stem, _, kind = name.rpartition(".")
    found = by_name.get_name(stem)
    if found is None:
        _, _, number, _, _, part = stem.split(".")
        found = f"blk.{number}.{_GRANITE_PARTS[part]}"
    return f"{found}.{kind}"


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
    paired = config[heads] if architecture in _PAIRED and heads else 0
    if paired:
        values = values.reshape(paired, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    offset = np.float32(architecture in SHIFTED and name.endswith("norm.weight"))
    stored = np.ascontiguousarray(values + offset)
    if tensor.ndim == 1 or any(word in name for word in _EXACT) or name.endswith(".bias"):
        writer.add_tensor(name, stored[0] if "inp_shexp" in name else stored)
        values = stored - offset
    else:
        packed = quantized(stored.reshape(-1, stored.shape[-1]), kind)
        packed = packed.reshape(*stored.shape[:-1], -1)
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
    if "u0800" in text:
        return "deepseek-llm" if "u00b5" in text else "deepseek-coder"
    if "Digits" in text:
        return "smollm"
    if "u4e00" in text:
        return "deepseek-v3"
    if "Lu" in text:
        return "gpt-4o" if "(?i" in text else "tekken"
    if "{1,3}" in text:
        return "llama-bpe"
    return "qwen2" if "Split" in text else "gpt-2"
