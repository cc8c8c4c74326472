"""How much faster a long context is read whose keys and values are bytes: decode steps of two engines, in turn.

The engines differ in `--kv-cache-dtype` alone, and are in memory together. Contexts are made as `context_cost.py` makes
them, with zeros, since speed does not depend on what keys and values say.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import reporting
from context_cost import SPARE_SEQUENCES, build_contexts, decode_cost

from penstock import LLM


def parse() -> argparse.Namespace:
    """The command line."""
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout, or a hub name")
    parser.add_argument("--context", type=int, default=8064, help="tokens before (default 8064)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences (default 16)")
    parser.add_argument("--steps", type=int, default=16, help="decode steps that are timed at a time (default 16)")
    parser.add_argument("--rounds", type=int, default=5, help="of both (default 5)")
    parser.add_argument("--quantization", default="int4", help="of the weights (default int4)")
    parser.add_argument("--kept", default="int8", help="what is compared with auto (default int8)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    kinds = ("auto", arguments.kept)
    engines = {
        kind: LLM(
            arguments.model,
            quantization=arguments.quantization,
            kv_cache_dtype=kind,
            max_model_len=arguments.context + arguments.steps + 1,
            max_num_seqs=arguments.batch_size + SPARE_SEQUENCES,
            speculative="off",
        )
        for kind in kinds
    }
    prompts = {
        kind: build_contexts(engine, arguments.batch_size, arguments.context) for kind, engine in engines.items()
    }
    steps: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(arguments.rounds):
        for kind, engine in engines.items():
            steps[kind].append(decode_cost(engine, prompts[kind], arguments.steps, 1))
        print(f"round {number + 1}: {', '.join(f'{kind} {steps[kind][-1]:.1f} ms' for kind in kinds)}", file=sys.stderr)
    ratios = [plain / kept for plain, kept in zip(*(steps[kind] for kind in kinds), strict=True)]
    rows = [
        [kind, arguments.batch_size / statistics.median(steps[kind]) * 1e3, statistics.median(steps[kind])]
        for kind in kinds
    ]
    print(f"{reporting.machine()}; context {arguments.context}, batch {arguments.batch_size}")
    print(reporting.table(["cache", "tokens/s", "ms a step"], rows))
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if arguments.json is not None:
        figures = {"machine": reporting.machine(), "milliseconds": steps, "ratios": ratios}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
