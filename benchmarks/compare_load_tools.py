"""Does `penstock bench serve` measure what `vllm bench serve` and GuideLLM measure?

Makes an environment for each tool (a few minutes and 5 GB, once), serves MODEL, finds out how many requests a second it
can do, and runs the tools at a share of that, alternating: theirs, and then ours with the arrivals of theirs. Compares
medians by the other tool's definitions, writes a page, and ends with status 1 where they do not agree.

Server and clients have cores of their own where there are two or more: else a client that computes much slows the
server that it measures, and one that computes little meets a faster server. For the same reason MODEL should be slow
enough that a client's own work is little beside a step: `make_checkpoints.py OUT small`.
"""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import reporting
from load_tools.agreement import compare
from load_tools.definitions import OurRun, TheirRun, read_ours
from load_tools.page import Section, Setting, agree, page
from load_tools.tools import ENVIRONMENTS, TOOLS, Load, Tool, call, run_tool
from serving import HOST, PENSTOCK, serving

from penstock.loading.hub import resolve_model

IN_CLOSED_LOOP = 64


def main() -> None:
    arguments = parse()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    tools = [tool for tool in TOOLS if tool.key in arguments.tools]
    commands = {tool.key: tool.install(arguments.environments / tool.key) for tool in tools}
    directory = resolve_model(arguments.model)
    server_cores, client_cores = share_out(sorted(os.sched_getaffinity(0)))
    # Children run where their parent did when they began.
    os.sched_setaffinity(0, server_cores)
    # How many drafted tokens are right depends on the prompts, which no two tools draw alike.
    settings = ("--data-dir", "off", "--log-level", "warning", "--speculative", "off")
    with serving(str(directory), settings) as server:
        server.wait_until_ready()
        os.sched_setaffinity(0, client_cores)
        url = f"http://{HOST}:{server.port}"
        saturation = find_saturation(url, arguments)
        rate = arguments.share * saturation
        lengths = (arguments.input_len, arguments.output_len)
        load = Load(url, directory.name, directory, rate, round(rate * arguments.seconds), *lengths)
        runs: dict[str, list[tuple[TheirRun, OurRun]]] = {tool.key: [] for tool in tools}
        for number in range(arguments.rounds):
            for place, tool in enumerate(tools):
                # No run has the prompts of another, which the server's prefix cache would know.
                seed = 1 + place + number * len(tools)
                runs[tool.key].append(run_pair(tool, commands[tool.key], load, seed, arguments.runs))
                print(f"round {number + 1}: {tool.name} done", file=sys.stderr)
    cpu = f"{reporting.cpu_model()}, Python {sys.version.split()[0]}"
    setting = Setting(cpu, server_cores, client_cores, saturation, arguments.share, arguments.rounds, shown(arguments))
    # Nobody else's server and tokenizer are where these were.
    load = replace(load, url="http://127.0.0.1:8000", tokenizer=Path("TOKENIZER"))
    sections = [section(tool, load, runs[tool.key]) for tool in tools]
    text = page(setting, load, sections)
    arguments.write.write_text(text, encoding="utf-8")
    record = {
        "setting": asdict(setting),
        "load": asdict(load),
        "tools": {tool.key: raw(tool, runs[tool.key]) for tool in tools},
    }
    arguments.write.with_suffix(".json").write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    print(text)
    if not agree(sections):
        raise SystemExit("The tools do not agree.")


def parse() -> Any:
    """The command line."""
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="what to serve: a checkpoint with its tokenizer")
    keys = [tool.key for tool in TOOLS]
    parser.add_argument("--tools", nargs="+", choices=keys, default=keys, help=f"default: {' '.join(keys)}")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each tool (default 5)")
    parser.add_argument("--seconds", type=float, default=20, help="of arrivals in each run (default 20)")
    parser.add_argument("--share", type=float, default=0.6, help="load as a share of saturation (default 0.6)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of each prompt (default 128)")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of each answer (default 64)")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help=f"default {ENVIRONMENTS}")
    parser.add_argument("--runs", type=Path, default=Path("build/load-tools/runs"), help="where each run's files go")
    parser.add_argument(
        "--write", type=Path, default=Path("build/load-tools.md"), help="page (default build/load-tools.md)"
    )
    return parser.parse_args()


