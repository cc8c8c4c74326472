"""How much memory `penstock serve` takes after a workload, beside its weights and its KV pool.

Sums up the proportional set size (PSS) of all its processes, in which a page that several share counts once: after a
first start, which packs the weights and leaves them on disk, and after a later one, which maps them. The bound is
weights + KV pool + 400 MB, and a tenth more; the pool takes memory only as it is used.
"""

import asyncio
import random
import tempfile
from pathlib import Path

import psutil
import reporting
from http_client import run_load
from serving import serving

REST_BYTES = 400_000_000
TOLERANCE = 1.1
POOL = 1 << 30


def smaps(process: psutil.Process) -> dict[str, int]:
    """Bytes of a process by kind, as the kernel adds them up."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def measure(model: str, options: list[str], requests: int, prompt: int, output: int) -> tuple[int, int, int]:
    """PSS of all the server's processes after the workload, and of it what is anonymous and what is of files."""
    rng = random.Random(0)
    with serving(model, options) as server:
        server.wait_until_ready()
        bodies = [
            {"prompt": [rng.randrange(10, 250) for _ in range(prompt)], "max_tokens": output, "ignore_eos": True}
            for _ in range(requests)
        ]
        asyncio.run(run_load(server.port, bodies))
        parent = psutil.Process(server.process.pid)
        parts = [smaps(process) for process in (parent, *parent.children(recursive=True))]
        pss, anonymous, of_files = (sum(part[name] for part in parts) for name in ("Pss", "Pss_Anon", "Pss_File"))
        return pss, anonymous, of_files


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout")
    parser.add_argument("--requests", type=int, default=32, help="how many at a time (default 32)")
    parser.add_argument("--input-len", type=int, default=16, help="tokens of each prompt (default 16)")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of each answer (default 64)")
    parser.add_argument("--kv-cache-memory", type=int, default=POOL, help="bytes of the KV pool (default 1 GiB)")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    arguments = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as cache:
        pool = ["--kv-cache-memory", str(arguments.kv_cache_memory), "--packed-cache", cache]
        for start in ("first", "later"):
            load = (arguments.requests, arguments.input_len, arguments.output_len)
            parts = measure(arguments.model, [*pool, *arguments.option], *load)
            weights = sum(file.stat().st_size for file in Path(cache).iterdir())
            bound = TOLERANCE * (weights + arguments.kv_cache_memory + REST_BYTES)
            rows.append((start, *(f"{size / 1e6:,.0f}" for size in (*parts, weights, bound))))
    header = ("start", "PSS", "of it anonymous", "of files", "packed weights", "bound")
    shape = f"{arguments.requests} requests of {arguments.input_len} + {arguments.output_len} tokens at a time"
    note = f"MB, after {shape}, with a KV pool of {arguments.kv_cache_memory / 1e6:,.0f} MB."
    reporting.report(f"Memory of {Path(arguments.model).name}", header, rows, note)


if __name__ == "__main__":
    main()
