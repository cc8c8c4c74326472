"""Are the tokens of several processes those of one?

    python benchmarks/ranks_tokens.py MODEL --dtype float32 --layout tensor=2 pipeline=3 "tensor=2 pipeline=2"

For each layout, the same prompts are answered greedily by one process and by several. Told are how many answers have
the same tokens, how many have the same log probabilities to the last bit, the largest difference of log probabilities
where tokens are the same, and behind which token answers part.
"""

import gc
from collections.abc import Sequence
from typing import Any, NamedTuple

import reporting

from penstock import LLM, SamplingParams

PROMPTS = (
    "The capital of France is",
    "Explain how a steam engine works.",
    "def fibonacci(n):",
    "Write a short story about a fox and a crow.",
    "List the planets of the solar system:",
    "Water boils at",
    "class Stack:\n    def __init__(self):",
    "The quick brown fox jumps over " * 60,
)


class Answer(NamedTuple):
    """Tokens, and the log probability of each."""

    tokens: list[int]
    logprobs: list[float]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--layout", nargs="+", default=["tensor=2"], help="sizes of it (default tensor=2)")
    parser.add_argument("--dtype", default="float32", help="of the computation (default float32)")
    parser.add_argument("--quantization", default="none", help="of the weights (default none)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default 64)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of all processes (default: all cores)")
    arguments = parser.parse_args()
    alone = answers(arguments, {})
    rows = []
    for layout in arguments.layout:
        sizes = {
            f"{name}_parallel_size": int(size) for name, _, size in (each.partition("=") for each in layout.split())
        }
        rows.append([layout, *compared(alone, answers(arguments, sizes))])
    reporting.report(
        f"{arguments.model}, {arguments.dtype}, {arguments.quantization}: {arguments.tokens} greedy tokens of "
        f"{len(PROMPTS)} prompts, beside one process",
        ["layout", "same tokens", "same bits", "largest difference of log probabilities", "first other tokens"],
        rows,
    )


def answers(arguments: Any, sizes: dict[str, int]) -> list[Answer]:
    """What a layout gives."""
    llm = LLM(
        arguments.model,
        dtype=arguments.dtype,
        quantization=arguments.quantization,
        threads=arguments.threads,
        packed_cache="off",
        max_model_len=1024,
        speculative="off",
        **sizes,
    )
    params = SamplingParams(max_tokens=arguments.tokens, temperature=0.0, ignore_eos=True, logprobs=0)
    found = llm.generate(list(PROMPTS), params)
    del llm
    gc.collect()
    return [Answer(each.token_ids, [one.logprob for one in each.samples[0].logprobs or []]) for each in found]


def compared(alone: Sequence[Answer], several: Sequence[Answer]) -> list[object]:
    """How many answers are the same, and how far the others are."""
    pairs = list(zip(alone, several, strict=True))
    same = [(mine, other) for mine, other in pairs if mine.tokens == other.tokens]
    largest = max(
        (abs(a - b) for mine, other in same for a, b in zip(mine.logprobs, other.logprobs, strict=True)), default=0.0
    )
    parted = [
        next(at for at, (a, b) in enumerate(zip(mine.tokens, other.tokens, strict=True)) if a != b)
        for mine, other in pairs
        if mine.tokens != other.tokens
    ]
    bits = sum(mine == other for mine, other in pairs)
    return [f"{len(same)} of {len(pairs)}", bits, f"{largest:.2g}", ", ".join(map(str, parted)) or "none"]


if __name__ == "__main__":
    main()
