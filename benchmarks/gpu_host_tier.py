"""What is the processor's memory beside a GPU's pool worth? A prompt that the pool has lost is asked again.

The pool has room for one prompt. Two prompts take turns, and an engine that keeps what is lost in the processor's
memory takes turns with one that does not.

    python benchmarks/gpu_host_tier.py MODEL [--tokens 4096] [--rounds 5]
    TRITON_INTERPRET=1 python benchmarks/gpu_host_tier.py haiku-draft --tokens 64 --rounds 3

The second is for a machine without a GPU: kernels are interpreted, so that the figure says nothing of a GPU.
"""

import random
import statistics
import time

import reporting

from penstock import LLM, SamplingParams
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions

PARAMS = SamplingParams(max_tokens=1, temperature=0.0)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4096, help="of a prompt (default 4096)")
    parser.add_argument("--rounds", type=int, default=5, help="of both prompts (default 5)")
    arguments = parser.parse_args()
    options = {
        "model": arguments.model,
        "device": "cuda",
        "speculative": "off",
        "max_num_seqs": 1,
        "max_model_len": arguments.tokens + 16,
    }
    spec = prepare(EngineOptions.of(**options), api_beside=False).config.cache.spec
    whole = spec.blocks_for(arguments.tokens + 16, arguments.tokens + 16) * spec.block_bytes
    engines = {
        "computed": LLM(**options, kv_cache_memory=whole),
        "from memory": LLM(**options, kv_cache_memory=whole, kv_host_memory=4 * whole),
    }
    prompts = [[random.Random(seed).randrange(5, 900) for _ in range(arguments.tokens)] for seed in (0, 1)]
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(arguments.rounds + 1):
        for prompt in prompts:
            for name, llm in engines.items():
                began = time.perf_counter()
                llm.generate({"prompt_token_ids": prompt}, PARAMS)
                if number:
                    seconds[name].append(time.perf_counter() - began)
    read = engines["from memory"].load.shelf("memory").read
    ratios = [kept / computed for kept, computed in zip(seconds["from memory"], seconds["computed"], strict=True)]
    reporting.report(
        f"First token of {arguments.tokens:,} tokens that the pool has lost, seconds",
        ("computed", "from the processor's memory", "part of it, median", "least", "greatest", "slots read"),
        [
            (
                *(statistics.median(each) for each in seconds.values()),
                f"{statistics.median(ratios):.1%}",
                f"{min(ratios):.1%}",
                f"{max(ratios):.1%}",
                read,
            )
        ],
        f"{len(ratios)} prompts.",
    )


if __name__ == "__main__":
    main()
