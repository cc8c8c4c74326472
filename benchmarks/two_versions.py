"""Whether a change made the engine or the server slower: two checkouts, measured in turn, as ratios of each pair.

    python benchmarks/two_versions.py --before DIR --after DIR --models DIR [--rounds 5] [CASE ...]

Each checkout has its own environment in `.venv`, with its own native kernels. `--models` has `bf16` and `toy` of
`benchmarks/make_checkpoints.py`. A case is measured once in either checkout and then in the other, and the order turns
with each round, so that a machine which becomes slower does so for both.
"""

import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import reporting
from serving import HOST, Server, free_port

STREAMS, ANSWERS, TOKENS = 32, 6, 128
Measured = Mapping[str, float]


def engine(tree: Path, model: Path, quantization: str, batches: str, lengths: tuple[int, int]) -> Measured:
    """Tokens a second of `penstock bench engine`, by what is measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [tree / ".venv/bin/penstock", "bench", "engine", model, "--quantization", quantization]
        command += ["--speculative", "off", "--batch-size", batches, "--repeat", "1", "--json", file]
        command += ["--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        results = json.loads(file.read_text())["results"]
    return {
        f"{what}, batch {result['batch_size']}": result[f"{what}_tokens_per_second"]
        for result in results
        for what in ("prefill", "decode")
    }


def streams(tree: Path) -> Measured:
    """Tokens a second that 32 streams get from a server with the bundled model."""
    port = free_port()
    command = [tree / ".venv/bin/penstock", "serve", "haiku", "--port", str(port)]
    command += ["--speculative", "off", "--max-num-seqs", str(STREAMS)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            Server(port, time.monotonic(), process).wait_until_ready()
            asyncio.run(_all_streams(port, 1))
            began = time.perf_counter()
            asyncio.run(_all_streams(port, ANSWERS))
            return {f"{STREAMS} streams over HTTP": STREAMS * ANSWERS * TOKENS / (time.perf_counter() - began)}
        finally:
            process.terminate()


async def _all_streams(port: int, answers: int) -> None:
    await asyncio.gather(*(_stream(port, number, answers) for number in range(STREAMS)))


async def _stream(port: int, number: int, answers: int) -> None:
    for answer in range(answers):
        prompt = [(7 * number + 3 * answer + place) % 900 + 5 for place in range(48)]
        asked = {"prompt": prompt, "max_tokens": TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection(HOST, port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
        told = await reader.read()
        writer.close()
        if b"data: [DONE]" not in told:
            raise SystemExit(f"A stream has no end: {told[-300:]!r}")


def cases(models: Path) -> dict[str, Callable[[Path], Measured]]:
    """What can be measured, by name."""
    large, toy = models / "bf16", models / "toy"
    return {
        "int4": lambda tree: engine(tree, large, "int4", "1,4,16,32", (64, 48)),
        "bfloat16": lambda tree: engine(tree, large, "none", "1,4,16,32", (64, 32)),
        "toy": lambda tree: engine(tree, toy, "none", "1,32", (32, 512)),
        "http": streams,
    }


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--after", type=Path, required=True, help="another one")
    parser.add_argument("--models", type=Path, required=True, help="the folder of checkpoints")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of each case (default 5)")
    parser.add_argument("case", nargs="*", help="int4, bfloat16, toy, http; all without")
    arguments = parser.parse_args()
    known = cases(arguments.models)
    rows = []
    for name in arguments.case or known:
        pairs: list[tuple[Measured, Measured]] = []
        for number in range(arguments.rounds):
            trees = [arguments.before.resolve(), arguments.after.resolve()]
            if number % 2:
                after, before = (known[name](tree) for tree in reversed(trees))
            else:
                before, after = (known[name](tree) for tree in trees)
            pairs.append((before, after))
        for what in pairs[0][0]:
            ratios = sorted(after[what] / before[what] for before, after in pairs)
            middle = (statistics.median(pair[side][what] for pair in pairs) for side in (0, 1))
            shown = (f"{value:,.0f}" for value in middle)
            rows.append(
                (name, what, *shown, f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}")
            )
    reporting.report(
        f"{arguments.rounds} pairs",
        ("case", "", "before, tokens/s", "after", "ratio, median", "least", "greatest"),
        rows,
        "Ratios are those of neighbouring runs.",
    )


if __name__ == "__main__":
    main()
