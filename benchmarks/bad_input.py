"""How long requests take that no client should send, on an idle server and beside a stream.

    python benchmarks/bad_input.py [--model MODEL] [--times N] [--all]

Each request of `bad_cases.py` is sent N times (default 7), one after another, while nothing else runs and while the
server streams; the clock stops when the whole answer is there. The table has the requests whose median or maximum is
above 50 ms, or with --all every one, and what compiles a grammar is named, since that has bounds of its own: a grammar
is compiled at its first request only, which is its maximum. The lines behind it say what the stream noticed.
"""

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field

import bad_cases
import http_client
import reporting
import serving

SLOW_MS = 50.0
STREAM = {"prompt": "rain", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@dataclass
class Times:
    """Of one request, in milliseconds."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def row(self) -> list[float]:
        """Median and maximum of both."""
        return [function(times) for times in (self.alone, self.beside) for function in (statistics.median, max)]


async def send(port: int, case: bad_cases.Case) -> float:
    """Milliseconds until the whole answer is there."""
    head = (
        f"POST {case.path} HTTP/1.1\r\nHost: {serving.HOST}\r\nContent-Type: {case.content_type}\r\n"
        f"Content-Length: {len(case.body)}\r\nConnection: close\r\n\r\n"
    )
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(serving.HOST, port)
    try:
        writer.write(head.encode() + case.body)
        await writer.drain()
        answer = await reader.read(-1)
    finally:
        writer.close()
    took = (time.monotonic() - begun) * 1e3
    status = int(answer.split(b" ", 2)[1])
    if status not in case.statuses:
        raise SystemExit(f"{case.path}, {case.name}: answered with {status}")
    return took


async def stream(port: int, gaps: list[float], ended: asyncio.Event) -> None:
    """Stream at least once and until it is over, and note the milliseconds between tokens."""
    while True:
        timing = await http_client.complete(port, STREAM, time.monotonic())
        if timing.error is not None:
            raise SystemExit(timing.error)
        gaps += [gap * 1e3 for gap in timing.gaps]
        if ended.is_set():
            return


async def measure(port: int, cases: list[bad_cases.Case], times: int) -> tuple[list[Times], list[float], list[float]]:
    """The times of each case, and the stream's gaps without and with them."""
    results = [Times() for _ in cases]
    quiet: list[float] = []
    gaps: list[float] = []
    for _ in range(times):
        for case, result in zip(cases, results, strict=True):
            result.alone.append(await send(port, case))
    for into, sent in ((quiet, []), (gaps, cases * times)):
        ended = asyncio.Event()
        streaming = asyncio.create_task(stream(port, into, ended))
        for number, case in enumerate(sent):
            results[number % len(cases)].beside.append(await send(port, case))
        ended.set()
        await streaming
    return results, quiet, gaps


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--model", default="haiku")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--all", action="store_true", help="every request, not only the slow ones")
    arguments = parser.parse_args()
    cases = list(bad_cases.cases())
    with (
        tempfile.TemporaryDirectory() as folder,
        serving.serving(arguments.model, ["--data-dir", folder, "--log-level", "warning"]) as server,
    ):
        server.wait_until_ready()
        # The vocabulary of grammars is loaded in the first idle second.
        time.sleep(2)
        results, quiet, gaps = asyncio.run(measure(server.port, cases, arguments.times))
    rows = [
        [case.path, case.name, "yes" if case.compiles else "", *result.row()]
        for case, result in zip(cases, results, strict=True)
        if arguments.all or max(result.row()) > SLOW_MS
    ]
    header = ["request to", "with", "compiles", "ms alone, median", "most", "ms beside a stream, median", "most"]
    over = [sum(statistics.median(times) > SLOW_MS for times in (each.alone, each.beside)) > 0 for each in results]
    plain = sum(slow and not case.compiles for slow, case in zip(over, cases, strict=True))
    note = (
        f"Of {len(cases)} requests, {sum(over)} have a median above {SLOW_MS:.0f} ms; {plain} of them compile nothing. "
        f"The median of all alone is {statistics.median(t for each in results for t in each.alone):.1f} ms, beside the "
        f"stream {statistics.median(t for each in results for t in each.beside):.1f} ms. Between the stream's tokens: "
        f"median {statistics.median(quiet):.2f} ms and at most {max(quiet):.1f} without them, "
        f"{statistics.median(gaps):.2f} and at most {max(gaps):.1f} with them."
    )
    reporting.report(f"Bad input, each {arguments.times} times", header, sorted(rows, key=lambda row: -row[6]), note)


if __name__ == "__main__":
    main()
