"""What holding output to a JSON schema costs: tokens per second of a batch with and without, alternating.

    python benchmarks/masking.py [MODEL] [--quantization int4] [--batch N] [--tokens N] [--rounds N]

All rows get the same number of tokens, whether held to the schema or free (end-of-sequence is ignored, and the schema
asks for more than fits). Prompts are random. Also timed: compiling a schema that was not seen before, on one thread.
"""

import random
import statistics
import time
from typing import Any

import reporting

from penstock import LLM, Grammar, SamplingParams
from penstock.sampling.grammar import Grammars

PROMPT_TOKENS = 16
COMPILED = 20
ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "address", "active"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 200}


def seconds(llm: LLM, prompts: list[list[int]], tokens: int, grammar: Grammar | None) -> float:
    """Time for `tokens` further tokens of each prompt, behind the first."""
    times = []
    for count in (1, tokens + 1):
        params = SamplingParams(temperature=1.0, seed=1, max_tokens=count, ignore_eos=True, grammar=grammar)
        begun = time.perf_counter()
        outputs = llm.generate(prompts, params)
        times.append(time.perf_counter() - begun)
        if any(len(output.token_ids) != count for output in outputs):
            raise SystemExit(
                f"not all outputs have {count} tokens: {outputs[0].finish_reason} {outputs[0].text[-80:]!r}"
            )
    return times[1] - times[0]


def compile_seconds(llm: LLM) -> list[float]:
    """Time to load the vocabulary, and then times to make schemas ready that all differ."""
    tokenizer = llm.tokenizer
    if tokenizer is None or tokenizer.eos_token_id is None:
        raise SystemExit("the model has no tokenizer with an end-of-sequence token")
    grammars = Grammars(tokenizer.table, llm.vocab_size, (tokenizer.eos_token_id,))
    begun = time.perf_counter()
    grammars.load()
    times = [time.perf_counter() - begun]
    for number in range(COMPILED):
        properties = {**ITEM["properties"], f"field{number}": {"type": "string"}}
        grammar = Grammar.json_schema({**ITEM, "properties": properties})
        begun = time.perf_counter()
        grammars.compile(grammar)
        times.append(time.perf_counter() - begun)
    return times


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    options = {"quantization": arguments.quantization, "enable_prefix_caching": False, "speculative": "off"}
    llm = LLM(arguments.model, max_model_len=1024, **options)
    compiles = compile_seconds(llm)
    chance = random.Random(0)
    prompts = [
        [chance.randrange(300, llm.vocab_size // 4) for _ in range(PROMPT_TOKENS)] for _ in range(arguments.batch)
    ]
    grammar = Grammar.json_schema(SCHEMA)
    rates: dict[str, list[float]] = {"free": [], "held to a schema": []}
    for turn in range(arguments.rounds + 1):
        for name, asked in (("free", None), ("held to a schema", grammar)):
            rate = arguments.batch * arguments.tokens / seconds(llm, prompts, arguments.tokens, asked)
            if turn:  # the first warms up
                rates[name].append(rate)
    ratios = [held / free for held, free in zip(rates["held to a schema"], rates["free"], strict=True)]
    rows = [[name, statistics.median(values), min(values), max(values)] for name, values in rates.items()]
    rows.append(["ratio, pair by pair", statistics.median(ratios), min(ratios), max(ratios)])
    rows.append(["load the vocabulary, ms", compiles[0] * 1e3, None, None])
    rows.append(["compile a schema, ms", *(f(compiles[1:]) * 1e3 for f in (statistics.median, min, max))])
    title = f"{arguments.model}, {arguments.quantization}, batch {arguments.batch}, {arguments.tokens} tokens each"
    reporting.report(title, ["tokens per second", "median", "least", "greatest"], rows)


if __name__ == "__main__":
    main()
