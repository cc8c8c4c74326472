"""What a stream notices while very long prompts are read beside it: the gaps between its tokens.

    python benchmarks/long_prompt.py OUT/toy [--tokens N] [--prompts N] [--rounds N]

The prompts are text of N tokens (default 100,000), as completions and as chats, and ask for more output than the
context has left: so they are parsed, rendered and tokenized, and then refused, without costing the engine a step.
Rounds with and without them alternate. The checkpoint is served with a context of 262,144 tokens, whatever it was made
for.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import http_client
import reporting
import serving

CONTEXT = 262_144
STREAM_TOKENS = 400


def with_long_context(model: Path, folder: Path) -> Path:
    """The same checkpoint with another config.json."""
    for path in model.iterdir():
        os.symlink(path.resolve(), folder / path.name)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return folder


def send(port: int, path: str, body: bytes) -> tuple[int, float]:
    """Status and seconds of a request."""
    request = urllib.request.Request(f"http://{serving.HOST}:{port}{path}", body, {"Content-Type": "application/json"})
    begun = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    return status, time.monotonic() - begun


def bodies(tokens: int) -> list[tuple[str, bytes]]:
    """A completion and a chat of about so many tokens, written beforehand."""
    text = "the quick brown fox jumps over the lazy dog and " * (tokens // 10)
    message = {"role": "user", "content": text}
    return [
        ("/v1/completions", json.dumps({"prompt": text, "max_tokens": CONTEXT - 1}).encode()),
        ("/v1/chat/completions", json.dumps({"messages": [message], "max_tokens": CONTEXT - 1}).encode()),
    ]


async def stream(port: int, prompts: list[tuple[str, bytes]]) -> tuple[list[float], list[float]]:
    """Gaps of a stream while the prompts are sent one after another, and how long each took."""
    body = {"prompt": [5, 6, 7], "max_tokens": STREAM_TOKENS, "ignore_eos": True, "temperature": 0}
    running = asyncio.create_task(http_client.complete(port, body, time.monotonic()))
    took = []
    await asyncio.sleep(0.05)
    for path, data in prompts:
        if running.done():
            break
        status, seconds = await asyncio.to_thread(send, port, path, data)
        if status != 400:
            raise SystemExit(f"a prompt that leaves no room for its output was answered by {status}")
        took.append(seconds)
    timing = await running
    if timing.error is not None:
        raise SystemExit(timing.error)
    return timing.gaps, took


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--prompts", type=int, default=4, help="sent in each round (default 4)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    prompts = (bodies(arguments.tokens) * arguments.prompts)[: arguments.prompts]
    worst: dict[str, list[float]] = {"without": [], "with": []}
    medians: dict[str, list[float]] = {"without": [], "with": []}
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        model = with_long_context(arguments.model, Path(folder))
        options = ["--max-model-len", str(CONTEXT), "--kv-cache-memory", "2GB"]
        with serving.serving(str(model), options) as server:
            server.wait_until_ready()
            for turn in range(arguments.rounds + 1):
                for name, sent in (("without", []), ("with", prompts)):
                    gaps, seconds = asyncio.run(stream(server.port, sent))
                    if turn:  # the first warms up
                        worst[name].append(max(gaps) * 1e3)
                        medians[name].append(statistics.median(gaps) * 1e3)
                        took += seconds
    rows = [
        [f"{name} long prompts", statistics.median(medians[name]), statistics.median(worst[name]), max(worst[name])]
        for name in worst
    ]
    title = f"A stream beside prompts of {arguments.tokens:,} tokens, {len(took)} in {arguments.rounds} rounds"
    header = ["ms between tokens", "median", "longest, median over rounds", "longest of all"]
    note = f"A long prompt was read and refused in {statistics.median(took) * 1e3:.0f} ms (median)." if took else ""
    reporting.report(title, header, rows, note)


if __name__ == "__main__":
    main()
