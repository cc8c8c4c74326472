"""Whether a change, or a wheel, is slower: two environments, measured in turn, as ratios of each pair.

    python benchmarks/two_versions.py --before DIR --after DIR --models DIR [--pairs 40] [CASE ...]

Each folder has an environment in `.venv`, with its own native kernels: a checkout, or one where a wheel is installed.
`--models` has `bf16` and `toy` of `benchmarks/make_checkpoints.py`. Both versions are loaded, and take turns of about a
second: a machine that others use too changes its speed more slowly than that. Which comes first turns with each pair.
"""

import argparse
import asyncio
import hashlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import reporting
from serving import HOST, Server, free_port

STREAMS, TOKENS = 32, 64
# Pairs before both versions are loaded anew.
LOADED = 10
# What one turn took, for a kind of work.
Turn = Callable[["Work"], "Taken"]


class Taken(NamedTuple):
    """Its seconds, and what its tokens are known by; empty where nobody looks at them."""

    seconds: float
    tokens: str = ""


class Work(NamedTuple):
    """A batch of prompts of `prompt` random tokens, and `output` tokens for each."""

    what: str
    batch: int
    prompt: int
    output: int


def answer_turns(model: str, quantization: str) -> None:
    """In a process of a checkout: do the work of each line of the standard input, and print what it took."""
    from penstock import LLM, SamplingParams

    llm = LLM(model, quantization=quantization, speculative="off", max_num_seqs=32)
    source = random.Random(0)
    for line in sys.stdin:
        work = Work(*json.loads(line))
        prompts = [[source.randrange(llm.vocab_size) for _ in range(work.prompt)] for _ in range(work.batch)]
        params = SamplingParams(temperature=0.0, max_tokens=work.output, ignore_eos=True)
        began = time.perf_counter()
        found = llm.generate(prompts, params)
        seconds = time.perf_counter() - began
        tokens = hashlib.blake2b(json.dumps([each.token_ids for each in found]).encode(), digest_size=8)
        print(json.dumps((seconds, tokens.hexdigest())), flush=True)


@contextmanager
def engine(tree: Path, model: Path, quantization: str) -> Iterator[Turn]:
    """A checkout's engine in a process of its own."""
    command = [tree / ".venv/bin/python", __file__, "--turns", model, quantization]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, told = process.stdin, process.stdout

        def turn(work: Work) -> Taken:
            asked.write(json.dumps(work) + "\n")
            asked.flush()
            line = told.readline()
            if not line:
                raise SystemExit(f"The engine of {tree} ended; its words are above.")
            return Taken(*json.loads(line))

        try:
            yield turn
        finally:
            asked.close()


