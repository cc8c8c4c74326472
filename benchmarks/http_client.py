"""A client for streamed completions that costs little itself: raw HTTP/1.1 over asyncio, one connection per request.

It shares the machine's cores with the server it measures, so chunks are only stamped with their time of arrival while
they come in, and parsed when the request has ended.
"""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Timing:
    """One request; times are in seconds on this process's monotonic clock.

    Attributes:
        scheduled: when it should have been sent, waiting for a free slot included.
        sent: when it was sent.
        chunks: when each chunk with content arrived.
        output_tokens, prompt_tokens, cached_tokens: as the server's usage says.
        text: of all chunks.
        status: of the answer, 0 where there was none.
        retry_after: seconds after which a refused request may come back, where the answer says so.
        ended: when the answer's last byte arrived.
        error: what went wrong, if anything.
    """

    scheduled: float
    sent: float = 0.0
    chunks: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    status: int = 0
    retry_after: int | None = None
    ended: float = 0.0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to first token: from the scheduled time to the first chunk with content."""
        return self.chunks[0] - self.scheduled

    @property
    def e2e(self) -> float:
        """From the scheduled time to the last chunk with content."""
        return self.chunks[-1] - self.scheduled

    @property
    def tpot(self) -> float | None:
        """(end to end - TTFT) / (tokens - 1), None for a single token."""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: every gap between later chunks."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]


async def complete(port: int, body: dict[str, Any], scheduled: float, host: str = "127.0.0.1") -> Timing:
    """Stream one completion from /v1/completions and time it. Failures are returned, not raised."""
    timing = Timing(scheduled)
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    except OSError as error:
        timing.error = f"cannot connect: {error}"
        return timing
    try:
        timing.sent = time.monotonic()
        writer.write(head.encode() + payload)
        await _read_stream(reader, timing)
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        timing.error = f"{type(error).__name__}: {error}"
    finally:
        writer.close()
    return timing


async def _read_stream(reader: asyncio.StreamReader, timing: Timing) -> None:
    arrivals: list[tuple[float, bytes]] = []
    while data := await reader.read(1 << 16):
        arrivals.append((time.monotonic(), data))
    status, events = _events(arrivals)
    timing.status, timing.ended = status, arrivals[-1][0] if arrivals else time.monotonic()
    if status != 200:
        told = re.search(rb"\r\nretry-after: (\d+)\r\n", b"".join(data for _, data in arrivals))
        timing.retry_after = None if told is None else int(told[1])
        timing.error = f"HTTP {status}: " + b"".join(data for _, data in arrivals).decode(errors="replace")[-300:]
        return
    for arrived, event in events:
        if "error" in event:
            timing.error = str(event["error"])
        choices = event.get("choices") or ()
        # A chunk that only says why the output ended is no content, unless the output was a token without text.
        if choices and (choices[0].get("text") or not choices[0].get("finish_reason") or not timing.chunks):
            timing.chunks.append(arrived)
            timing.text += choices[0].get("text") or ""
        usage = event.get("usage")
        if usage:
            timing.output_tokens, timing.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
            timing.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if not timing.chunks and timing.error is None:
        timing.error = "the stream ended without content"


def _events(arrivals: Sequence[tuple[float, bytes]]) -> tuple[int, list[tuple[float, dict[str, Any]]]]:
    """The response's status and its server-sent events, each with the arrival of its last byte."""
    buffer, events, status = b"", [], 0
    for arrived, data in arrivals:
        buffer += data
        # The framing of chunked transfer encoding lies between events and never inside a line that begins with data.
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if not status:
                status = int(line.split()[1])
            elif line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                events.append((arrived, json.loads(line[6:])))
    return status, events


async def run_load(
    port: int, bodies: Sequence[dict[str, Any]], concurrency: int | None = None
) -> tuple[list[Timing], float]:
    """Send all requests at once, at most `concurrency` of them at a time; their timings and the seconds it took.

    With a limit, a request is scheduled when a slot is free for it: closed-loop load, like `vllm bench serve
    --max-concurrency`. Without one, all are scheduled at the start.
    """
    slots = asyncio.Semaphore(concurrency or len(bodies))
    start = time.monotonic()

    async def one(body: dict[str, Any]) -> Timing:
        async with slots:
            return await complete(port, body, time.monotonic() if concurrency else start)

    timings = await asyncio.gather(*(one(body) for body in bodies))
    failures = [timing.error for timing in timings if timing.error]
    if failures:
        raise SystemExit(f"{len(failures)} of {len(bodies)} requests failed, the first with: {failures[0]}")
    return list(timings), time.monotonic() - start
