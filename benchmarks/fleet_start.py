"""How long does a fleet take until it serves, and until the first token of a model that has no replica?

The first fleet has two models and three replicas, all of `haiku`; it is timed from the command until it says that all
of them serve.

The others have from 0 to 1 replica of a model. In each round a request is sent while there is none, which starts one,
and the next round begins once the replica has ended again. The time is that of a client of the gateway. Weights are
packed, as after any start but the first.

    PYTHONPATH=tests python benchmarks/fleet_start.py [MODEL ...] [--options KEY=VALUE ...] [--rounds 5]
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import reporting

from support.fleets import fleet_up
from support.waiting import PATIENCE, until

# Each look starts a process, which a replica that ends should not wait for.
BETWEEN_LOOKS = 0.5
# Token ids, as random weights may say no text.
BODY = {"prompt": "Write about rain.", "max_tokens": 8, "ignore_eos": True, "stream": True, "return_token_ids": True}


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
        described, times = gateway(arguments.port) + from_zero(model, arguments.options), []
        with tempfile.TemporaryDirectory() as folder, fleet_up(Path(folder), described) as fleet:
            for _ in range(arguments.rounds + 1):
                until(lambda fleet=fleet: not fleet.replicas, fleet.log, pause=BETWEEN_LOOKS)
                times.append(first_token(arguments.port))
        # The first one has packed the weights.
        del times[0]
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
        with fleet_up(Path(folder), gateway(port) + models):
            return time.perf_counter() - began


def gateway(port: int) -> str:
    """One that lets requests wait for a replica."""
    return f"[gateway]\nport = {port}\nhold = {{ seconds = {PATIENCE:g} }}\n"


def first_token(port: int) -> float:
    """Seconds until the first token of an answer."""
    began = time.perf_counter()
    url = f"http://127.0.0.1:{port}/v1/completions"
    with httpx.stream("POST", url, json={"model": "model", **BODY}, timeout=PATIENCE) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0].get("token_ids"):
                return time.perf_counter() - began
        raise SystemExit(f"There is no answer, with status {answer.status_code}.")


if __name__ == "__main__":
    main()