@contextmanager
def server(tree: Path) -> Iterator[Turn]:
    """A checkout's server with the bundled model, asked by streams."""
    port = free_port()
    command = [tree / ".venv/bin/penstock", "serve", "haiku", "--port", str(port)]
    command += ["--speculative", "off", "--max-num-seqs", str(STREAMS)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        def turn(work: Work) -> Taken:
            began = time.perf_counter()
            asyncio.run(_all_streams(port, work))
            return Taken(time.perf_counter() - began)

        try:
            Server(port, time.monotonic(), process).wait_until_ready()
            yield turn
        finally:
            process.terminate()


async def _all_streams(port: int, work: Work) -> None:
    await asyncio.gather(*(_stream(port, work) for _ in range(work.batch)))


async def _stream(port: int, work: Work) -> None:
    # Like no other, since the prefix cache would know it.
    prompt = [random.randrange(5, 900) for _ in range(work.prompt)]
    asked = {"prompt": prompt, "max_tokens": work.output, "stream": True, "ignore_eos": True, "temperature": 0}
    body = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
    told = await reader.read()
    writer.close()
    if b"data: [DONE]" not in told:
        raise SystemExit(f"A stream has no end: {told[-300:]!r}")


class Case(NamedTuple):
    """What is loaded, and the kinds of work that it does."""

    load: Callable[[Path], AbstractContextManager[Turn]]
    works: Sequence[Work]


def cases(models: Path) -> dict[str, Case]:
    """What can be measured, by name. Prompts of decodes are short, so that their time is that of steps of decodes."""
    large, toy = models / "bf16", models / "toy"
    decodes = [
        Work(f"decode, batch {batch}", batch, 4, tokens) for batch, tokens in ((1, 16), (4, 12), (16, 8), (32, 8))
    ]
    works = [*decodes, Work("prefill, 256 tokens", 1, 256, 1)]
    steps = [Work("decode, batch 1", 1, 4, 256), Work("decode, batch 32", 32, 4, 128)]
    return {
        "int4": Case(lambda tree: engine(tree, large, "int4"), works),
        "bfloat16": Case(lambda tree: engine(tree, large, "none"), works),
        "toy": Case(lambda tree: engine(tree, toy, "none"), steps),
        "http": Case(server, [Work(f"{STREAMS} streams over HTTP", STREAMS, 48, TOKENS)]),
    }


def measure(case: Case, trees: tuple[Path, Path], pairs: int) -> dict[Work, list[tuple[Taken, Taken]]]:
    """What was taken before and after, for each pair of turns, of each kind of work.

    Both are loaded anew for every ten pairs, either of them first in turn: how fast a process is depends a little on
    the memory that it got.
    """
    found: dict[Work, list[tuple[Taken, Taken]]] = {work: [] for work in case.works}
    for load in range(-(-pairs // LOADED)):
        loaded = (0, 1) if load % 2 == 0 else (1, 0)
        with ExitStack() as stack:
            turns = {side: stack.enter_context(case.load(trees[side])) for side in loaded}
            for work in case.works:
                for side in loaded:
                    turns[side](work)
                for number in range(min(LOADED, pairs - load * LOADED)):
                    order = loaded if number % 2 == 0 else loaded[::-1]
                    taken = {side: turns[side](work) for side in order}
                    found[work].append((taken[0], taken[1]))
    return found


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--before", type=Path, help="a folder with an environment in .venv")
    parser.add_argument("--after", type=Path, help="another one")
    parser.add_argument("--models", type=Path, help="the folder of checkpoints")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of turns of each kind of work (default 40)")
    parser.add_argument("--turns", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("case", nargs="*", help="int4, bfloat16, toy, http; all without")
    arguments = parser.parse_args()
    if arguments.turns:
        answer_turns(*arguments.turns)
        return
    if None in (arguments.before, arguments.after, arguments.models) or arguments.pairs < 2:
        parser.error("--before, --after and --models are needed, and two pairs or more")
    known = cases(arguments.models.resolve())
    trees = (arguments.before.resolve(), arguments.after.resolve())
    rows = []
    for name in arguments.case or known:
        for work, found in measure(known[name], trees, arguments.pairs).items():
            ratios = sorted(before.seconds / after.seconds for before, after in found)
            quarters = statistics.quantiles(ratios, n=4)
            tokens = work.batch * (work.output if work.output > 1 else work.prompt)
            middle = (statistics.median(pair[side].seconds for pair in found) for side in (0, 1))
            shown = (f"{tokens / value:,.0f}" for value in middle)
            parts = (f"{part:.3f}" for part in (quarters[1], quarters[0], quarters[2]))
            same = sum(before.tokens == after.tokens != "" for before, after in found)
            rows.append((name, work.what, *shown, *parts, f"{same} of {len(found)}" if found[0][0].tokens else "–"))
            print(*rows[-1], file=sys.stderr, flush=True)
    reporting.report(
        f"{arguments.pairs} pairs",
        ("case", "", "before, tokens/s", "after", "ratio, median", "first quarter", "third quarter", "same tokens"),
        rows,
        "Ratios are those of neighbouring turns. Both versions are given the same prompts.",
    )


if __name__ == "__main__":
    main()
