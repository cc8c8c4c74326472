"""Overload of a fleet: what is left of its goodput at several times the load that it can serve, and who gets it.

Starts --replicas simulated replicas and a gateway with two tenants of equal weight. First the peak is measured: the
best goodput at growing numbers of streams at a time. Then requests come at --factor times that rate, as a Poisson
process that waits for nobody: a fifth of them are one tenant's, the others the other's, so that each asks for at least
half of what there is. Goodput is requests a second that meet both service levels (--ttft, --tpot); the peak is measured
before and after, and the mean of the two is what goodput is compared with. Shares are of good requests.

A refusal's time is from connecting to its last byte, by a process that asks --probes times a second and does nothing
else.

    python benchmarks/gateway_overload.py --json build/gateway-overload.json
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import reporting
import uvloop
from http_client import Timing, complete_over
from overload import LOAD_NICENESS, Prober, body, closed_loop, good, goodput
from simulated_fleet import gateway, simulated_replicas

from penstock.access.keys import entry
from penstock.bench.load.address import Address
from penstock.bench.load.client import Client

HOST = "127.0.0.1"
TENANTS = ("modest", "greedy")
# Of all requests, the part that the first tenant sends.
PART = 0.2
CONCURRENCIES = (16, 32, 64, 128)


async def open_loop(port: int, rate: float, arguments: argparse.Namespace) -> list[tuple[str, Timing]]:
    """All requests, with whose they were."""
    generator, asked = random.Random(0), list[asyncio.Task[tuple[str, Timing]]]()
    clients = {name: Client(Address(HOST, port), key=name) for name in TENANTS}

    async def one(name: str, due: float, seed: int) -> tuple[str, Timing]:
        return name, await complete_over(clients[name], body(arguments, random.Random(seed)), due)

    start = due = time.monotonic()
    while (due := due + generator.expovariate(rate)) < start + arguments.seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        name = TENANTS[generator.random() >= PART]
        asked.append(asyncio.create_task(one(name, due, len(asked))))
    found = list(await asyncio.gather(*asked))
    for client in clients.values():
        client.close()
    return found


def peaks(port: int, arguments: argparse.Namespace) -> dict[int, float]:
    """Goodput by streams at a time."""
    return {count: uvloop.run(closed_loop(port, count, arguments)) for count in CONCURRENCIES}


def measure(port: int, prober: Prober, arguments: argparse.Namespace) -> dict[str, object]:
    """All figures."""
    uvloop.run(closed_loop(port, CONCURRENCIES[0], arguments))
    before = peaks(port, arguments)
    streams = max(before, key=before.__getitem__)
    peak = uvloop.run(closed_loop(port, streams, arguments))
    if not peak:
        raise SystemExit("No request was served within the service levels; raise --ttft or --tpot.")
    prober.end.put(time.monotonic() + arguments.seconds)
    computed, began = time.process_time(), time.monotonic()
    found = uvloop.run(open_loop(port, arguments.factor * peak, arguments))
    computed = time.process_time() - computed
    probed = prober.found.get(timeout=120)
    later = uvloop.run(closed_loop(port, streams, arguments))
    # The first seconds fill what runs and waits.
    first, last = began + arguments.ttft, began + arguments.seconds
    during = goodput((timing for _, timing in found), first, last, arguments)
    shares = {
        name: goodput((timing for whose, timing in found if whose == name), first, last, arguments) for name in TENANTS
    }
    served = [timing.ttft for _, timing in found if timing.error is None]
    return {
        "streams": streams,
        "peak": peak,
        "later": later,
        "goodput": during,
        "part_of_peak": during / ((peak + later) / 2),
        "shares": {name: each / sum(shares.values()) for name, each in shares.items()},
        "asked": {name: sum(whose == name for whose, _ in found) / len(found) for name in TENANTS},
        "ttft_p50_s": reporting.median(served),
        "ttft_p99_s": reporting.percentile(served, 0.99),
        "refusals": sum(timing.status == 503 for _, timing in found),
        "probed": len(probed),
        "refusal_p50_ms": reporting.median(probed),
        "refusal_p99_ms": reporting.percentile(probed, 0.99),
        "outcomes": Counter(
            "good"
            if good(timing, arguments)
            else "late"
            if timing.error is None
            else str(timing.status or timing.error)
            for _, timing in found
        ),
        "load_cores": computed / arguments.seconds,
    }


def main() -> None:
    gc.disable()
    parser = reporting.parser(__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--factor", type=float, default=5.0, help="load, in times of the peak (default 5)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of overload (default 30)")
    parser.add_argument("--peak-seconds", type=float, default=10.0, help="for each number of streams (default 10)")
    parser.add_argument("--probes", type=float, default=10.0, help="a second, of refusals' time (default 10)")
    parser.add_argument("--ttft", type=float, default=2.0, help="service level: seconds to a first token (default 2)")
    parser.add_argument("--tpot", type=float, default=0.1, help="service level: seconds a token (default 0.1)")
    parser.add_argument("--hold", type=float, default=1.0, help="seconds that one waits at the gateway (default 1)")
    parser.add_argument("--input-len", type=int, default=512, help="prompt tokens (default 512)")
    parser.add_argument("--output-len", type=int, default=64, help="output tokens (default 64)")
    parser.add_argument("--vocabulary", type=int, default=100000, help="prompt ids are below it (default 100000)")
    parser.add_argument("--max-num-seqs", type=int, default=4, help="that a replica runs at a time (default 4)")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.set_defaults(key=TENANTS[-1])
    arguments = parser.parse_args()

    bounds = ["--max-num-seqs", str(arguments.max_num_seqs), "--log-level", "warning"]
    settings = f"[hold]\nseconds = {arguments.hold}\nahead = 2\n"
    with (
        tempfile.NamedTemporaryFile("w", suffix=".toml") as keys,
        simulated_replicas(arguments.replicas, bounds) as fleet,
    ):
        keys.write("".join(entry(name, name) for name in TENANTS))
        keys.flush()
        with gateway(fleet.servers, settings, ["--api-key-file", keys.name]) as passing:
            prober = Prober(multiprocessing.Queue(), multiprocessing.Queue())
            multiprocessing.Process(target=prober.run, args=(passing.port, arguments), daemon=True).start()
            os.nice(LOAD_NICENESS)
            figures = measure(passing.port, prober, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    reporting.report(
        f"{arguments.replicas} simulated replicas, {arguments.factor:g} times the peak for {arguments.seconds:g} s",
        ("", "value"),
        list(figures.items()),
    )


if __name__ == "__main__":
    main()
