"""What clients notice when a replica fails under --streams streams at a time.

Real replicas of a bundled model, and a gateway. Streams are greedy and sampled, chats, tools and JSON schemas; what
each answers is taken from one replica first. Then, for each fault, all are asked of the gateway at once; when every
stream of the first replica has had some events, that replica

- is killed (SIGKILL), or stopped (SIGSTOP);
- is cut off: what stands between it and the gateway passes nothing on any more, either way;
- becomes ten times slower: it is stopped for nine tenths of the time;
- answers 500 to what is new, from before the streams are asked for.

Told are streams whose text is that of one replica, whole and under one id; those that ended with one error event; those
that were gone on with or sent elsewhere; and the longest time for which a stream had no event, from the fault on.
Processes share the machine, so that streams wait without a fault as well: that is told, too.

    python benchmarks/gateway_failures.py
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import reporting
from serving import HOST, Server, running
from simulated_fleet import gateway

MESSAGES = [{"role": "user", "content": "Write a haiku about rain that falls on an old house by the sea at night."}]
SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 6}},
    "required": ["lines"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA, "strict": True}}
LONG = {"stream": True, "ignore_eos": True, "max_tokens": 150}
KINDS: dict[str, dict[str, Any]] = {
    "chat, greedy": {"messages": MESSAGES, "temperature": 0, "seed": 1, **LONG},
    "chat, sampled": {"messages": MESSAGES, "temperature": 1.1, "seed": 2, **LONG},
    "schema": {
        "messages": MESSAGES,
        "max_tokens": 400,
        "response_format": {"type": "json_schema", "json_schema": {"name": "poem", "schema": SCHEMA}},
        "stream": True,
        "seed": 3,
    },
    "tool": {
        "messages": MESSAGES,
        "max_tokens": 400,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "note"}},
        "stream": True,
        "seed": 4,
    },
}


class Link:
    """What stands between the gateway and a replica: it passes bytes on, until it is told not to.

    Attributes:
        cut: passes nothing on, and closes nothing.
        fails: answers every new request with 500.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.cut = self.fails = False
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """End it with all its connections."""
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(HOST, self._target)
        for each in (
            self._pass(reader, other_writer, writer, asks=True),
            self._pass(other_reader, writer, other_writer, asks=False),
        ):
            task = asyncio.create_task(each)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter, *, asks: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.cut:
                    await asyncio.Event().wait()
                if asks and self.fails and data.startswith(b"POST"):
                    body = b'{"error":{"message":"out of order"}}'
                    back.write(b"HTTP/1.1 500 X\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass
class Stream:
    """What a client has got."""

    kind: str
    events: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    replica: str = ""
    ended: bool = False
    status: int = 0

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(_said(event) for event in self.events)

    def gap(self, since: float) -> float:
        """The longest time without an event, from a moment on."""
        times = [since, *(at for at in self.times if at >= since)]
        return max((after - before for before, after in zip(times, times[1:], strict=False)), default=0.0)


def _said(event: dict[str, Any]) -> str:
    found = ""
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        found += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            found += call["function"].get("arguments") or ""
    return found


async def read(port: int, kind: str, stream: Stream) -> None:
    """Ask, and read to the end."""
    body = json.dumps({"model": "haiku", **KINDS[kind]}).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    stream.status = int((await reader.readline()).split()[1])
    while line := (await reader.readline()).strip():
        if line.startswith(b"x-penstock-replica: "):
            stream.replica = line[20:].decode()
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            stream.events.append(json.loads(line[6:]))
            stream.times.append(time.monotonic())
        stream.ended = stream.ended or line.startswith(b"data: [DONE]")
    writer.close()


def _signal(server: Server, number: signal.Signals) -> None:
    """To a server and its engine."""
    process = server.process.pid
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for each in (process, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


Fault = Callable[[Server, Link], Awaitable[None]]


async def none(victim: Server, link: Link) -> None:
    """Nothing happens."""


async def kill(victim: Server, link: Link) -> None:
    """It ends at once, with its engine."""
    victim.process.kill()


async def stop(victim: Server, link: Link) -> None:
    """It does nothing more, and its connections stay open."""
    _signal(victim, signal.SIGSTOP)


async def cut(victim: Server, link: Link) -> None:
    """Nothing comes through."""
    link.cut = True


async def slow(victim: Server, link: Link) -> None:
    """It has a tenth of the time."""
    while True:
        _signal(victim, signal.SIGSTOP)
        await asyncio.sleep(0.09)
        _signal(victim, signal.SIGCONT)
        await asyncio.sleep(0.01)


async def fail(victim: Server, link: Link) -> None:
    """It answers what is new with 500."""
    link.fails = True


FAULTS: dict[str, Fault] = {
    "none": none,
    "SIGKILL": kill,
    "SIGSTOP": stop,
    "cut off": cut,
    "10 times slower": slow,
    "500s": fail,
}


@contextlib.asynccontextmanager
async def linked(victim: Server) -> AsyncIterator[Link]:
    """A link to it."""
    link = Link(victim.port)
    await link.start()
    try:
        yield link
    finally:
        link.stop()


async def under(name: str, steady: Server, arguments: argparse.Namespace, right: dict[str, str]) -> tuple[object, ...]:
    """A row: what a fault does."""
    with ExitStack() as stack:
        victim = stack.enter_context(running("serve", arguments.model, *OPTIONS))
        await asyncio.to_thread(victim.wait_until_ready)
        async with linked(victim) as link:
            replicas = [Server(link.port, 0.0, victim.process), steady]
            passing = stack.enter_context(gateway(replicas, 'policy = "round-robin"\n[retries]\npart = 1.0'))
            while [each["state"] for each in (await fleet(passing))["replicas"]] != ["ready", "ready"]:
                await asyncio.sleep(0.05)
            link.fails = name == "500s"
            kinds = list(KINDS)
            streams = [Stream(kinds[number // 2 % len(kinds)]) for number in range(arguments.streams)]
            reading = [asyncio.create_task(read(passing.port, each.kind, each)) for each in streams]
            # Each has begun, and those of the victim have some events.
            while not all(each.ended or len(each.events) > 5 for each in streams):
                await asyncio.sleep(0.005)
            began = time.monotonic()
            fault = asyncio.create_task(FAULTS[name](victim, link))
            await asyncio.gather(*reading)
            fault.cancel()
            await asyncio.gather(fault, return_exceptions=True)
            told = await fleet(passing)
        if victim.process.poll() is None:
            _signal(victim, signal.SIGCONT)
        return row(name, streams, f"http://{HOST}:{link.port}", right, told["retries"], began)


async def fleet(passing: Server) -> dict[str, Any]:
    """What the gateway tells of itself."""
    found: dict[str, Any] = json.loads((await asyncio.to_thread(passing.get, "/v1/fleet"))[1])
    return found


def row(
    name: str, streams: list[Stream], first: str, right: dict[str, str], retries: dict[str, int], began: float
) -> tuple[object, ...]:
    """What became of streams, of which some were at the first replica when it failed."""
    hit = [each for each in streams if each.replica == first]
    whole = [each for each in streams if each.ended and each.text == right[each.kind] and len(_ids(each)) == 1]
    errors = [each for each in streams if each not in whole and each.events and "error" in each.events[-1]]
    waits = [longest_wait(hit, began), longest_wait([each for each in streams if each not in hit], began)]
    return (name, len(streams), len(hit), len(whole), len(errors), retries["resumed"], retries["sent"], *waits)


def longest_wait(streams: list[Stream], began: float) -> float:
    """Of some streams, from a moment on."""
    return max((each.gap(began) for each in streams), default=0.0)


def _ids(stream: Stream) -> set[str]:
    return {event["id"] for event in stream.events if "id" in event}


OPTIONS = ("--speculative", "off", "--max-num-seqs", "64", "--log-level", "warning", "--data-dir", "off")


async def main() -> None:
    """All faults, one after the other."""
    parser = reporting.parser(__doc__)
    parser.add_argument("--model", default="haiku")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--faults", default=",".join(FAULTS))
    arguments = parser.parse_args()
    with running("serve", arguments.model, *OPTIONS) as steady:
        steady.wait_until_ready()
        right = {}
        for kind in KINDS:
            stream = Stream(kind)
            await read(steady.port, kind, stream)
            right[kind] = stream.text
        rows = [await under(name, steady, arguments, right) for name in arguments.faults.split(",")]
    header = ("fault", "streams", "at the replica", "whole and the same", "error events", "gone on", "asked elsewhere")
    reporting.report(
        f"{arguments.streams} streams, of which half are at the replica that fails",
        (*header, "longest wait there, s", "elsewhere, s"),
        rows,
    )


if __name__ == "__main__":
    asyncio.run(main())
