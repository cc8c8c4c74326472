"""How many texts a second become vectors over HTTP, beside infinity and vLLM?

    python benchmarks/encoder_servers.py MODEL [--infinity COMMAND] [--vllm COMMAND] [--tokens 16 128 256]
        [--concurrency 32] [--requests 512] [--rounds 5]

MODEL is a folder with an encoder as sentence-transformers stores it; commands are `infinity_emb` and `vllm` of their
own environments (`peers/README.md`). All servers run, with as many threads, and take turns: while one has requests, the
others have none. A request has one text; `--concurrency` of them are under way, over kept connections of one client,
which shares the cores with the server. Answers are checked: each must have a vector of the same size.
"""

import argparse
import asyncio
import base64
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import reporting
from compare_servers import running
from encoder_speed import make_texts, single_tokens
from load_tools.tools import OFFLINE
from serving import HOST, PENSTOCK, free_port

from penstock.bench.load.address import Address
from penstock.bench.load.client import Client

NAME, PATH = "embedder", "/v1/embeddings"
VLLM_KV_GIB = "1"


class Contender(NamedTuple):
    """A server with one kind of weights."""

    server: str
    kind: str


CONTENDERS = (
    Contender("Penstock", "float32"),
    Contender("Penstock", "bfloat16"),
    Contender("Penstock", "int8"),
    Contender("infinity", "torch float32"),
    Contender("infinity", "torch bfloat16"),
    Contender("vLLM", "float32"),
    Contender("vLLM", "bfloat16"),
)


class Answer(msgspec.Struct):
    """What is read of an answer."""

    class Vector(msgspec.Struct):
        """A text's vector: floats, or their bytes in base64."""

        embedding: str | list[float]

    data: list[Vector]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--infinity", metavar="COMMAND", help="`infinity_emb` of its environment")
    parser.add_argument("--vllm", metavar="COMMAND", help="`vllm` of its environment")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 256])
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time (default 32)")
    parser.add_argument("--requests", type=int, default=512, help="of a round (default 512)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of all servers (default: all cores)")
    arguments = parser.parse_args()
    commands = {"Penstock": PENSTOCK, "infinity": arguments.infinity, "vLLM": arguments.vllm}
    chosen = [each for each in CONTENDERS if commands[each.server]]
    words = single_tokens(arguments.model)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = {}
        for each in chosen:
            ports[each] = free_port()
            command, settings = command_of(each, arguments, ports[each])
            log = folder / f"{each.server} {each.kind}.log"
            stack.enter_context(running(command, ports[each], log, settings))
        for tokens in arguments.tokens:
            texts = make_texts(words, tokens, arguments.requests)
            found: dict[Contender, list[Load]] = {each: [] for each in chosen}
            for each in chosen:
                asyncio.run(load(ports[each], texts, arguments.concurrency))
            for number in range(arguments.rounds):
                random.Random(number).shuffle(texts)
                for each in chosen:
                    found[each].append(asyncio.run(load(ports[each], texts, arguments.concurrency)))
            report(tokens, arguments, found)


def command_of(contender: Contender, arguments: argparse.Namespace, port: int) -> tuple[list[str], dict[str, str]]:
    """What starts a server, and what it finds in its environment."""
    model, threads, dtype = str(arguments.model.resolve()), str(arguments.threads), contender.kind.split()[-1]
    address = ["--host", HOST, "--port", str(port)]
    settings = OFFLINE | {"OMP_NUM_THREADS": threads, "DO_NOT_TRACK": "1"}
    if contender.server == "Penstock":
        weights = ["--quantization", "int8"] if dtype == "int8" else ["--dtype", dtype]
        command = [*PENSTOCK, "serve", model, *address, *weights, "--served-model-name", NAME, "--threads", threads]
        return [*command, "--data-dir", "off", "--log-level", "warning"], {}
    if contender.server == "infinity":
        command = [arguments.infinity, "v2", "--model-id", model, "--served-model-name", NAME, *address]
        command += ["--url-prefix", "/v1", "--engine", "torch", "--device", "cpu", "--dtype", dtype]
        return command, settings
    command = [arguments.vllm, "serve", model, *address, "--served-model-name", NAME, "--dtype", dtype]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: arguments.threads]))
    return command, settings | {"VLLM_CPU_KVCACHE_SPACE": VLLM_KV_GIB, "VLLM_CPU_OMP_THREADS_BIND": cores}


class Pieces:
    """Of an answer, as they come."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def take(self, data: bytes, _now: float) -> bool:
        """Keep one, and stay."""
        self.all.append(data)
        return False


class Load(NamedTuple):
    """Seconds that all requests took together, and each of them."""

    whole: float
    each: list[float]


async def load(port: int, texts: list[str], concurrency: int) -> Load:
    """All texts, `concurrency` of them at a time."""
    client, seconds, sizes = Client(Address(HOST, port)), list[float](), set[int]()
    waiting = iter(texts)

    async def one_after_the_other() -> None:
        for text in waiting:
            body = msgspec.json.encode({"model": NAME, "input": text, "encoding_format": "base64"})
            pieces, began = Pieces(), time.monotonic()
            exchange = await client.fetch("POST", PATH, body, pieces.take)
            if exchange.status != 200:
                answer = exchange.body.decode(errors="replace")
                raise SystemExit(f"A request failed: HTTP {exchange.status}: {answer}")
            seconds.append(exchange.ended - began)
            (vector,) = msgspec.json.decode(b"".join(pieces.all), type=Answer).data
            floats = vector.embedding
            sizes.add(len(base64.b64decode(floats)) // 4 if isinstance(floats, str) else len(floats))

    begin = time.monotonic()
    try:
        await asyncio.gather(*(one_after_the_other() for _ in range(concurrency)))
    finally:
        client.close()
    if len(sizes) != 1:
        raise SystemExit(f"Vectors of one model have {sorted(sizes)} numbers.")
    return Load(time.monotonic() - begin, seconds)


def report(tokens: int, arguments: argparse.Namespace, found: dict[Contender, list[Load]]) -> None:
    """A table of one load; Penstock is compared with the best of each other server, round by round."""
    others = sorted({each.server for each in found} - {"Penstock"})
    best = {
        server: min((loads for each, loads in found.items() if each.server == server), key=median_seconds)
        for server in others
    }
    rows = []
    for contender, loads in found.items():
        ratios: list[str | None] = [None] * len(others)
        if contender.server == "Penstock":
            pairs = [zip(best[server], loads, strict=True) for server in others]
            ratios = [f"{statistics.median(other.whole / own.whole for other, own in pair):.2f}" for pair in pairs]
        latencies = [second for each in loads for second in each.each]
        p50, p99 = (1000 * (reporting.percentile(latencies, share) or 0.0) for share in (0.5, 0.99))
        rate = arguments.requests / median_seconds(loads)
        rows.append((contender.server, contender.kind, rate, p50, p99, *ratios))
    reporting.report(
        f"{tokens} tokens a text, {arguments.concurrency} requests at a time",
        ("server", "weights", "texts a second", "median, ms", "p99, ms", *(f"times {server}" for server in others)),
        rows,
    )
    sys.stdout.flush()


def median_seconds(loads: list[Load]) -> float:
    """Of the rounds of one server."""
    return statistics.median(each.whole for each in loads)


if __name__ == "__main__":
    main()
