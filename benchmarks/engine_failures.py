"""What clients notice when the engine is killed, or stops, under load.

    python benchmarks/engine_failures.py [MODEL] [--streams N] [--output-len N] [--rounds N] [--watchdog SECONDS]

Each round sends the same N streamed completions three times: undisturbed; with the engine process killed (SIGKILL) when
a third of the time has passed that they took undisturbed; and with it stopped there (SIGSTOP), which the server must
notice. The table says how long the server was not ready, what the longest gap in a stream was, how many streams failed,
and how many gave another text than undisturbed. Starts `penstock serve MODEL`; the client runs on the same machine.
"""

import asyncio
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reporting
from http_client import Timing, complete
from serving import Server, serving

INPUT_TOKENS = 32


@dataclass(frozen=True)
class Outcome:
    """What came of one set of streams.

    Attributes:
        unready_after, ready_after: seconds from the signal until the server was not ready, and until it was again.
    """

    timings: list[Timing]
    unready_after: float | None = None
    ready_after: float | None = None

    @property
    def longest_gap(self) -> float:
        """Of all streams, in seconds."""
        return max(gap for timing in self.timings for gap in (timing.ttft, *timing.gaps) if not timing.error)

    @property
    def failed(self) -> int:
        """How many streams have failed."""
        return sum(timing.error is not None for timing in self.timings)


def engine_of(server: Server) -> int:
    """The process id of the engine, the only child of the server's process."""
    found = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    (child,) = [int(child) for path in found for child in path.read_text().split()]
    return child


def bodies(count: int, output_len: int, seed: int, vocabulary: int = 4000) -> list[dict[str, Any]]:
    """Requests whose prompts nobody has sent before."""
    generator = random.Random(seed)
    return [
        {
            "prompt": generator.choices(range(100, vocabulary), k=INPUT_TOKENS),
            "max_tokens": output_len,
            "seed": index,
            "ignore_eos": True,
        }
        for index in range(count)
    ]


async def send(server: Server, requests: list[dict[str, Any]]) -> list[Timing]:
    """Stream all requests at once."""
    start = time.monotonic()
    return list(await asyncio.gather(*(complete(server.port, body, start) for body in requests)))


async def is_ready(server: Server) -> bool:
    """Whether the server says so."""
    return (await asyncio.to_thread(server.get, "/health/ready"))[0] == 200


async def until(server: Server, ready: bool, start: float) -> float:
    """Seconds from `start` until the server is ready, or is not."""
    while await is_ready(server) != ready:
        await asyncio.sleep(0.02)
    return time.monotonic() - start


async def disturbed(server: Server, requests: list[dict[str, Any]], number: signal.Signals, after: float) -> Outcome:
    """The streams, with the engine sent a signal after so many seconds."""
    streams = asyncio.ensure_future(send(server, requests))
    await asyncio.sleep(after)
    start = time.monotonic()
    os.kill(engine_of(server), number)
    unready = await until(server, False, start)
    ready = await until(server, True, start)
    return Outcome(await streams, unready, ready)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--watchdog", type=float, default=30.0)
    arguments = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = {"undisturbed": [], "killed": [], "stopped": []}
    changed = dict.fromkeys(outcomes, 0)
    with serving(arguments.model, ["--watchdog", str(arguments.watchdog)]) as server:
        server.wait_until_ready()
        asyncio.run(send(server, bodies(arguments.streams, arguments.output_len, seed=-1)))
        for number in range(arguments.rounds):
            requests = bodies(arguments.streams, arguments.output_len, seed=number)
            start = time.monotonic()
            plain = Outcome(asyncio.run(send(server, requests)))
            after = (time.monotonic() - start) / 3
            outcomes["undisturbed"].append(plain)
            for name, kind in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
                outcome = asyncio.run(disturbed(server, requests, kind, after))
                outcomes[name].append(outcome)
                changed[name] += sum(
                    not there.error and there.text != here.text
                    for here, there in zip(plain.timings, outcome.timings, strict=True)
                )
    rows = [
        [
            name,
            *(
                None if name == "undisturbed" else _median([getattr(each, field) for each in found])
                for field in ("unready_after", "ready_after")
            ),
            _median([each.longest_gap for each in found]),
            max(each.longest_gap for each in found),
            sum(each.failed for each in found),
            changed[name],
        ]
        for name, found in outcomes.items()
    ]
    print(f"\n## The engine under {arguments.streams} streams, {arguments.rounds} rounds\n\n{reporting.machine()}\n")
    header = [
        "engine",
        "not ready after, s",
        "ready again after, s",
        "longest gap, s, median",
        "most",
        "failed",
        "other text",
    ]
    print(reporting.table(header, rows))


def _median(values: list[Any]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
