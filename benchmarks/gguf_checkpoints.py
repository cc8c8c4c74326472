"""Synthetic checkpoints as GGUF files without a vocabulary, made of those in Hugging Face's layout."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_shapes import GPT_OSS, LARGE, MIXTRAL, MLA, MOE
from safetensors import safe_open
from torch import Tensor


def base_tensors(out: Path, kind: str = "bf16") -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a checkpoint, as they lie in its files."""
    sources = sorted((out / kind).glob("model*.safetensors"))
    if not sources:
        raise SystemExit(f"{out / kind} is missing: make the kind {kind} first.")
    for source in sources:
        with safe_open(source, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - safetensors' handle is not iterable
                yield name, file.get_tensor(name)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_sizes(writer: Any, shape: dict[str, Any]) -> None:
    """What a GGUF file says of a model's dimensions; it has no vocabulary."""
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_tokenizer_model("no_vocab")


def write_gguf(out: Path, kind: str) -> None:
    """One GGUF file without a vocabulary, its matrices in the type `kind`."""
    import gguf

    types = gguf.GGMLQuantizationType
    target = {"bf16": types.BF16, "q8_0": types.Q8_0, "q4_0": types.Q4_0}[kind]
    writer = gguf.GGUFWriter(str(out / f"{kind}.gguf"), "llama")
    write_sizes(writer, LARGE)
    for name, tensor in base_tensors(out):
        base, array = name.removesuffix(".weight"), tensor.float().numpy()
        if base in GGUF_NAMES:
            renamed = GGUF_NAMES[base]
        else:
            _, _, layer, rest = base.split(".", 3)
            renamed = f"blk.{layer}.{GGUF_NAMES[rest]}"
        if array.ndim == 1:
            writer.add_tensor(f"{renamed}.weight", array)
        else:
            writer.add_tensor(f"{renamed}.weight", gguf.quants.quantize(array, target), raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_mixture_gguf(out: Path, *, model: str, kind: str) -> None:
    """A GGUF file of a mixture without a vocabulary: experts are one tensor, and what chooses them is F32."""
    import gguf

    shape, architecture = {"moe": (MOE, gguf.MODEL_ARCH.QWEN3MOE), "mixtral": (MIXTRAL, gguf.MODEL_ARCH.LLAMA)}[model]
    target = gguf.GGMLQuantizationType[kind.upper()]
    writer = gguf.GGUFWriter(str(out / f"{model}.{kind}.gguf"), gguf.MODEL_ARCH_NAMES[architecture], use_temp_file=True)
    write_sizes(writer, shape)
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_expert_count(shape.get("num_experts") or shape["num_local_experts"])
    writer.add_expert_used_count(shape["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(shape.get("moe_intermediate_size", shape["intermediate_size"]))
    names = gguf.get_tensor_name_map(architecture, shape["num_hidden_layers"])
    experts: dict[str, list[Any]] = {}
    for name, tensor in sorted(base_tensors(out, model), key=lambda item: _by_expert(item[0])):
        array = tensor.float().numpy()
        stem = name.removesuffix(".weight")
        if array.ndim == 1 or "gate_inp" in str(names.get_name(stem)):
            writer.add_tensor(f"{names.get_name(stem)}.weight", array)
            continue
        packed = gguf.quants.quantize(array, target)
        merged = re.sub(r"\.experts\.\d+\.", ".experts.", stem)
        if merged == stem:
            writer.add_tensor(f"{names.get_name(stem)}.weight", packed, raw_dtype=target)
            continue
        rows = experts.setdefault(merged, [])
        rows.append(packed)
        if len(rows) == (shape.get("num_experts") or shape["num_local_experts"]):
            writer.add_tensor(f"{names.get_name(merged)}.weight", np.stack(experts.pop(merged)), raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gpt_oss(out: Path) -> None:
    """A GGUF file of gpt-oss without a vocabulary: experts are random blocks of MXFP4, other matrices Q8_0."""
    import gguf

    kinds, shape, random = gguf.GGMLQuantizationType, GPT_OSS, np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(out / "gpt-oss.mxfp4.gguf"), "gpt-oss", use_temp_file=True)
    write_sizes(writer, shape)
    for add, size in ((writer.add_key_length, shape["head_dim"]), (writer.add_value_length, shape["head_dim"])):
        add(size)
    writer.add_sliding_window(shape["sliding_window"])
    writer.add_expert_count(shape["num_local_experts"])
    writer.add_expert_used_count(shape["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(shape["intermediate_size"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    width, inner, experts = shape["hidden_size"], shape["intermediate_size"], shape["num_local_experts"]
    queries, keys = (shape[key] * shape["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))

    def matrix(name: str, outputs: int, inputs: int) -> None:
        values = (random.standard_normal((outputs, inputs), dtype=np.float32) * 0.02).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kinds.Q8_0), raw_dtype=kinds.Q8_0)

    def vector(name: str, *size: int, value: float = 0.0) -> None:
        writer.add_tensor(name, np.full(size, value, np.float32))

    matrix("token_embd", shape["vocab_size"], width)
    for layer in range(shape["num_hidden_layers"]):
        block = f"blk.{layer}."
        for name in ("attn_norm", "post_attention_norm"):
            vector(f"{block}{name}.weight", width, value=1.0)
        for name, outputs, inputs in (
            ("attn_q", queries, width),
            ("attn_k", keys, width),
            ("attn_v", keys, width),
            ("attn_output", width, queries),
        ):
            matrix(f"{block}{name}", outputs, inputs)
            vector(f"{block}{name}.bias", outputs)
        vector(f"{block}attn_sinks.weight", shape["num_attention_heads"])
        router = random.standard_normal((experts, width), dtype=np.float32) * 0.02
        writer.add_tensor(f"{block}ffn_gate_inp.weight", router.astype(np.float32))
        vector(f"{block}ffn_gate_inp.bias", experts)
        for name, outputs, inputs in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            raw = random.integers(0, 256, (experts, outputs, inputs // 32, 17), dtype=np.uint8)
            # Weights of up to 6 times a hundredth.
            raw[..., 0] = random.integers(119, 121, raw.shape[:-1], dtype=np.uint8)
            blocks = raw.reshape(experts, outputs, -1)
            writer.add_tensor(f"{block}ffn_{name}_exps.weight", blocks, raw_dtype=kinds.MXFP4)
            vector(f"{block}ffn_{name}_exps.bias", experts, outputs)
    vector("output_norm.weight", width, value=1.0)
    matrix("output", shape["vocab_size"], width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_latent_gguf(out: Path, *, kind: str) -> None:
    """A GGUF file of the kind mla without a vocabulary: all heads have one key, and ways to it and from it are apart.

    llama.cpp knows that there is no `q_lora_rank` by the 27 layers.
    """
    import gguf

    shape, target = MLA, gguf.GGMLQuantizationType[kind.upper()]
    heads, latent, turning = shape["num_attention_heads"], shape["kv_lora_rank"], shape["qk_rope_head_dim"]
    key, value = shape["qk_nope_head_dim"], shape["v_head_dim"]
    writer = gguf.GGUFWriter(str(out / f"mla.{kind}.gguf"), "deepseek2", use_temp_file=True)
    write_sizes(writer, {**shape, "num_key_value_heads": 1, "head_dim": turning})
    writer.add_kv_lora_rank(latent)
    writer.add_key_length(latent + turning)
    writer.add_value_length(latent)
    writer.add_key_length_mla(key + turning)
    writer.add_value_length_mla(value)
    # Those of DeepSeek-V2-Lite, which no layer has.
    writer.add_leading_dense_block_count(shape["num_hidden_layers"])
    writer.add_expert_feed_forward_length(1408)
    writer.add_expert_count(64)
    writer.add_expert_used_count(6)
    writer.add_expert_shared_count(2)
    writer.add_expert_weights_scale(1.0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, shape["num_hidden_layers"])
    for name, tensor in base_tensors(out, "mla"):
        stem, array = name.removesuffix(".weight"), tensor.float().numpy()
        if array.ndim == 1:
            writer.add_tensor(f"{names.get_name(stem)}.weight", array)
            continue
        parts = {names.get_name(stem): array}
        if stem.endswith("kv_b_proj"):
            block = f"blk.{stem.split('.')[2]}."
            both = array.reshape(heads, key + value, latent)
            parts = {f"{block}attn_k_b": both[:, :key].swapaxes(1, 2), f"{block}attn_v_b": both[:, key:]}
        for part, values in parts.items():
            packed = gguf.quants.quantize(np.ascontiguousarray(values), target)
            writer.add_tensor(f"{part}.weight", packed, raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _by_expert(name: str) -> tuple[str, int]:
    """Experts in their order, part by part."""
    number = re.search(r"\.experts\.(\d+)\.", name)
    return re.sub(r"\.experts\.\d+\.", ".experts.", name), int(number[1]) if number else 0


def write_q4_k_m(out: Path) -> None:
    """llama.cpp's own mix of 4- and 6-bit types, made by its library from the GGUF kind bf16."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    source, target = str(out / "bf16.gguf").encode(), str(out / "q4_k_m.gguf").encode()
    if llama_cpp.llama_model_quantize(source, target, parameters):
        raise SystemExit("llama.cpp could not quantize bf16.gguf: make the kind gguf-bf16 first.")
