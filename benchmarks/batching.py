"""What continuous batching is worth: seven answers of 50 tokens and one of 500, again and again.

A queue of that mix, repeated, runs at a batch limit of eight: once with static batching, where a batch is filled, runs
until its last answer ends, and only then makes room; once with continuous batching, where the next request takes a row
as soon as one is free. The same engine, the same model; only the scheduler's rule differs.
"""

import time

import reporting

from penstock import LLM, SamplingParams

SHORT, LONG = 50, 500


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout, or a hub name")
    parser.add_argument("--repeats", type=int, default=10, help="how often the mix is in the queue (default 10)")
    parser.add_argument("--batch-limit", type=int, default=8, help="sequences that run at a time (default 8)")
    parser.add_argument("--input-len", type=int, default=16, help="tokens of each prompt (default 16)")
    parser.add_argument("--runs", type=int, default=1, help="runs of each kind, the best counts (default 1)")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of the computation (default: all)")
    arguments = parser.parse_args()

    lengths = ([SHORT] * 7 + [LONG]) * arguments.repeats
    prompts = [
        {"prompt_token_ids": [10 + (7 * index + offset) % 200 for offset in range(arguments.input_len)]}
        for index in range(len(lengths))
    ]
    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
    figures: dict[bool, tuple[float, int]] = {}
    for static in (True, False):
        llm = LLM(
            arguments.model,
            dtype=arguments.dtype,
            threads=arguments.threads,
            max_num_seqs=arguments.batch_limit,
            max_model_len=arguments.input_len + LONG,
            enable_prefix_caching=False,
            static_batching=static,
            speculative="off",
        )
        llm.generate(prompts[0], SamplingParams(max_tokens=4, ignore_eos=True))
        seconds = []
        for _ in range(arguments.runs):
            before, started = llm.load.step, time.perf_counter()
            outputs = llm.generate(prompts, params)
            seconds.append(time.perf_counter() - started)
            assert [len(output.token_ids) for output in outputs] == lengths
        figures[static] = min(seconds), llm.load.step - before
        del llm

    total = sum(lengths)
    rows = [
        ("static" if static else "continuous", seconds, steps, total / seconds, total / steps)
        for static, (seconds, steps) in figures.items()
    ]
    reporting.report(
        f"{arguments.repeats} × (7 × {SHORT} + 1 × {LONG}) tokens, at most {arguments.batch_limit} at a time",
        ("batching", "seconds", "steps", "output tokens/s", "tokens per step"),
        rows,
        f"Continuous batching gives {figures[True][0] / figures[False][0]:.2f} times the tokens per second.",
    )


if __name__ == "__main__":
    main()
