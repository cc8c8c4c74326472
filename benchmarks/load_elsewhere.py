"""Do checkpoints that `penstock quantize` writes mean the same elsewhere?

Makes an environment with transformers and compressed-tensors (a few minutes, once), writes MODEL by every method in
compressed-tensors' layouts, and loads each there: weights must be equal to ours to the bit, or to ours rounded to the
type of their scales, which some of its ways to load compute in, and of the conversations that nothing was calibrated on
at least 99% of the most likely tokens. Ends with status 1 where they are not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import reporting
import torch
from load_tools import environments
from safetensors.torch import load_file
from serving import PENSTOCK

from penstock.assembly.prepare import prepare
from penstock.assembly.scoring import COMPARISON_SEED, Scorer, conversations
from penstock.core.config import EngineOptions
from penstock.loading.quantized import Entry, QuantizedEntry
from penstock.loading.tensors import DTYPES, read_tensor
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
SAME_TOP = 0.99


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="a checkpoint with its tokenizer (default haiku)")
    parser.add_argument("--group-size", default="64", help="of weights with few bits (default 64)")
    parser.add_argument("--texts", type=int, default=16, help="conversations to compare on (default 16)")
    parser.add_argument("--environment", type=Path, default=Path("build/elsewhere"), help="default build/elsewhere")
    arguments = parser.parse_args()
    python = environments.transformers(arguments.environment)
    rows, agrees = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name, options in METHODS.items():
            equal, weights, top = compared(python, arguments, options, Path(folder) / name.replace(" ", "-"))
            rows.append([name, f"{equal} of {weights}", f"{top:.2%}"])
            agrees &= equal == weights and top >= SAME_TOP
            print(*rows[-1], file=sys.stderr)
    versions = f"transformers {environments.TRANSFORMERS}, compressed-tensors {environments.COMPRESSED_TENSORS}"
    print(f"{arguments.model} by {versions}:\n")
    print(reporting.table(["written by", "weights equal to the bit", "same top token"], rows))
    sys.exit(not agrees)


def compared(
    python: Path, arguments: argparse.Namespace, options: tuple[str, ...], out: Path
) -> tuple[int, int, float]:
    """How many weights are equal, of how many; and the share of equal most likely tokens."""
    bytes_for_each = options[-1] in BYTES
    groups = () if bytes_for_each else ("--group-size", arguments.group_size)
    command = [*PENSTOCK, "quantize", arguments.model, "--out", str(out), *options, *groups]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # Weights as numbers, and no more: what activations are rounded to differs.
    engine = EngineOptions(model=str(out), dtype="float32", quantization="none", speculative="off")
    scorer = Scorer(engine, 512)
    texts = [text.ids for text in conversations(out, scorer.vocab_size, 512, arguments.texts, seed=COMPARISON_SEED)]
    tokens, result = out / "tokens.json", out / "theirs.safetensors"
    tokens.write_text(json.dumps(texts), encoding="utf-8")
    script = Path(__file__).parent / "peers" / "read_compressed.py"
    subprocess.run([python, script, out, tokens, result], check=True, stdout=subprocess.DEVNULL)
    theirs = load_file(result)
    prepared = prepare(engine, api_beside=False)
    entries = prepared.checkpoint.locate(prepared.declaration)
    weights = [name for name in theirs if not name.startswith("logits.")]
    equal = sum(is_ours(theirs[name], entries[name]) for name in weights)
    same = torch.cat(
        [scorer.logits(ids).argmax(1) == theirs[f"logits.{number}"].argmax(1) for number, ids in enumerate(texts)]
    )
    return equal, len(weights), float(same.float().mean())


def is_ours(theirs: torch.Tensor, entry: Entry) -> bool:
    """Whether a weight is ours, or ours in the type of its scales."""
    assert isinstance(entry, QuantizedEntry)
    ours = read_tensor(entry)
    return torch.equal(theirs, ours) or torch.equal(theirs, ours.to(DTYPES[entry.parts["scales"].dtype]).float())


if __name__ == "__main__":
    main()
