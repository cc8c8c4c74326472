"""Penstock's server beside vLLM's, both measured by `vllm bench serve`.

    python benchmarks/compare_servers.py OUT/toy [--rounds 3] [--environments DIR]

What a small model shows is the way from an engine to its clients. In turn each server is started, is given some
requests that do not count, and then --requests at --concurrency at a time; client and server share the machine's cores.
Makes an environment for vLLM (a few minutes and 3 GB, once), whose server runs as it comes. Ends with 1 unless Penstock
gives at least --ratio times as many output tokens a second, and both its median TTFT and its p99 ITL are at most
1 / --ratio of vLLM's.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import reporting
from load_tools import environments
from load_tools.tools import ENVIRONMENTS, OFFLINE, call
from serving import HOST, PENSTOCK, free_port

START_SECONDS = 600.0
WARM_UP = 32
KV_GIB = 2
FIGURES = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_itl_ms", "p99_itl_ms")
OURS, THEIRS = "penstock", "vllm"


def answers(port: int) -> bool:
    """Whether a server is ready."""
    try:
        with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
    except OSError:
        return False


@contextmanager
def running(command: list[str], port: int, log: Path, settings: dict[str, str]) -> Iterator[None]:
    """A server in a process group of its own, from when it is ready on."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | OFFLINE | settings,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{Path(command[0]).name} did not start; see {log}.")
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure(name: str, vllm: Path, number: int, arguments: Any) -> dict[str, float]:
    """Start a server, measure it, and end it."""
    port = free_port()
    model, runs = arguments.model.resolve(), arguments.runs
    address = ["--host", HOST, "--port", str(port)]
    if name == OURS:
        # Nobody drafts on either side: a model of random weights repeats itself as no other does.
        command = [*PENSTOCK, "serve", str(model), *address, "--data-dir", "off", "--log-level", "warning"]
        command += ["--speculative", "off"]
        settings = {}
    else:
        command = [str(vllm), "serve", str(model), *address, "--served-model-name", model.name, "--dtype", "bfloat16"]
        settings = {"VLLM_CPU_KVCACHE_SPACE": str(KV_GIB)}
    results = runs / f"{name}-{number}.json"
    results.unlink(missing_ok=True)
    with running(command, port, results.with_suffix(".server.log"), settings):
        for requests, file in ((WARM_UP, runs / "warm-up.json"), (arguments.requests, results)):
            load = ["--backend", "openai", "--base-url", f"http://{HOST}:{port}", "--model", model.name]
            load += ["--tokenizer", str(model), "--dataset-name", "random", "--seed", str(number), "--ignore-eos"]
            load += ["--random-input-len", str(arguments.input_len), "--random-output-len", str(arguments.output_len)]
            load += ["--num-prompts", str(requests), "--max-concurrency", str(arguments.concurrency)]
            load += ["--temperature", "0", "--save-result", "--result-dir", str(runs), "--result-filename", file.name]
            call([str(vllm), "bench", "serve", *load, "--disable-tqdm"], file.with_suffix(".log"))
    figures: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    wanted = arguments.requests * arguments.output_len
    if figures["completed"] != arguments.requests or figures["total_output_tokens"] != wanted:
        raise SystemExit(f"{name} gave {figures['total_output_tokens']} tokens instead of {wanted}; see {results}.")
    return {figure: figures[figure] for figure in FIGURES}


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", type=Path, help="a checkpoint with its tokenizer")
    parser.add_argument("--rounds", type=int, default=3, help="of both (default 3)")
    parser.add_argument("--requests", type=int, default=200, help="of a round (default 200)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time (default 32)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of each prompt (default 128)")
    parser.add_argument("--output-len", type=int, default=128, help="tokens of each answer (default 128)")
    parser.add_argument("--ratio", type=float, default=2.0, help="that is wanted (default 2)")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help=f"default {ENVIRONMENTS}")
    parser.add_argument("--runs", type=Path, default=Path("build/servers"), help="where each run's files go")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs.absolute()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    vllm = environments.vllm(arguments.environments / THEIRS)
    found: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}
    for number in range(1, arguments.rounds + 1):
        for name, runs in found.items():
            runs.append(measure(name, vllm, number, arguments))
            print(f"round {number}: {name} {runs[-1]['output_throughput']:,.0f} tokens/s", file=sys.stderr)
    medians = {
        name: {figure: reporting.median([run[figure] for run in runs]) or 0.0 for figure in FIGURES}
        for name, runs in found.items()
    }
    ratios = {figure: medians[OURS][figure] / medians[THEIRS][figure] for figure in FIGURES}
    reporting.report(
        f"{arguments.model.name}: {arguments.requests} requests, {arguments.concurrency} at a time, "
        f"{arguments.input_len} tokens in, {arguments.output_len} out, by `vllm bench serve` {environments.VLLM}",
        ("", "Penstock", f"vLLM {environments.VLLM}", "ratio"),
        [(figure, medians[OURS][figure], medians[THEIRS][figure], ratios[figure]) for figure in FIGURES],
        f"Medians of {arguments.rounds} rounds, the servers in turn.",
    )
    good = ratios["output_throughput"] >= arguments.ratio
    good &= max(ratios["median_ttft_ms"], ratios["p99_itl_ms"]) <= 1 / arguments.ratio
    sys.exit(int(not good))


if __name__ == "__main__":
    main()
