"""What bounding a context costs in quality, beside kvpress and OpenVINO GenAI, on the same prompts and weights.

    python benchmarks/bounded_peers.py MODEL [--kvpress PYTHON] [--openvino PYTHON] [--length 2048] [--trials 10]

MODEL is a GGUF file with a chat template; benchmarks/trained_weights.py says where some come from. All take its weights
as numbers and compute in bfloat16. Needles, pairs and perplexity are those of benchmarks/bounded_contexts.py: each
engine gets the same token ids and may hold the same number of tokens. PYTHON is the interpreter of an environment of
its own:

    python -m venv KVPRESS
    KVPRESS/bin/pip install torch==2.13.0
    KVPRESS/bin/pip install torch==2.13.0 kvpress

and for OpenVINO the one in peers/README.md. `--keep FOLDER` keeps trials and answers.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import reporting
from bounded_contexts import (
    BLOCK,
    PARTS,
    Trial,
    answered,
    bounds,
    documentation,
    perplexity,
    scored_texts,
    trials_of,
    words,
)
from comparison.children import run_child
from trained_weights import tensors_of, write

from penstock import LLM
from penstock.core.kv_policy import POLICY_KINDS
from penstock.llm import chat_encoder
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.end_tokens import end_tokens

TASKS = ("needle", "pair")
TOKENS = 24
DRIVERS = {"kvpress": "bounded_kvpress.py", "openvino": "bounded_openvino.py"}


class Row(NamedTuple):
    """What an engine held, and how many answers were right."""

    who: str
    policy: str
    held: int | None
    needle: int
    pair: int
    perplexity: float | None


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", type=Path)
    for name in DRIVERS:
        parser.add_argument(f"--{name}", metavar="PYTHON", help="the interpreter of its environment")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a text (default 2048)")
    parser.add_argument("--trials", type=int, default=10, help="of each kind (default 10)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of peers (default: all cores)")
    parser.add_argument("--model-type", default="llama", help="of transformers (default llama)")
    parser.add_argument("--time-limit", type=float, default=3600, help="seconds for each peer (default 3600)")
    parser.add_argument("--keep", type=Path, help="a folder for trials and answers")
    arguments = parser.parse_args()
    llm = LLM(
        str(arguments.model),
        dtype="bfloat16",
        quantization="none",
        speculative="off",
        max_model_len=arguments.length + 512,
        max_num_seqs=4,
    )
    haystack = words(llm, documentation(), arguments.length - 200)
    trials = {task: trials_of(task, arguments.trials, arguments.length, haystack) for task in TASKS}
    held = [int(part * arguments.length) // BLOCK * BLOCK for part in PARTS]
    rows: list[Row] = []
    notes = [f"Right answers of {arguments.trials}."]
    for row in own(llm, trials, held, arguments.length):
        tell(row)
        rows.append(row)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        stop = end_tokens(open_checkpoint(arguments.model), llm.tokenizer, llm.vocab_size).ids
        (folder / "trials.json").write_text(json.dumps(as_ids(llm, trials, held, arguments.length, stop)))
        config, tensors = tensors_of(arguments.model)
        checkpoint = Path(temporary) / "model"
        write(checkpoint, {**config, "model_type": arguments.model_type, "dtype": "float32"}, tensors)
        del tensors
        for name, python in ((name, getattr(arguments, name)) for name in DRIVERS):
            if python is None:
                continue
            figures = answers_of(name, python, checkpoint, folder, arguments)
            rows += judged(llm, name, figures, trials)
            notes.append(", ".join(f"{package} {version}" for package, version in figures["versions"].items()) + ".")
    reporting.report(
        f"{arguments.model.stem}: what is left of {arguments.length:,} tokens",
        ("engine", "policy", "tokens held", "needle", "key and value", "perplexity"),
        rows,
        " ".join(notes),
    )


def tell(row: Row) -> None:
    """What there is so far; a table comes at the end."""
    print(*row, file=sys.stderr, flush=True)


def own(llm: LLM, trials: dict[str, list[Trial]], held: Sequence[int], length: int) -> Iterator[Row]:
    """Penstock's rows."""
    for kind, tokens in ((None, None), *((kind, tokens) for kind in POLICY_KINDS for tokens in held)):
        policy = None if kind is None or tokens is None else bounds(kind, tokens)
        right = [answered(llm, trials[task], policy) for task in TASKS]
        yield Row("Penstock", kind or "all", tokens, *right, perplexity(llm, policy, scored_texts(llm, length)))


def as_ids(
    llm: LLM, trials: dict[str, list[Trial]], held: Sequence[int], length: int, stop: Sequence[int]
) -> dict[str, Any]:
    """What peers get: token ids, so that no tokenizer or template is between them and the same prompts."""
    assert llm.tokenizer is not None
    encoder = chat_encoder(llm.tokenizer)
    return {
        "prompts": {task: [encoder.encode(each.messages) for each in trials[task]] for task in TASKS},
        "texts": scored_texts(llm, length),
        "held": held,
        "tokens": TOKENS,
        "stop": stop,
    }


def answers_of(name: str, python: str, checkpoint: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a driver printed."""
    driver = Path(__file__).parent / "peers" / DRIVERS[name]
    command = [python, str(driver), str(checkpoint), str(folder / "trials.json"), "--threads", str(arguments.threads)]
    outcome = run_child(command, arguments.time_limit)
    if outcome.figures is None:
        raise SystemExit(f"{name}: {outcome.error}")
    (folder / f"{name}.json").write_text(json.dumps(outcome.figures))
    return outcome.figures


def judged(llm: LLM, name: str, figures: dict[str, Any], trials: dict[str, list[Trial]]) -> Iterator[Row]:
    """A peer's rows, its answers judged as Penstock's are."""
    assert llm.tokenizer is not None
    for row in figures["rows"]:
        right = [
            sum(
                trial.is_right(llm.tokenizer.decode(ids))
                for trial, ids in zip(trials[task], row["answers"][task], strict=True)
            )
            for task in TASKS
        ]
        yield Row(name, row["policy"], row["held"], *right, row["perplexity"])


if __name__ == "__main__":
    main()
