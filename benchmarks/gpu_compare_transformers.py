"""Penstock beside transformers' continuous batching on one GPU, in turn: decoding many sequences at a time.

Both have the same shape with random weights in bfloat16, made on the GPU, and stay in its memory together; Penstock's
KV pool is given its size for that. A round is the time of so many further tokens of fresh prompts, the time to the
first being subtracted. 2 times as many tokens per second are wanted at batch 64.

    python benchmarks/gpu_compare_transformers.py 8b --batch-size 64
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import reporting
from gpu_rooflines import WARM_UP, device_name, run
from gpu_shapes import SHAPES, write_config

from penstock import LLM

WANTED = 2.0


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("shape", choices=SHAPES, help="of the model")
    parser.add_argument("--device", default="cuda", help="of Penstock's (default cuda)")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences (default 64)")
    parser.add_argument("--context", type=int, default=128, help="tokens of a prompt (default 128)")
    parser.add_argument("--tokens", type=int, default=128, help="further tokens of each (default 128)")
    parser.add_argument("--rounds", type=int, default=5, help="of both (default 5)")
    parser.add_argument("--kv-cache-memory", type=int, default=12 << 30, help="bytes (default 12 GiB)")
    arguments = parser.parse_args()
    batch, context, tokens = arguments.batch_size, arguments.context, arguments.tokens
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_config(Path(folder), arguments.shape))
        llm = LLM(
            model,
            device=arguments.device,
            load_format="dummy",
            max_model_len=context + max(tokens, WARM_UP) + 2,
            max_num_seqs=batch,
            kv_cache_memory=arguments.kv_cache_memory,
            enable_prefix_caching=False,
            speculative="off",
        )
        command = [sys.executable, str(Path(__file__).parent / "peers" / "bench_transformers_gpu.py"), model]
        peer = subprocess.Popen(
            [*command, str(batch), str(context), str(tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        run(llm, batch, context, WARM_UP)
        theirs_of(peer)
        ours, theirs = [], []
        for number in range(arguments.rounds):
            first, whole = run(llm, batch, context, 1)[0], run(llm, batch, context, tokens + 1)[0]
            ours.append(batch * tokens / (whole - first))
            found = theirs_of(peer)
            theirs.append(batch * tokens / (found["whole"] - found["first"]))
            print(f"round {number + 1}: {ours[-1]:,.0f} and {theirs[-1]:,.0f} tokens/s", file=sys.stderr, flush=True)
        peer.communicate()
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    print(f"{device_name()}, {arguments.shape}, batch {batch}: Penstock {statistics.median(ours):,.0f} tokens/s, "
          f"transformers {statistics.median(theirs):,.0f}; ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
          f"{WANTED:g} wanted")  # fmt: skip
    sys.exit(ratio < WANTED)


def theirs_of(peer: "subprocess.Popen[str]") -> dict[str, float]:
    """One run of the other."""
    assert peer.stdin is not None and peer.stdout is not None, "both are pipes"
    peer.stdin.write("\n")
    peer.stdin.flush()
    line = peer.stdout.readline()
    if not line:
        raise SystemExit("Transformers' process has ended; its message is above.")
    found: dict[str, float] = json.loads(line)
    return found


if __name__ == "__main__":
    main()
