"""GGUF files made of checkpoints with the `gguf` package, as llama.cpp's converter makes them."""

import json
import re
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
}
# Whose converter puts rows that turn together side by side.
_PAIRED = ("llama", "granite", "granitemoe", "smollm3")
_SHIFTED = ("gemma2", "gemma3")
# Names that checkpoints have and the `gguf` package does not, since its converter cuts these tensors.
_GRANITE_PARTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


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
    tensors = _gpt_oss_apart(tensors) if architecture == "gpt-oss" else _merged(tensors)
    by_name = gguf.get_tensor_name_map(writer_arch(architecture), config["num_hidden_layers"])
    for name, tensor in tensors.items():
        renamed = _renamed(name, by_name)
        own = next((other for word, other in (others or {}).items() if word in renamed), kind)
        tensors[name] = _write_tensor(writer, renamed, tensor, config, architecture, own)
    finish(writer)
    tensors = _gpt_oss_together(tensors) if architecture == "gpt-oss" else _apart(tensors)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return file


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def writer_arch(architecture: str) -> gguf.MODEL_ARCH:
    """The package's own name of an architecture."""
    return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _merged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With all experts of a layer in one tensor, as files have them."""
    found: dict[str, torch.Tensor] = {}
    for name in tensors:
        match = re.fullmatch(r"(.+\.experts)\.(\d+)\.(.+)", name)
        if match is None:
            found[name] = tensors[name]
        elif match[2] == "0":
            count = sum(each.startswith(f"{match[1]}.") and each.endswith(f".{match[3]}") for each in tensors)
            found[f"{match[1]}.{match[3]}"] = torch.stack(
                [tensors[f"{match[1]}.{number}.{match[3]}"] for number in range(count)]
            )
    # transformers has Granite's so.
    for name in [each for each in found if each.endswith(("input_linear.weight", "output_linear.weight"))]:
        layer, whole = name.rsplit(".", 2)[0], found.pop(name)
        parts = ("gate_proj", "up_proj") if "input" in name else ("down_proj",)
        for part, tensor in zip(parts, whole.chunk(len(parts), dim=1), strict=True):
            found[f"{layer}.experts.{part}.weight"] = tensor.contiguous()
    return found


def _experts_and_others(
    tensors: dict[str, torch.Tensor],
) -> tuple[dict[tuple[str, str], torch.Tensor], dict[str, torch.Tensor]]:
    """Those of experts by what stands before and after `.experts.`, and the others by name."""
    experts: dict[tuple[str, str], torch.Tensor] = {}
    others: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, part = name.rpartition(".experts.")
        if prefix:
            experts[prefix, part] = tensor
        else:
            others[name] = tensor
    return experts, others


def _gpt_oss_apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With matrices of experts as rows of outputs, and gates and ups, which take turns, as two tensors."""
    experts, found = _experts_and_others(tensors)
    for (prefix, part), tensor in experts.items():
        stem, kind = part.removesuffix("_bias"), "bias" if part.endswith("_bias") else "weight"
        rows = tensor if kind == "bias" else tensor.transpose(1, 2)
        parts = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if stem == "gate_up_proj" else {stem: rows}
        found |= {f"{prefix}.experts.{each}.{kind}": own.contiguous() for each, own in parts.items()}
    return found


def _gpt_oss_together(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The reverse."""
    experts, found = _experts_and_others(tensors)
    for (prefix, part), tensor in experts.items():
        stem, _, kind = part.rpartition(".")
        if stem == "up_proj":
            continue
        rows = tensor
        if stem == "gate_proj":
            stem = "gate_up_proj"
            rows = torch.stack((tensor, tensors[f"{prefix}.experts.up_proj.{kind}"]), dim=2).flatten(1, 2)
        whole = rows if kind == "bias" else rows.transpose(1, 2)
        found[f"{prefix}.experts.{stem}{'_bias' if kind == 'bias' else ''}"] = whole.contiguous()
    return found


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The reverse."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 3:
            prefix, _, part = name.rpartition(".experts.")
            found |= {f"{prefix}.experts.{number}.{part}": each.clone() for number, each in enumerate(tensor)}
        else:
            found[name] = tensor
    return found


def _renamed(name: str, by_name: gguf.TensorNameMap) -> str:
    if name.endswith("e_score_correction_bias"):
        # The converter gives it this ending.
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    if name.endswith(".sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    stem, _, kind = name.rpartition(".")
    found = by_name.get_name(stem)
    if found is None:
        _, _, number, _, _, part = stem.split(".")
        found = f"blk.{number}.{_GRANITE_PARTS[part]}"
    return f"{found}.{kind}"


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
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])
    if full.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(config["head_dim"], full))
    if architecture in (*_SHIFTED, "gpt-oss"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture in _SHIFTED:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture == "gemma3":
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if architecture.startswith("granite"):
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    _write_experts(writer, config)


def _write_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    experts = next(
        (config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in config), 0
    )
    if not experts:
        return
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config["model_type"] in ("glm4_moe", "minimax_m2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config["model_type"] == "glm4_moe":
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])


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
    paired = config[heads] if architecture in _PAIRED and heads else 0
    if paired:
        values = values.reshape(paired, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    offset = np.float32(architecture in _SHIFTED and name.endswith("norm.weight"))
    stored = np.ascontiguousarray(values + offset)
    if tensor.ndim == 1 or "ffn_gate_inp" in name or name.endswith(".bias"):
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
    if "Digits" in text:
        return "smollm"
    if "{1,3}" in text:
        return "llama-bpe"
    return "qwen2" if "Split" in text else "gpt-2"
