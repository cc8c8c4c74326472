"""How long does a fleet take until it serves, and until the first token of a model that has no replica?

The first fleet has two models and three replicas, all of `haiku`; it is timed from the command until it says that all
of them serve.

The others have from 0 to 1 replica of a model. In each round a request is sent while there is none, which starts one,
and the next round begins once the replica has ended again. The time is that of a client of the gateway. Weights are
packed, as after any start but the first.

    python benchmarks/fleet_start.py [MODEL ...] [--options KEY=VALUE ...] [--rounds 5]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import reporting

PATIENCE = 600.0
# Token ids, as random weights may say no text.
BODY = {"prompt": "Write about rain.", "max_tokens": 8, "ignore_eos": True, "stream": True, "return_token_ids": True}
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("models", nargs="*", default=["haiku"], help="as `penstock serve` takes them (default haiku)")
    parser.add_argument("--options", nargs="*", default=[], help="of `penstock serve`, such as quantization=int4")
    parser.add_argument("--rounds", type=int, default=5, help="of each model (default 5)")
    parser.add_argument("--port", type=int, default=8088, help="of the gateway (default 8088)")
    arguments = parser.parse_args()
    times = [whole(arguments.port) for _ in range(arguments.rounds)]
    reporting.report(
        "A fleet of two models and three replicas until it serves, seconds",
        ("median", "least", "greatest"),
        [(statistics.median(times), min(times), max(times))],
        f"{arguments.rounds} rounds.",
    )
    rows = []
    for model in arguments.models:
        described = from_zero(model, arguments.options)
        with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), described, arguments.port) as environment:
            # The first one packs the weights.
            times = [first_token(arguments.port) for _ in turns(Path(folder), environment, arguments.rounds + 1)][1:]
        rows.append((Path(model).name, statistics.median(times), min(times), max(times)))
    reporting.report(
        "First token of a model without a replica, seconds",
        ("model", "median", "least", "greatest"),
        rows,
        f"{arguments.rounds} rounds.",
    )


def from_zero(model: str, options: list[str]) -> str:
    """A model that may have no replica."""
    given = ", ".join(f"{name} = {json.dumps(value)}" for name, _, value in (each.partition("=") for each in options))
    return (
        f'[[model]]\nname = "model"\nmodel = {json.dumps(model)}\nreplicas = {{ least = 0, most = 1 }}\n'
        f"down_seconds = 1\noptions = {{ {given} }}\n"
    )


def whole(port: int) -> float:
    """Seconds until a fleet says that it serves."""
    models = '[[model]]\nname = "haiku"\nreplicas = 2\n[[model]]\nname = "other"\nmodel = "haiku"\n'
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with fleet(Path(folder), models, port):
            while " serves " not in (said := (Path(folder) / "log").read_text()):
                if time.perf_counter() - began > PATIENCE:
                    raise SystemExit(said)
                time.sleep(0.02)
            return time.perf_counter() - began


@contextmanager
def fleet(folder: Path, models: str, port: int) -> Iterator[dict[str, str]]:
    """A fleet of these models until the block ends."""
    gateway = f"[gateway]\nport = {port}\nhold = {{ seconds = {PATIENCE:g} }}\n"
    (folder / "fleet.toml").write_text(gateway + models)
    environment = {**os.environ, "PENSTOCK_DATA": str(folder / "data")}
    log = (folder / "log").open("wb")
    process = subprocess.Popen([*PENSTOCK, "fleet", "up"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield environment
    finally:
        process.terminate()
        process.wait()
        log.close()


def turns(folder: Path, environment: dict[str, str], rounds: int) -> Iterator[int]:
    """Begin a round when the fleet is there and no replica is."""
    for number in range(rounds):
        until = time.monotonic() + PATIENCE
        while not is_empty(folder, environment):
            if time.monotonic() > until:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.5)
        yield number


def is_empty(folder: Path, environment: dict[str, str]) -> bool:
    command = [*PENSTOCK, "fleet", "status", "--json"]
    told = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return told.returncode == 0 and not json.loads(told.stdout)["replicas"]


def first_token(port: int) -> float:
    """Seconds until the first token of an answer."""
    began = time.perf_counter()
    url = f"http://127.0.0.1:{port}/v1/completions"
    with httpx.stream("POST", url, json={"model": "model", **BODY}, timeout=PATIENCE) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0].get("token_ids"):
                return time.perf_counter() - began
        raise SystemExit(f"There is no answer: {answer.status_code} {line}")


if __name__ == "__main__":
    main()
