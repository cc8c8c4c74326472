"""Does lm-evaluation-harness score a served model, and are its scores the engine's own?

Serves MODEL, lets the harness score `lm_eval_task/haiku_lines` through its `local-completions` adapter (echo and
logprobs on /v1/completions), and computes the same sums with `penstock.LLM` in this process. Ends with status 1 where
one of them differs.

The harness has an environment of its own, whose interpreter `--lm-eval` names:

    python -m venv LM_EVAL
    LM_EVAL/bin/pip install 'lm-eval[api]' transformers
"""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import reporting
from serving import HOST, serving

from penstock import LLM, SamplingParams
from penstock.loading.hub import resolve_model

TASK = Path(__file__).resolve().parent / "lm_eval_task"
NAME = "haiku_lines"


@dataclass(frozen=True)
class Scored:
    """A continuation as the harness scored it: its tokens' log probabilities added up; whether all were the best."""

    document: int
    context: str
    continuation: str
    logprob: float
    greedy: bool


def run_harness(python: str, model: Path, port: int, folder: Path, batch: int) -> tuple[list[Scored], dict[str, float]]:
    """Score the task over HTTP; every continuation, and the task's figures."""
    settings = {
        "model": model.name,
        "base_url": f"http://{HOST}:{port}/v1/completions",
        "tokenizer": str(model),
        "tokenizer_backend": "huggingface",
        "max_length": "2048",
    }
    command = [python, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", NAME]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in settings.items())]
    command += ["--include_path", str(TASK), "--batch_size", str(batch)]
    command += ["--output_path", str(folder / "results"), "--log_samples"]
    # Whatever it would look for on the network is here already.
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    environment.pop("PYTHONPATH", None)
    subprocess.run(command, cwd=TASK, env=environment, check=True)
    (samples,) = folder.glob("results/**/samples_*.jsonl")
    (results,) = folder.glob("results/**/results_*.json")
    figures = json.loads(results.read_text(encoding="utf-8"))["results"][NAME]
    scored = []
    for line in samples.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        # The harness writes numbers as text, of all their digits.
        for texts, ((logprob, greedy),) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            scored.append(Scored(sample["doc_id"], texts["arg_0"], texts["arg_1"], float(logprob), greedy == "True"))
    return scored, {name: value for name, value in figures.items() if name.startswith("acc") and "stderr" not in name}


def score(model: str, scored: list[Scored]) -> list[tuple[float, bool]]:
    """The same continuations, scored by the engine in this process."""
    llm = LLM(model)
    assert llm.tokenizer is not None
    prompts = []
    lengths = []
    for item in scored:
        # The harness cuts tokens where the context's alone end; it would move spaces at its end to the continuation.
        assert item.context == item.context.rstrip()
        prompts.append({"prompt_token_ids": llm.tokenizer.encode(item.context + item.continuation, False)})
        lengths.append(len(llm.tokenizer.encode(item.context, False)))
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=1))
    found = []
    for output, length in zip(outputs, lengths, strict=True):
        assert output.prompt_logprobs is not None
        tokens = [entry for entry in output.prompt_logprobs[length:] if entry is not None]
        found.append((sum(entry.logprob for entry in tokens), all(entry.rank == 1 for entry in tokens)))
    return found


def main() -> None:
    """Serve, score, compare, print."""
    parser = reporting.parser(__doc__)
    parser.add_argument(
        "model", nargs="?", default="haiku", help="what to serve; the task was made for the bundled model"
    )
    # The harness runs in the folder of its task; resolving links would leave its environment.
    parser.add_argument(
        "--lm-eval",
        required=True,
        type=os.path.abspath,
        metavar="PYTHON",
        help="interpreter of the harness' environment",
    )
    parser.add_argument("--batch", type=int, default=4, help="prompts in a request")
    arguments = parser.parse_args()
    directory = resolve_model(arguments.model)
    with tempfile.TemporaryDirectory() as folder, serving(str(directory)) as server:
        server.wait_until_ready()
        scored, figures = run_harness(arguments.lm_eval, directory, server.port, Path(folder), arguments.batch)
    own = score(str(directory), scored)
    differing = [
        (item, logprob)
        for item, (logprob, greedy) in zip(scored, own, strict=True)
        if (item.logprob, item.greedy) != (logprob, greedy)
    ]
    furthest = max(abs(item.logprob - logprob) for item, (logprob, _) in zip(scored, own, strict=True))
    print(reporting.machine(), end="\n\n")
    rows = [[name.partition(",")[0], f"{value:.3f}"] for name, value in figures.items()]
    rows += [
        ["documents", len({item.document for item in scored})],
        ["continuations", len(scored)],
        ["scores that differ from the engine's own", len(differing)],
        ["largest difference", f"{furthest:.1e}"],
    ]
    print(reporting.table([f"lm-evaluation-harness, {NAME}", arguments.model], rows))
    if differing:
        raise SystemExit("The harness got other scores than the engine computes.")


if __name__ == "__main__":
    main()
