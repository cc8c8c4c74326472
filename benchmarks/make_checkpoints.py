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
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from checkpoint_shapes import EIGHT_BILLION, GPT_OSS, LARGE, MIXTRAL, MLA, MOE, SMALL, TOY
from gguf_checkpoints import (
    base_tensors,
    write_gguf,
    write_gpt_oss,
    write_latent_gguf,
    write_mixture_gguf,
    write_q4_k_m,
)
from safetensors.torch import save_file
from torch import Tensor

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
        "gpt-oss": lambda out: write_random(out / "gpt-oss", GPT_OSS, "GptOss"),
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
        "gguf-mla-q4_0": partial(write_latent_gguf, kind="q4_0"),
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


if __name__ == "__main__":
    main()
