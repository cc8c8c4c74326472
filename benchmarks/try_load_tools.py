"""Do `vllm bench serve` and GuideLLM run against the server as they are, in the forms in which people use them?

Makes their environments as compare_load_tools.py does, serves MODEL, and lets each tool send a few requests in each
form. Ends with status 1 where a tool failed, or a request of it did.
"""

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reporting
from load_tools import environments
from load_tools.tools import ENVIRONMENTS, GUIDELLM_SETTINGS, call
from serving import HOST, serving
from simulated_fleet import gateway

from penstock.loading.hub import resolve_model

REQUESTS = 8
SHAREGPT, TRACE = "sharegpt.json", "trace.jsonl"
RANDOM = "--dataset-name random --random-input-len 64 --random-output-len 16"
CHAT = "--backend openai-chat --endpoint /v1/chat/completions"
# What follows `vllm bench serve`; some of it with the files that `write_datasets` makes.
VLLM_FORMS = (
    f"--backend vllm {RANDOM}",
    f"--backend openai {RANDOM} --request-rate 20 --burstiness 0.5",
    f"--backend openai {RANDOM} --random-range-ratio 0.3 --max-concurrency 2 --logprobs 2",
    f"--backend openai {RANDOM} --random-prefix-len 48 --goodput ttft:1000 tpot:100",
    f"--backend openai {RANDOM} --temperature 0.8 --top-p 0.9 --top-k 40 --min-p 0.05 --repetition-penalty 1.1",
    f"{CHAT} {RANDOM}",
    f"--backend openai --dataset-name sharegpt --dataset-path {SHAREGPT}",
    f"{CHAT} --dataset-name sharegpt --dataset-path {SHAREGPT} --sharegpt-output-len 16",
    "--backend openai --dataset-name prefix_repetition --prefix-repetition-prefix-len 48 "
    "--prefix-repetition-suffix-len 16 --prefix-repetition-num-prefixes 2 --prefix-repetition-output-len 16",
    f"--backend openai --dataset-name timed_trace --dataset-path {TRACE} --timed-trace-sec-multiplier 0.001",
    f"--backend openai-responses --endpoint /v1/responses {RANDOM}",
)
# The format of requests, and the profile, of `guidellm run`.
GUIDELLM_FORMS = (
    ("/v1/completions", "kind=synchronous"),
    ("/v1/chat/completions", "kind=concurrent,streams=4"),
    ("/v1/chat/completions", "kind=poisson,rate=20"),
    ("/v1/chat/completions", "kind=constant,rate=20"),
    ("/v1/chat/completions", "kind=throughput,max_concurrency=8"),
    ("/v1/chat/completions", "kind=sweep,sweep_size=3"),
    ("/v1/responses", "kind=concurrent,streams=4"),
)


@dataclass(frozen=True)
class Form:
    """A way to use a tool; `succeeded` counts the requests of its results."""

    tool: str
    shown: str
    command: list[str]
    results: Path
    succeeded: Callable[[dict[str, Any]], int]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what to serve, with its tokenizer (default haiku)")
    parser.add_argument("--gateway", action="store_true", help="before two servers, instead of one server alone")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help=f"default {ENVIRONMENTS}")
    arguments = parser.parse_args()
    directory = resolve_model(arguments.model)
    vllm = environments.vllm(arguments.environments / "vllm")
    guidellm = environments.guidellm(arguments.environments / "guidellm")
    rows = []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        write_datasets(folder)
        count = 2 if arguments.gateway else 1
        servers = [stack.enter_context(serving(str(directory), ("--data-dir", "off"))) for _ in range(count)]
        for each in servers:
            each.wait_until_ready()
        asked = stack.enter_context(gateway(servers)) if arguments.gateway else servers[0]
        url = f"http://{HOST}:{asked.port}"
        forms = [*vllm_forms(vllm, url, directory, folder), *guidellm_forms(guidellm, url, directory, folder)]
        for form in forms:
            rows.append((form.tool, f"`{form.shown}`", attempt(form)))
            print(*rows[-1], file=sys.stderr)
    where = "Load generators as they are" + (", through a gateway" if arguments.gateway else "")
    reporting.report(where, ("tool", "form", "requests"), rows)
    if any(isinstance(outcome, str) for *_, outcome in rows):
        raise SystemExit("Some did not run.")


def attempt(form: Form) -> int | str:
    """How many requests succeeded, or what went wrong."""
    log = form.results.with_suffix(".log")
    try:
        call(form.command, log, GUIDELLM_SETTINGS, form.results.parent)
        succeeded = form.succeeded(json.loads(form.results.read_text(encoding="utf-8")))
    except (SystemExit, OSError, ValueError, KeyError):
        lines = log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")
    return succeeded if succeeded >= REQUESTS else f"only {succeeded} succeeded"


def vllm_forms(command: Path, url: str, directory: Path, folder: Path) -> Iterator[Form]:
    """All of `vllm bench serve`; the model is found out by the tool, as it is where none is named."""
    served = ["--base-url", url, "--tokenizer", str(directory), "--num-prompts", str(REQUESTS), "--disable-tqdm"]
    for number, options in enumerate(VLLM_FORMS):
        results = folder / f"vllm-{number}.json"
        stored = ["--save-result", "--result-dir", str(folder), "--result-filename", results.name]
        line = [str(command), "bench", "serve", *options.split(), *served, *stored]
        yield Form("vllm bench serve", options, line, results, lambda result: result["completed"])


def guidellm_forms(command: Path, url: str, directory: Path, folder: Path) -> Iterator[Form]:
    """All of `guidellm run`."""
    for number, (path, profile) in enumerate(GUIDELLM_FORMS):
        results = folder / f"guidellm-{number}.json"
        line = [str(command), "run", "--backend", f"kind=openai_http,target={url},request_format={path}"]
        line += ["--profile", profile, "--constraint", f"kind=max_requests,count={REQUESTS}"]
        line += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16", "--disable-console"]
        line += ["--tokenizer", f"kind=huggingface_auto,model={directory}", "--output", f"kind=json,path={results}"]
        yield Form("GuideLLM", f"request_format={path} --profile {profile}", line, results, least_succeeded)


def least_succeeded(report: dict[str, Any]) -> int:
    """Of all benchmarks of a report."""
    return min(len(benchmark["requests"]["successful"]) for benchmark in report["benchmarks"])


def write_datasets(folder: Path) -> None:
    """Conversations and a trace of our own making, in the formats of ShareGPT and Mooncake."""
    draw = random.Random(0)
    words = "the rain falls on an old pond and frog after frog jumps in"
    turns = [{"from": who, "value": " ".join(draw.choices(words.split(), k=24))} for who in ("human", "gpt") * REQUESTS]
    pairs = zip(turns[::2], turns[1::2], strict=True)
    sharegpt = [{"id": str(number), "conversations": pair} for number, pair in enumerate(pairs)]
    (folder / SHAREGPT).write_text(json.dumps(sharegpt), encoding="utf-8")
    fields = {"input_length": 64, "output_length": 16}
    lines = [{"timestamp": 100 * n, **fields, "hash_ids": [4 * n + k for k in range(4)]} for n in range(REQUESTS)]
    (folder / TRACE).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
