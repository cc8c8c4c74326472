"""Write synthetic checkpoints with random weights, in the formats that Penstock and its peers read.

Speed does not depend on what weights say, so random ones measure it; quality needs trained ones.

`bf16` has 1.24 billion parameters in the shape of Llama 3.2 1B, `8b` those of Llama 3.1 8B, `small` 100 million, `toy`
6 layers of width 256, which shows what an engine costs by itself. The quantized kinds are made from `bf16` by rounding
to nearest, so they need it in the same folder.
Needs torch, transformers, tokenizers and safetensors; the GGUF kinds need the gguf package.
"""

import argparse
import glob
import json
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

# Of Llama 3.1 8B: 16 GB.
EIGHT_BILLION = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LARGE = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
TOY = {
    "vocab_size": 32000,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}
# A twelfth of LARGE: slow enough that a client's own work is little beside a step.
SMALL = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
# Mixtures of experts in the shapes of Qwen3-MoE, 3.2 billion parameters of which a token takes 0.6, and of Mixtral, 1.6
# of which it takes 0.6.
MOE = {
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
}
MIXTRAL = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
# gpt-oss with half of its width, 2.6 billion parameters; a token takes 0.5. DeepSeek-V2-Lite without experts: 1.5.
GPT_OSS = {
    "vocab_size": 32000,
    "hidden_size": 1440,
    "intermediate_size": 1440,
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 150000.0,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
}
MLA = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 28,
    "first_k_dense_replace": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 16384,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
}
COMMON = {"tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
GPTQ_GROUP = 128


def main() -> None:
    makers: dict[str, Callable[[Path], None]] = {
        "bf16": lambda out: write_random(out / "bf16", LARGE),
        "8b": lambda out: write_random(out / "8b", EIGHT_BILLION),
        "toy": lambda out: write_random(out / "toy", TOY),
        "small": lambda out: write_random(out / "small", SMALL),
        "moe": lambda out: write_random(out / "moe", MOE, "Qwen3Moe"),
        "mixtral": lambda out: write_random(out / "mixtral", MIXTRAL, "Mixtral"),
        "mla": lambda out: write_random(out / "mla", MLA, "DeepseekV3"),
        "gguf-gpt-oss": write_gpt_oss,
        "w8a8": write_w8a8,
        "gptq": write_gptq,
        "gguf-bf16": lambda out: write_gguf(out, "bf16"),
        "gguf-q8_0": lambda out: write_gguf(out, "q8_0"),
        "gguf-q4_0": lambda out: write_gguf(out, "q4_0"),
        "gguf-q4_k_m": write_q4_k_m,
        **{
            f"gguf-{model}-{kind}": partial(write_mixture_gguf, model=model, kind=kind)
            for model in ("moe", "mixtral")
            for kind in ("q8_0", "q4_0")
        },
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder in which a checkpoint named after its kind is written")
    parser.add_argument("kinds", nargs="+", choices=list(makers), metavar="kind", help=f"any of {', '.join(makers)}")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for kind in arguments.kinds:
        makers[kind](arguments.out)
        print(f"{kind}: written to {arguments.out}")


def write_random(directory: Path, shape: dict[str, Any], family: str = "Llama") -> None:
    """A checkpoint in Hugging Face's layout: bfloat16, normal weights of deviation 0.02."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(COMMON | shape))
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0, 0.02)
    model.tie_weights()
    model.save_pretrained(directory)
    write_tokenizer(directory)


def write_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokenizer of 32,000 tokens, trained on Python's standard library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32000,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train(sorted(glob.glob(f"{sysconfig.get_path('stdlib')}/*.py"))[:200], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = (
        "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    fast.save_pretrained(directory)


def base_tensors(out: Path, kind: str = "bf16") -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a checkpoint, as they lie in its files."""
    sources = sorted((out / kind).glob("model*.safetensors"))
    if not sources:
        raise SystemExit(f"{out / kind} is missing: make the kind {kind} first.")
    for source in sources:
        with safe_open(source, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - safetensors' handle is not iterable
                yield name, file.get_tensor(name)


def write_derived(
    out: Path, kind: str, convert: Callable[[str, Tensor], dict[str, Tensor]], quantization: dict[str, Any]
) -> None:
    """The `bf16` checkpoint with every projection converted; embeddings and norms stay."""
    directory = out / kind
    directory.mkdir(exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, tensor in base_tensors(out):
        tensors.update(convert(name, tensor.float()) if "proj" in name else {name: tensor})
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "bf16" / "config.json").read_text())
    config["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(directory)


def write_w8a8(out: Path) -> None:
    """compressed-tensors: int8 weights with a scale for each channel, int8 activations with one for each token."""

    def convert(name: str, weight: Tensor) -> dict[str, Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 127
        quantized = torch.round(weight / scale).clamp(-127, 127).to(torch.int8)
        return {name: quantized, f"{name}_scale": scale.bfloat16()}

    scheme = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "block_structure": None}
    group = {
        "targets": ["Linear"],
        "output_activations": None,
        "weights": {**scheme, "strategy": "channel", "dynamic": False, "observer": "minmax"},
        "input_activations": {**scheme, "strategy": "token", "dynamic": True, "observer": "memoryless"},
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    write_derived(out, "w8a8", convert, quantization)


def write_gptq(out: Path) -> None:
    """GPTQ's storage format: symmetric 4-bit weights in groups of 128, eight to an int32, without act-order."""

    def convert(name: str, weight: Tensor) -> dict[str, Tensor]:
        rows, columns = weight.shape
        grouped = weight.view(rows, columns // GPTQ_GROUP, GPTQ_GROUP)
        scale = grouped.abs().amax(2) / 7
        levels = (torch.round(grouped / scale[..., None]).clamp(-8, 7) + 8).to(torch.int32)
        transposed = levels.view(rows, columns).t().contiguous()
        packed = torch.zeros(columns // 8, rows, dtype=torch.int32)
        for index in range(8):
            packed |= transposed[index::8] << (4 * index)
        base = name.removesuffix(".weight")
        return {
            f"{base}.qweight": packed,
            f"{base}.scales": scale.t().contiguous().half(),
            f"{base}.qzeros": torch.full((columns // GPTQ_GROUP, rows // 8), 0x77777777, dtype=torch.int32),
            f"{base}.g_idx": (torch.arange(columns) // GPTQ_GROUP).to(torch.int32),
        }

    quantization = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GPTQ_GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }
    write_derived(out, "gptq", convert, quantization)


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


if __name__ == "__main__":
    main()
