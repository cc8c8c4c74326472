"""What do coding agents manage with a served model? `PYTHONPATH=tests python benchmarks/try_clients.py MODEL`.

Serves MODEL, and lets each agent that `make clients` has installed correct a function in a repository of its own:
unchanged, in the settings of docs/clients.md, and without a network. An agent has succeeded where the function is right
afterwards; what it said is shown, too. Runs whatever command the model calls, as this user, in that repository.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import reporting

from penstock.loading.hub import resolve_model
from support.coding_agents import (
    FOLDER,
    PROGRAMS,
    Endpoint,
    Workplace,
    run_aider,
    run_claude_code,
    run_codex,
    run_opencode,
)
from support.live_server import RunningServer, serving

NAME = "model"
TASK = "The function add in calc.py subtracts. Make it add."
CHECK = "import calc; assert calc.add(2, 3) == 5"
HEADER = ("agent", "function corrected", "requests completed", "others", "prompt tokens", "output tokens", "seconds")


def main() -> None:
    """Try all agents that are asked for, or that are there."""
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="what `penstock serve` takes")
    parser.add_argument("--agents", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="only these")
    parser.add_argument("--context", type=int, default=32768, help="tokens of the model's context")
    parser.add_argument("--seconds", type=float, default=1800.0, help="an agent that has not ended by then has failed")
    options = parser.parse_args()
    agents = [name for name in options.agents if (FOLDER / PROGRAMS[name]).exists()]
    if not agents:
        raise SystemExit(f"None of {', '.join(options.agents)} is installed in {FOLDER}; `make clients` does that.")
    rows = []
    with serving(Path(resolve_model(options.model)), "--served-model-name", NAME) as server:
        endpoint = Endpoint(server.base, NAME, options.context)
        for name in agents:
            rows.append(attempt(name, server, endpoint, options.seconds))
    reporting.report(f"{options.model}: {TASK}", HEADER, rows)


def attempt(name: str, server: RunningServer, endpoint: Endpoint, seconds: float) -> tuple[object, ...]:
    """The row of one agent; what it says is printed."""
    before, began = counts(server), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Workplace.make(Path(folder))
        try:
            said = run(name, place, endpoint, seconds)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            said = str(error)
        took = time.monotonic() - began
        print(f"\n### {name}\n\n{said.strip()}\n\n```\n{place.file.read_text()}```", flush=True)
        right = subprocess.run([sys.executable, "-c", CHECK], cwd=place.repository, stderr=subprocess.DEVNULL)
    figures = [after - earlier for after, earlier in zip(counts(server), before, strict=True)]
    return (name, "yes" if right.returncode == 0 else "no", *map(round, figures), round(took))


def run(name: str, place: Workplace, endpoint: Endpoint, seconds: float) -> str:
    """What an agent says of the task."""
    if name == "aider":
        return run_aider(place, endpoint, TASK, f'python3 -c "{CHECK}"', seconds)
    agent = {"codex": run_codex, "claude": run_claude_code, "opencode": run_opencode}[name]
    return agent(place, endpoint, TASK, seconds=seconds)


def counts(server: RunningServer) -> tuple[float, ...]:
    """Of the server until now: requests completed and others, tokens of prompts and of outputs."""
    outcomes = re.findall(r'^penstock_requests_total{.*outcome="(\w+)".*} (\S+)$', server.get("/metrics"), re.MULTILINE)
    completed = sum(float(value) for outcome, value in outcomes if outcome == "completed")
    others = sum(float(value) for outcome, value in outcomes if outcome != "completed")
    tokens = (server.metric(f"penstock_{kind}_tokens_total") for kind in ("prompt", "generation"))
    return completed, others, *tokens


if __name__ == "__main__":
    main()
