"""The load generators that Penstock's is compared with: how each is called, and how its results are read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tools import environments
from load_tools.definitions import Figures, OurRun, TheirRun, by_guidellm, by_vllm, read_guidellm, read_vllm

# Whatever a tool would look for on the network is here already.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
# GuideLLM's processes draw the same gaps, each for itself, so that several of them are no Poisson process.
GUIDELLM_SETTINGS = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
ENVIRONMENTS = Path("build/load-tools")


@dataclass(frozen=True)
class Load:
    """What is asked of the server at `url`: random prompts that come at random, at `rate` a second in the mean."""

    url: str
    model: str
    tokenizer: Path
    rate: float
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Tool:
    """Another load generator.

    Attributes:
        install: makes its environment in a folder, and says which its command is.
        command: what follows that for a load, a seed and the file of results.
        read: its results, given how many requests and output tokens of each there have to be.
        convert: our run by its definitions, given its lead.
        settings: in its environment.
    """

    name: str
    version: str
    install: Callable[[Path], Path]
    command: Callable[[Load, int, Path], list[str]]
    read: Callable[[dict[str, Any], int, int], TheirRun]
    convert: Callable[[OurRun, float], Figures]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in options, and of its files."""
        return self.name.split()[0].lower()


def vllm_command(load: Load, seed: int, results: Path) -> list[str]:
    """`vllm bench serve`."""
    command = ["bench", "serve", "--backend", "openai", "--base-url", load.url, "--model", load.model]
    command += ["--tokenizer", str(load.tokenizer), "--dataset-name", "random", "--seed", str(seed)]
    command += ["--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)]
    command += ["--num-prompts", str(load.requests), "--request-rate", f"{load.rate:g}", "--temperature", "0"]
    command += ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    return [*command, "--result-dir", str(results.parent), "--result-filename", results.name]


def guidellm_command(load: Load, seed: int, results: Path) -> list[str]:
    """`guidellm run`, which asks for `ignore_eos` wherever it says a length."""
    lengths = f"prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}"
    return [
        "run",
        *("--backend", f"kind=openai_http,target={load.url},model={load.model},request_format=/v1/completions"),
        *("--profile", f"kind=poisson,rate={load.rate:g}", "--constraint", f"kind=max_requests,count={load.requests}"),
        *("--data", f"kind=synthetic_text,{lengths}", "--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"),
        *("--seed", f"kind=static,value={seed}", "--output", f"kind=json,path={results}", "--disable-console"),
    ]


TOOLS = (
    Tool("vllm bench serve", environments.VLLM, environments.vllm, vllm_command, read_vllm, by_vllm),
    Tool(
        "GuideLLM",
        environments.GUIDELLM,
        environments.guidellm,
        guidellm_command,
        read_guidellm,
        by_guidellm,
        GUIDELLM_SETTINGS,
    ),
)


def run_tool(tool: Tool, command: Path, load: Load, seed: int, results: Path) -> TheirRun:
    """Run another tool to its end. Exits with a sentence where it fails, or requests of it did."""
    results.unlink(missing_ok=True)
    call([str(command), *tool.command(load, seed, results)], results.with_suffix(".log"), tool.settings)
    try:
        return tool.read(json.loads(results.read_text(encoding="utf-8")), load.requests, load.output_tokens)
    except (ValueError, KeyError, OSError) as error:
        raise SystemExit(f"{tool.name}: {error}; see {results} and the log beside it.") from None


def call(
    command: Sequence[str], log: Path, settings: Mapping[str, str] | None = None, folder: Path | None = None
) -> None:
    """Run a command in a folder, its output going to a file. Exits with a sentence where it fails."""
    environment = os.environ | OFFLINE | dict(settings or {})
    # Its packages are those of its own environment.
    if command[0] != sys.executable:
        environment.pop("PYTHONPATH", None)
    with log.open("wb") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    if ended.returncode:
        raise SystemExit(f"{Path(command[0]).name} ended with status {ended.returncode}; see {log}.")