def shown(arguments: Any) -> list[str]:
    """The options that say what was measured, without where things were."""
    model = f"OUT/{Path(arguments.model).name}" if Path(arguments.model).is_dir() else arguments.model
    lengths = ["--input-len", str(arguments.input_len), "--output-len", str(arguments.output_len)]
    load = ["--rounds", str(arguments.rounds), "--seconds", f"{arguments.seconds:g}", "--share", f"{arguments.share:g}"]
    return [model, *load, *lengths]


def share_out(cores: list[int]) -> tuple[list[int], list[int]]:
    """The server's cores and the clients'; a single one is for both."""
    half = (len(cores) + 1) // 2
    return cores[:half], cores[half:] or cores


def find_saturation(url: str, arguments: Any) -> float:
    """Requests a second of a closed loop."""
    results = arguments.runs / "saturation.json"
    lengths = ["--input-len", str(arguments.input_len), "--output-len", str(arguments.output_len)]
    load = ["--concurrency", str(IN_CLOSED_LOOP), "--duration", f"{arguments.seconds:g}", *lengths]
    call([*PENSTOCK, "bench", "serve", url, *load, "--ignore-eos", "--json", str(results)], results.with_suffix(".log"))
    rate: float = json.loads(results.read_text(encoding="utf-8"))["stages"][0]["summary"]["request_rate"]
    return rate


def run_pair(tool: Tool, command: Path, load: Load, seed: int, folder: Path) -> tuple[TheirRun, OurRun]:
    """Another tool's run, and ours with its arrivals."""
    name = f"{tool.key}-{seed}"
    theirs = run_tool(tool, command, load, seed, folder / f"{name}.json")
    trace, results = folder / f"{name}-arrivals.jsonl", folder / f"{name}-ours.json"
    lengths = {"input_length": load.input_tokens, "output_length": load.output_tokens}
    lines = [json.dumps({"timestamp": 1000 * time, **lengths}) for time in theirs.arrivals]
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    call(own_command(load, seed, trace, results), results.with_suffix(".log"))
    try:
        return theirs, read_ours(json.loads(results.read_text(encoding="utf-8")), load.requests, load.output_tokens)
    except ValueError as error:
        raise SystemExit(f"penstock bench serve: {error}; see {results}.") from None


def own_command(load: Load, seed: int, trace: Path, results: Path) -> list[str]:
    """Ours. Prompts are texts, as those of the others are: the server has to tokenize them."""
    command = [*PENSTOCK, "bench", "serve", load.url, "--trace", str(trace), "--prompts", "text", "--ignore-eos"]
    return [*command, "--seed", str(seed), "--warmup", "0", "--json", str(results), "--records"]


def section(tool: Tool, load: Load, pairs: list[tuple[TheirRun, OurRun]]) -> Section:
    """What the page says of a tool."""
    theirs, ours = [their for their, _ in pairs], [our for _, our in pairs]
    results = Path("RESULTS.json")
    return Section(
        name=tool.name,
        version=tool.version,
        command=[tool.key, *tool.command(load, 1, results)],
        own_command=["penstock", *own_command(load, 1, Path("ARRIVALS.jsonl"), results)[len(PENSTOCK) :]],
        input_tokens=sum(run.input_tokens for run in theirs) / len(theirs),
        own_input_tokens=sum(run.input_tokens for run in ours) / len(ours),
        comparisons=compare([run.figures for run in theirs], [tool.convert(our, their.lead) for their, our in pairs]),
    )


def raw(tool: Tool, pairs: list[tuple[TheirRun, OurRun]]) -> list[dict[str, Any]]:
    """A tool's figures run by run."""
    return [{"theirs": their.figures, "ours": tool.convert(our, their.lead)} for their, our in pairs]


if __name__ == "__main__":
    main()
