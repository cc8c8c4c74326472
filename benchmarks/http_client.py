"""Streamed completions with the client of `penstock bench serve`."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec

from penstock.bench.load.address import Address
from penstock.bench.load.answer import Answer
from penstock.bench.load.client import Client, Exchange, TransferError


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
    """Stream one completion from /v1/completions, over a connection of its own, and time it.

    Failures are returned, not raised.
    """
    client = Client(Address(host, port))
    try:
        return await complete_over(client, body, scheduled)
    finally:
        client.close()


async def complete_over(
    client: Client, body: dict[str, Any], scheduled: float, path: str = "/v1/completions"
) -> Timing:
    """The same over a connection that the client has, or makes and keeps; `path` may be that of chats."""
    timing, answer = Timing(scheduled), Answer(keep_text=True)
    payload = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    try:
        exchange = await client.fetch("POST", path, payload, answer.feed)
        _take_exchange(timing, exchange, answer)
    except TransferError as error:
        timing.error, timing.ended = f"{error.kind}: {error.message}", time.monotonic()
    if answer.first is not None:
        timing.chunks = list(accumulate(answer.gaps, initial=answer.first))
    timing.text = answer.text
    if answer.usage is not None:
        timing.output_tokens, timing.prompt_tokens = answer.usage.completion_tokens, answer.usage.prompt_tokens
        details = answer.usage.prompt_tokens_details
        timing.cached_tokens = (details and details.cached_tokens) or 0
    return timing


def _take_exchange(timing: Timing, exchange: Exchange, answer: Answer) -> None:
    timing.sent, timing.ended = exchange.sent or 0.0, exchange.ended
    timing.status, timing.retry_after = exchange.status, exchange.retry_after
    if exchange.status != 200:
        timing.error = f"HTTP {exchange.status}: {exchange.body.decode(errors='replace')}"
        return
    answer.end()
    problem = answer.error or answer.violation
    if problem is not None:
        timing.error = ": ".join(problem)
    elif answer.first is None:
        timing.error = "the stream ended without content"


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


def body(generator: random.Random, tokens: int, most: int, vocabulary: int) -> dict[str, Any]:
    """A request with a number of tokens of prompt and of output, each of which is told, with a text or without."""
    prompt = generator.choices(range(10, vocabulary), k=tokens)
    return {"prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
