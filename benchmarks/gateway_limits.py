"""Do limits hold that several gateways share, also while their store is away, and who notices?

--gateways gateways count in one store (valkey-server or redis-server, whichever is installed), in front of stand-in
replicas that note what they are asked. Two keys may use 600 requests and 100,000 tokens in a minute. Of each, half of
--clients clients ask whichever gateway, and ask again soon, whatever they are answered: one key's answers are short, so
that its requests meet their bound, the other's long, so that its tokens do. A third key has no limits and asks five
times a second.

After a while (--before seconds) the store is killed for --away seconds, and comes back empty.

Told is what replicas saw: of all intervals of 60 seconds, the most requests and tokens that began in one, beside the
bound, for intervals that end before the store is killed, and for all; how long the unlimited key waited for answers,
before and while the store was away, beside answers of the replica itself; and how long it took from the store's return
until it knew what was used.

LiteLLM's proxy is measured afterwards in the same way where its command is given (peers/README.md): as many proxies,
whose keys have the same limits, with a Redis of their own.

    python benchmarks/gateway_limits.py --litellm ENVIRONMENT/bin/litellm
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis
import reporting
import uvloop
from gateway_overhead import request_in
from serving import HOST, Server, free_port, running

from penstock.access.keys import entry
from penstock.metering.window import SLOTS

MINUTE = 60.0
REQUESTS, TOKENS = 600, 100_000
# Tokens of the answers of each limited key, in the mean, and of all prompts.
ANSWERS = {"short": 20, "long": 600}
PROMPT = 50
FREE, STRAIGHT = "free", "straight"
_FIRST = 5
PEERS = Path(__file__).parent / "peers"


@dataclass
class Seen:
    """What replicas were asked: moments and tokens, by key."""

    began: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def worst(self, key: str, until: float) -> tuple[int, int]:
        """The most requests and tokens that began within a minute that ends before a moment."""
        asked = [each for each in self.began.get(key, []) if each[0] < until]
        first, tokens, most = 0, 0, (0, 0)
        for place, (moment, used) in enumerate(asked):
            tokens += used
            while asked[first][0] <= moment - MINUTE:
                tokens -= asked[first][1]
                first += 1
            most = max(most[0], place + 1 - first), max(most[1], tokens)
        return most

    def recent(self, key: str) -> int:
        """Requests of the last minute, but for its oldest moments, which the store may have forgotten."""
        since = time.monotonic() - MINUTE * (1 - 1 / SLOTS)
        return sum(moment > since for moment, _ in self.began.get(key, []))


class StandIn(asyncio.Protocol):
    """A replica whose answers have the length that messages begin with: a key and a number of tokens."""

    seen: Seen

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        if (request := request_in(self._got)) is None:
            return
        head, body = request
        self._got, self._is_last = b"", b"connection: close" in head.lower()
        if head.startswith(b"GET"):
            status = b"404 Not Found" if b"/v1/replica" in head else b"200 OK"
            self._answer({"object": "list", "data": [{"id": "stand-in"}]}, status)
            return
        key, tokens, *_ = json.loads(body)["messages"][0]["content"].split()
        self.seen.began.setdefault(key, []).append((time.monotonic(), PROMPT + int(tokens)))
        usage = {"prompt_tokens": PROMPT, "completion_tokens": int(tokens), "total_tokens": PROMPT + int(tokens)}
        choice = {"index": 0, "message": {"role": "assistant", "content": "w"}, "finish_reason": "stop"}
        named = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stand-in"}
        content = {**named, "choices": [choice], "usage": usage}
        # A token in a hundredth of the time that a fast model takes.
        asyncio.get_running_loop().call_later(int(tokens) * 1e-4, self._answer, content)

    def _answer(self, content: dict[str, Any], status: bytes = b"200 OK") -> None:
        body = json.dumps(content).encode()
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)
        if self._is_last:
            self._transport.close()


class Store:
    """A store that keeps nothing on the disk."""

    def __init__(self, folder: str) -> None:
        program = shutil.which("valkey-server") or shutil.which("redis-server")
        if program is None:
            raise SystemExit("Neither valkey-server nor redis-server is installed.")
        self.port = free_port()
        self._command = [program, "--bind", HOST, "--port", str(self.port), "--save", "", "--dir", folder]
        self.start()

    def start(self) -> None:
        """Until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                client.ping()
                return
            time.sleep(0.01)

    def kill(self) -> None:
        """As the kernel does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def client(self) -> "redis.Redis":
        """A client of it."""
        return redis.Redis(HOST, self.port, decode_responses=True)

    def used(self, key: str) -> int:
        """Requests of a key that it counts now; its oldest ones may be forgotten only when it is asked again."""
        with self.client() as client:
            return int(client.hget(f"penstock:{{{key}}}:key/{key}:requests:{MINUTE}", "u") or 0)


async def ask(port: int, key: str, tokens: int) -> tuple[int, float]:
    """Ask once; the status of the answer, and the seconds until it was there."""
    messages = [{"role": "user", "content": f"{key} {tokens} " + "w " * (2 * PROMPT)}]
    body = {"model": "stand-in", "messages": messages, "max_tokens": 4 * tokens}
    content, began = json.dumps(body).encode(), time.monotonic()
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret-of-%s\r\ncontent-type: "
        b"application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (key.encode(), len(content), content)
    )
    status = int((await reader.readline()).split()[1])
    await reader.read()
    writer.close()
    return status, time.monotonic() - began


@dataclass
class Free:
    """Answers to the key without limits: when they were asked for, statuses, seconds."""

    answers: list[tuple[float, int, float]] = field(default_factory=list)

    def row(self, since: float, until: float) -> list[object]:
        """How many there were, how many of them were no answers, and their seconds, in milliseconds."""
        found = sorted(seconds for at, status, seconds in self.answers if since <= at < until and status == 200)
        failed = sum(status != 200 for at, status, _ in self.answers if since <= at < until)
        return [len(found), failed, 1000 * found[len(found) // 2], 1000 * found[int(0.99 * len(found))]]


async def client(ports: list[int], key: str, until: float, pause: float) -> None:
    """Ask again and again; after a refusal, too."""
    while time.monotonic() < until:
        tokens = max(1, round(random.expovariate(1 / ANSWERS[key])))
        await ask(random.choice(ports), key, tokens)
        await asyncio.sleep(random.uniform(0.5, 1.5) * pause)


async def free(ports: list[int], key: str, until: float, answers: Free) -> None:
    """Ask five times a second."""

    async def one() -> None:
        began = time.monotonic()
        answers.answers.append((began, *await ask(random.choice(ports), key, 20)))

    async with asyncio.TaskGroup() as group:
        while time.monotonic() < until:
            group.create_task(one())
            await asyncio.sleep(0.2)


async def outage(side: "Side", store: Store, seen: Seen, arguments: argparse.Namespace, began: float) -> "Outage":
    """Kill the store and bring it back."""
    await asyncio.sleep(began + arguments.before - time.monotonic())
    killed = time.monotonic()
    await asyncio.to_thread(store.kill)
    await asyncio.sleep(arguments.away)
    await asyncio.to_thread(store.start)
    back = time.monotonic()
    if not side.tells_used:
        return Outage(killed, back, None)
    while any(store.used(key) < 0.99 * seen.recent(key) for key in ANSWERS):
        await asyncio.sleep(0.02)
    return Outage(killed, back, time.monotonic() - back)


async def measure(
    side: "Side", ports: list[int], replica: int, store: Store, seen: Seen, arguments: argparse.Namespace
) -> None:
    """All clients, and the outage."""
    # The first requests of a process take longer than others.
    for port in (*ports, replica) * _FIRST:
        await ask(port, FREE, 1)
    began, answers, straight = time.monotonic(), Free(), Free()
    until = began + arguments.before + arguments.away + arguments.after
    async with asyncio.TaskGroup() as group:
        for number in range(arguments.clients):
            group.create_task(client(ports, list(ANSWERS)[number % 2], until, arguments.pause))
        group.create_task(free(ports, FREE, until, answers))
        group.create_task(free([replica], STRAIGHT, until, straight))
        gone = group.create_task(outage(side, store, seen, arguments, began))
    killed, back, seconds = gone.result()
    rows: list[list[object]] = []
    for key in ANSWERS:
        for phase, end in (("store there", killed), ("store away for a while", until)):
            requests, tokens = seen.worst(key, end)
            rows.append([key, phase, requests, requests / REQUESTS, tokens, tokens / TOKENS])
    title = f"Limits of {REQUESTS} requests and {TOKENS} tokens in any 60 s, {arguments.gateways} of {side.name}"
    header = ("answers", "", "most requests", "of the bound", "most tokens", "of the bound")
    reporting.report(title, header, rows)
    others = [
        ["store there", *answers.row(began, killed)],
        ["store away", *answers.row(killed, back)],
        ["store there again", *answers.row(back, until)],
        ["straight to the replica, store there", *straight.row(began, killed)],
    ]
    reporting.report("A key without limits", ("", "answers", "others", "median, ms", "99th percentile, ms"), others)
    if seconds is not None:
        print(f"\nThe store knew what was used {seconds:.2f} s after its return.")


@contextlib.contextmanager
def gateways(count: int, replica: int, store: Store, folder: Path) -> Iterator[list[Server]]:
    """So many of them, which share limits."""
    keys = folder / "keys.toml"
    limits = {"requests_per_minute": REQUESTS, "tokens_per_minute": TOKENS}
    entries = [entry(key, f"secret-of-{key}", limits=limits) for key in ANSWERS]
    keys.write_text("\n".join([*entries, entry(FREE, f"secret-of-{FREE}")]))
    options = ["--replica", f"http://{HOST}:{replica}", "--api-key-file", str(keys), "--log-level", "warning"]
    with ExitStack() as stack:
        shared = ["--limits-store", f"redis://{HOST}:{store.port}"]
        found = [stack.enter_context(running("gateway", *options, *shared)) for _ in range(count)]
        for each in found:
            each.wait_until_ready()
        yield found


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it, by force where it takes long."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def proxies(command: str, count: int, replica: int, store: Store, folder: Path) -> Iterator[list[Server]]:
    """So many of LiteLLM's, which share limits."""
    shutil.copy(PEERS / "litellm_auth.py", folder)
    place = {"model": "openai/stand-in", "api_base": f"http://{HOST}:{replica}/v1", "api_key": "none"}
    shared = {"type": "redis", "host": HOST, "port": store.port, "supported_call_types": []}
    config = {
        "model_list": [{"model_name": "stand-in", "litellm_params": place}],
        "litellm_settings": {"cache": True, "cache_params": shared, "num_retries": 0, "telemetry": False},
        "general_settings": {"custom_auth": "litellm_auth.user_api_key_auth"},
    }
    # JSON is YAML.
    (folder / "litellm.yaml").write_text(json.dumps(config))
    limits = {"REQUESTS_PER_MINUTE": str(REQUESTS), "TOKENS_PER_MINUTE": str(TOKENS), "LIMITED_KEYS": ",".join(ANSWERS)}
    # A key that nobody has: without one, it does not start.
    limits["LITELLM_MASTER_KEY"] = "sk-" + secrets.token_hex(32)
    environment = {**os.environ, **limits, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    environment.pop("PYTHONPATH", None)
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            port = free_port()
            options = ["--config", str(folder / "litellm.yaml"), "--host", HOST, "--port", str(port)]
            launched = time.monotonic()
            process = subprocess.Popen([command, *options], stdout=sys.stderr.fileno(), env=environment, cwd=folder)
            stack.callback(stop, process)
            found.append(Server(port, launched, process))
        for each in found:
            each.wait_until_ready(path="/health/liveliness")
        yield found


@dataclass(frozen=True)
class Side:
    """What is measured.

    Attributes:
        started: starts so many in front of a replica, with a store.
        tells_used: whether its store can be asked what it counts.
    """

    name: str
    started: Callable[[int, int, Store, Path], AbstractContextManager[list[Server]]]
    tells_used: bool


class Outage(NamedTuple):
    """When the store was killed and was back, and how long it took until it knew what was used, where it tells."""

    killed: float
    back: float
    knew: float | None


async def run(side: Side, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure one side."""
    StandIn.seen = Seen()
    server = await asyncio.get_running_loop().create_server(StandIn, HOST, 0, backlog=1024)
    replica = server.sockets[0].getsockname()[1]
    store = Store(str(folder))
    started = side.started(arguments.gateways, replica, store, folder)
    try:
        # Its health is asked for on this loop, which must not wait for them meanwhile.
        found = await asyncio.to_thread(started.__enter__)
        try:
            await measure(side, [each.port for each in found], replica, store, StandIn.seen, arguments)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
    finally:
        store.kill()
        server.close()


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between a client's requests (default 2)")
    parser.add_argument("--before", type=float, default=100.0, help="seconds (default 100)")
    parser.add_argument("--away", type=float, default=20.0, help="seconds (default 20)")
    parser.add_argument("--after", type=float, default=80.0, help="seconds (default 80)")
    parser.add_argument("--litellm", metavar="COMMAND", help="of LiteLLM's proxy, to measure it, too")
    parser.add_argument("--only-litellm", action="store_true", help="measure nothing else")
    arguments = parser.parse_args()
    sides = [] if arguments.only_litellm else [Side("Penstock's gateways", gateways, True)]
    if arguments.litellm:
        sides.append(Side("LiteLLM's proxies", partial(proxies, str(Path(arguments.litellm).absolute())), False))
    for side in sides:
        with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(side, arguments, Path(folder)))


if __name__ == "__main__":
    main()
