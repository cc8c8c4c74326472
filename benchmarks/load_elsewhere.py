"""Do checkpoints that `penstock quantize` writes mean the same elsewhere?

Makes an environment with transformers and compressed-tensors and one with llama.cpp (some minutes, once), writes MODEL
by every method in compressed-tensors' layouts and as GGUF files, and loads each there: weights must be equal to ours to
the bit, or to ours rounded to the type of their scales, which some ways to load compute in, and of the conversations
that nothing was calibrated on at least 99% of the most likely tokens, where both compute with the weights' numbers.
llama.cpp does so where OpenBLAS multiplies; what it makes of them by itself, with activations of 8 bits, stands beside
it. Ends with status 1 where they are not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import reporting
import torch
from load_tools import environments
from safetensors.torch import load_file
from serving import PENSTOCK
from torch import Tensor

from penstock.assembly.prepare import prepare
from penstock.assembly.scorer import load_scorer
from penstock.compression.scoring import COMPARISON_SEED, conversations
from penstock.configuration.options import EngineOptions
from penstock.loading.gguf_families import FAMILIES
from penstock.loading.gguf_model import name_in_file
from penstock.loading.quantized import Entry, QuantizedEntry
from penstock.loading.tensors import DTYPES, read_tensor
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.recipe import BYTES

METHODS = {
    "gptq, 4 bits": ("--bits", "4"),
    "gptq, 4 bits, zeros": ("--bits", "4", "--asymmetric"),
    "gptq, 3 bits": ("--bits", "3"),
    "gptq, 2 bits": ("--bits", "2"),
    "rtn, 8 bits": ("--method", "rtn", "--bits", "8"),
    "awq, 4 bits": ("--method", "awq"),
    "mixed, 3.5 bits": ("--method", "mixed", "--bits", "3.5"),
    "smoothquant": ("--method", "smoothquant"),
    "fp8": ("--method", "fp8"),
}
FILES = {
    "Q8_0, rtn": ("--format", "Q8_0", "--method", "rtn"),
    "Q8_0, gptq": ("--format", "Q8_0", "--method", "gptq"),
    "Q4_0, gptq": ("--format", "Q4_0", "--method", "gptq"),
    "Q4_0, awq": ("--format", "Q4_0", "--method", "awq"),
    "Q4_K": ("--format", "Q4_K", "--method", "rtn"),
    "Q6_K": ("--format", "Q6_K", "--method", "rtn"),
}
KINDS = {"compressed-tensors": METHODS, "gguf": FILES}
LENGTH = 512
SAME_TOP = 0.99


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="a checkpoint with its tokenizer (default haiku)")
    parser.add_argument("--group-size", default="64", help="of weights with few bits (default 64)")
    parser.add_argument("--texts", type=int, default=16, help="conversations to compare on (default 16)")
    parser.add_argument("--environments", type=Path, default=Path("build"), help="folder (default build)")
    parser.add_argument("--only", choices=KINDS, help="one kind (default both)")
    arguments = parser.parse_args()
    rows, agrees = [], True
    with tempfile.TemporaryDirectory() as folder:
        for kind in [arguments.only] if arguments.only else KINDS:
            for name, options in KINDS[kind].items():
                out = Path(folder) / name.replace(" ", "-")
                equal, weights, top, rounded = compared(arguments, kind, options, out)
                rows.append([name, f"{equal} of {weights}", f"{top:.2%}", "" if rounded is None else f"{rounded:.2%}"])
                agrees &= equal == weights and top >= SAME_TOP
                print(*rows[-1], file=sys.stderr)
    print(
        f"{arguments.model} by transformers {environments.TRANSFORMERS} with compressed-tensors "
        f"{environments.COMPRESSED_TENSORS}, GGUF files by llama-cpp-python {environments.LLAMA_CPP}:\n"
    )
    print(
        reporting.table(
            ["written by", "weights equal to the bit", "same top token", "the same with activations of 8 bits"], rows
        )
    )
    sys.exit(not agrees)


def compared(
    arguments: argparse.Namespace, kind: str, options: tuple[str, ...], out: Path
) -> tuple[int, int, float, float | None]:
    """How many weights are equal, of how many; the share of equal most likely tokens, computed in both ways."""
    if kind == "gguf":
        python, script = environments.llama_cpp(arguments.environments / "llama-cpp"), "read_gguf.py"
        out, grouped = out.with_name(f"{out.name}.gguf"), False
    else:
        python, script = environments.transformers(arguments.environments / "elsewhere"), "read_compressed.py"
        grouped = options[-1] not in BYTES
    groups = ("--group-size", arguments.group_size) if grouped else ()
    command = [*PENSTOCK, "quantize", arguments.model, "--out", str(out), *options, *groups]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # Weights as numbers, and no more: what activations are rounded to differs.
    engine = EngineOptions.of(model=str(out), dtype="float32", quantization="none", speculative="off")
    scorer = load_scorer(engine, LENGTH)
    texts = [text.ids for text in conversations(out, scorer.vocab_size, LENGTH, arguments.texts, seed=COMPARISON_SEED)]
    tokens, result = out.with_name("tokens.json"), out.with_name("theirs.safetensors")
    tokens.write_text(json.dumps(texts), encoding="utf-8")
    reader = Path(__file__).parent / "peers" / script
    subprocess.run([python, reader, out, tokens, result], check=True, stdout=subprocess.DEVNULL)
    theirs = load_file(result)
    ours_top = torch.cat([scorer.logits(ids).argmax(1) for ids in texts])
    shares = []
    for kept in ("logits", "rounded"):
        found = [theirs.pop(name).argmax(1) for place in range(len(texts)) if (name := f"{kept}.{place}") in theirs]
        shares.append(float((torch.cat(found) == ours_top).float().mean()) if found else None)
    prepared = prepare(engine, api_beside=False)
    entries = prepared.checkpoint.locate(prepared.declaration)
    ours = in_file_order(entries, prepared.declaration) if kind == "gguf" else entries
    top, rounded = shares
    assert top is not None, "the reader always writes these"
    return sum(is_ours(each, ours[name]) for name, each in theirs.items()), len(theirs), top, rounded


def in_file_order(entries: Mapping[str, Entry], declaration: ModelDeclaration) -> dict[str, Tensor]:
    """The numbers of a GGUF file's matrices by their names there, and with their rows as they are there."""
    family = next(each for each in FAMILIES.values() if each.architecture == declaration.architecture)
    heads = declaration.decoder.blocks[0].attention.heads
    counts = {"q_proj": heads.query_heads, "k_proj": heads.kv_heads} if family.paired else {}
    found: dict[str, Tensor] = {}
    for tensor, entry in entries.items():
        numbers = read_tensor(entry)
        if numbers.dim() == 2 and (count := counts.get(tensor.split(".")[-2])):
            numbers = numbers.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
        found[name_in_file(tensor, family)] = numbers
    return found


def is_ours(theirs: Tensor, ours: Entry | Tensor) -> bool:
    """Whether a weight is ours, or ours in the type of its scales."""
    if isinstance(ours, Tensor):
        return torch.equal(theirs, ours)
    assert isinstance(ours, QuantizedEntry)
    numbers = read_tensor(ours)
    return torch.equal(theirs, numbers) or torch.equal(theirs, numbers.to(DTYPES[ours.parts["scales"].dtype]).float())


if __name__ == "__main__":
    main()
