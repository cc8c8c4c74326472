"""What the load generator of `penstock bench serve` costs itself, beside httpx.

A process that does nothing else streams answers, each token in a chunk and a write of its own, on so many connections
at a time. The client's own computing time is what counts: chunks for each second of it, which is what one core could
read at most. Both clients stamp every chunk and parse its JSON; ours checks the protocol, too.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable

import httpx
import reporting
import uvloop

from penstock.bench.load.address import Address
from penstock.bench.load.arrivals import Closed
from penstock.bench.load.bodies import Bodies
from penstock.bench.load.client import Client
from penstock.bench.load.content import TokenIds
from penstock.bench.load.lengths import Lengths
from penstock.bench.load.run import Limits, run_load
from penstock.bench.load.workload import Shape, random_conversations

HOST = "127.0.0.1"


def frame(value: object) -> bytes:
    """An event in a chunk of HTTP's transfer encoding."""
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunk(text: str, finish: str | None) -> dict[str, object]:
    """A chunk as servers send it."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return {
        "id": "cmpl-99d5e1f44300451f9a91607342177470",
        "object": "text_completion",
        "created": 1795320939,
        "model": "scripted",
        "choices": [choice],
        "usage": None,
    }


async def answer(tokens: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers to one connection's requests."""
    usage = {"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": 16 + tokens}
    middle, last = frame(chunk(" word", None)), frame(chunk(" end", "length"))
    tail = frame({**chunk("", None), "choices": [], "usage": usage}) + frame(b"[DONE]") + b"0\r\n\r\n"
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].split(b":")[1]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(tokens - 1):
                writer.write(middle)
                await asyncio.sleep(0)
            writer.write(last + tail)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
        writer.close()


def serve(tokens: int, port: "multiprocessing.queues.Queue[int]") -> None:
    """The other process."""

    async def main() -> None:
        server = await asyncio.start_server(
            lambda reader, writer: answer(tokens, reader, writer), HOST, 0, backlog=4096
        )
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


async def with_ours(port: int, streams: int, requests: int, tokens: int) -> int:
    """Chunks that the load generator has read."""
    fixed = Lengths("fixed", tokens)
    client = Client(Address(HOST, port))
    conversations = random_conversations(Shape(Lengths("fixed", 16), fixed), 0)
    bodies = Bodies("completions", "scripted", TokenIds(100, 1000))
    run = await run_load(client, bodies, conversations, Closed(streams), Limits(requests))
    client.close()
    failed = [outcome.message for outcome in run.outcomes if outcome.kind]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed, the first with: {failed[0]}")
    return sum(outcome.chunks for outcome in run.outcomes)


async def with_httpx(port: int, streams: int, requests: int, tokens: int) -> int:
    """Chunks that httpx has read."""
    stamps: list[float] = []
    left = iter(range(requests))
    body = {"model": "scripted", "prompt": list(range(100, 116)), "max_tokens": tokens, "stream": True}

    async def stream(client: httpx.AsyncClient) -> None:
        for _ in left:
            async with client.stream("POST", f"http://{HOST}:{port}/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                        stamps.append(time.monotonic())

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=None) as client:
        await asyncio.gather(*(stream(client) for _ in range(streams)))
    return len(stamps)


def measure(
    client: Callable[..., Awaitable[int]], port: int, arguments: argparse.Namespace
) -> tuple[str, float, float]:
    """Name, chunks a second of computing, and chunks a second."""
    uvloop.run(client(port, arguments.streams, arguments.streams, arguments.tokens))
    busy, start = time.process_time(), time.monotonic()
    chunks = uvloop.run(client(port, arguments.streams, arguments.requests, arguments.tokens))
    return client.__name__, chunks / (time.process_time() - busy), chunks / (time.monotonic() - start)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--streams", type=int, default=64, help="at a time (default 64)")
    parser.add_argument("--requests", type=int, default=640, help="in all (default 640)")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer (default 128)")
    arguments = parser.parse_args()

    port: multiprocessing.queues.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(arguments.tokens, port), daemon=True)
    server.start()
    number = port.get(timeout=30)
    names = {"with_ours": "penstock bench serve", "with_httpx": "httpx"}
    rows = [
        (names[name], *speeds) for name, *speeds in (measure(c, number, arguments) for c in (with_ours, with_httpx))
    ]
    server.terminate()
    reporting.report(
        f"{arguments.requests} answers of {arguments.tokens} chunks, {arguments.streams} at a time",
        ("client", "chunks a second of its computing", "chunks a second"),
        rows,
    )


if __name__ == "__main__":
    main()
