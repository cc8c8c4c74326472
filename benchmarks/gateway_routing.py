"""Which way of choosing replicas serves a fleet best: time to first token, goodput, and how evenly replicas are loaded.

Starts --replicas simulated replicas of a large model, whose steps take as long as the hardware's, and in front of them
one router after the other: Penstock's gateway with each policy, and others whose commands are given (`--other
NAME=COMMAND`, in which {port} and {replicas} are filled in). Each gets the same load, under a cache salt of its own,
from `penstock bench serve`; they take turns in --rounds rounds. The loads:

- conversation: --trace, in Mooncake's format, lengths multiplied by --length-scale, times by --time-scale;
- system prompts: prompts of which the most begins with one of a few long texts;
- apart: prompts that share nothing.

A replica's load is the mean number of requests there, looked at twice a second; told is the largest, as a multiple of
the mean over all replicas.

    python benchmarks/gateway_routing.py --trace mooncake.jsonl --json build/routing.json
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import reporting
from serving import HOST, PENSTOCK, Server, free_port
from simulated_fleet import NAME, Replicas, gateway, simulated_replicas

POLICIES = ("round-robin", "least-loaded", "prefix", "estimated", "estimated-exact")


def loads(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Options of `penstock bench serve` for each load."""
    count = str(arguments.requests)
    rate = ["--rate", str(arguments.rate), "--requests", count]
    found = {
        "system prompts": [*rate, "--prefix-len", "3000", "--prefixes", "24", "--input-len", "lognormal:400,200"],
        "apart": [*rate, "--input-len", "lognormal:2000,1500"],
    }
    found = {name: [*options, "--output-len", "lognormal:80,40"] for name, options in found.items()}
    if arguments.trace:
        scales = ["--length-scale", str(arguments.length_scale), "--time-scale", str(arguments.time_scale)]
        found["conversation"] = ["--trace", str(arguments.trace), *scales, "--requests", str(arguments.turns)]
    return {name: found[name] for name in arguments.loads.split(",") if name in found}


class Watch:
    """Looks at how many requests each replica has."""

    def __init__(self, replicas: list[Server]) -> None:
        self._replicas = replicas
        self._over = threading.Event()
        self._seen: dict[int, list[int]] = defaultdict(list)
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            for each in self._replicas:
                state = json.loads(each.get("/v1/replica")[1])
                self._seen[each.port].append(state.get("running", 0) + state.get("waiting", 0))

    @property
    def most(self) -> float:
        """The largest load as a multiple of the mean."""
        means = [statistics.mean(seen) for seen in self._seen.values()]
        return max(means) / statistics.mean(means)


@contextmanager
def router(name: str, fleet: Replicas, arguments: argparse.Namespace) -> Iterator[int]:
    """Run one, which passes requests on; its port."""
    if name not in arguments.other:
        options = ["--policy", name.removesuffix("-exact")]
        options += ["--prompts", fleet.model] if name.endswith("-exact") else []
        with gateway(fleet.servers, options=options) as started:
            yield started.port
        return
    port = free_port()
    urls = " ".join(f"http://{HOST}:{each.port}" for each in fleet.servers)
    command = arguments.other[name].format(port=port, replicas=urls)
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(Server(port, time.monotonic(), process))
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_for(server: Server) -> None:
    """Until another's router has a replica to ask."""
    for _ in range(240):
        try:
            if server.get("/v1/models")[0] == 200 and server.get("/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit("a router was not ready after two minutes")


def measure(port: int, options: list[str], seed: int, replicas: list[Server]) -> dict[str, float]:
    """What a load has found."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file, Watch(replicas) as watch:
        url = f"http://{HOST}:{port}"
        fixed = ["--model", NAME, "--prompts", "text", "--ignore-eos", "--slo", "ttft=2s,tpot=100ms", "--warmup", "0"]
        # The same requests for all; nothing of them is in any cache.
        salted = ["--seed", str(seed), "--extra-body", json.dumps({"cache_salt": f"{time.time():.6f}"})]
        command = [*PENSTOCK, "bench", "serve", url, *options, *fixed, *salted, "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        [stage] = json.loads(Path(file.name).read_text())["stages"]
    summary = stage["summary"]
    return {
        "ttft_mean_s": summary["ttft"]["mean"],
        "ttft_p99_s": summary["ttft"]["p99"],
        "goodput": summary["goodput"],
        "cached": summary["cached_tokens"] / summary["input_tokens"],
        "failed": summary["failed"],
        "most_load": watch.most,
    }


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--trace", type=Path, help="of conversations, as Mooncake's")
    parser.add_argument("--length-scale", type=float, default=0.1)
    parser.add_argument("--time-scale", type=float, default=0.3)
    parser.add_argument("--turns", type=int, default=600, help="requests of the trace (default 600)")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second of the other loads (default 8)")
    parser.add_argument("--requests", type=int, default=400, help="of each run of the other loads (default 400)")
    parser.add_argument("--loads", default="conversation,system prompts,apart")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--hardware", default="4x a100-80gb", help="of each replica")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    arguments.other = dict(each.split("=", 1) for each in arguments.other)

    routers = [*arguments.policies.split(","), *arguments.other]
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    # Other routers add fields of other servers.
    options = ["--kv-events", f"{HOST}:0", "--unknown-fields", "tell", "--log-level", "warning"]
    with simulated_replicas(arguments.replicas, options, arguments.hardware, tokenizer=True) as fleet:
        for load, asked in loads(arguments).items():
            found[load] = {name: [] for name in routers}
            for seed in range(arguments.rounds):
                for name in routers:
                    with router(name, fleet, arguments) as port:
                        found[load][name].append(measure(port, asked, seed, fleet.servers))
                    print(load, name, found[load][name][-1], file=sys.stderr, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=2))
    for load, by_router in found.items():
        rows = [
            (name, *(statistics.mean(run[key] for run in runs) for key in runs[0])) for name, runs in by_router.items()
        ]
        header = ("", "TTFT mean, s", "p99, s", "goodput, a second", "cached", "failed", "most load, of mean")
        reporting.report(f"{load}: {arguments.replicas} replicas of {arguments.hardware}", header, rows)


if __name__ == "__main__":
    main()
