"""What prefix caching is worth: many simultaneous requests whose prompts begin with the same tokens.

Starts a server with prefix caching and one without, sends all requests at once over HTTP, and reports the time to first
token and how many prompt tokens the engine computed. With caching, the common prefix should be computed once.
"""

import asyncio
import random
import statistics

import reporting
from http_client import run_load
from serving import serving

PREFILLED = "penstock_prefill_tokens_total"


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout, or a hub name")
    parser.add_argument("--requests", type=int, default=100, help="simultaneous requests (default 100)")
    parser.add_argument("--prefix-len", type=int, default=500, help="tokens that all prompts share (default 500)")
    parser.add_argument("--suffix-len", type=int, default=16, help="tokens of each prompt after them (default 16)")
    parser.add_argument("--output-len", type=int, default=8, help="tokens generated for each request (default 8)")
    parser.add_argument("--vocabulary", type=int, default=30000, help="prompt ids are below it (default 30000)")
    arguments = parser.parse_args()

    generator = random.Random(0)

    def tokens(count: int) -> list[int]:
        return generator.choices(range(10, arguments.vocabulary), k=count)

    prefix = tokens(arguments.prefix_len)
    bodies = [
        {"prompt": prefix + tokens(arguments.suffix_len), "max_tokens": arguments.output_len, "temperature": 0,
         "ignore_eos": True}
        for _ in range(arguments.requests)
    ]  # fmt: skip
    rows, medians = [], {}
    for flag in ("--no-enable-prefix-caching", "--enable-prefix-caching"):
        with serving(arguments.model, [flag]) as server:
            server.wait_until_ready()
            # The first request of a process pays for what is set up once.
            asyncio.run(run_load(server.port, [{**bodies[0], "prompt": tokens(16)}]))
            before = server.metric(PREFILLED)
            timings, _ = asyncio.run(run_load(server.port, bodies))
            prefilled = int(server.metric(PREFILLED) - before)
        ttfts = [timing.ttft for timing in timings]
        medians[flag] = statistics.median(ttfts)
        cells = [1000 * value for value in (statistics.fmean(ttfts), medians[flag], max(ttfts))]
        rows.append((flag.removeprefix("--"), *cells, prefilled, sum(timing.cached_tokens for timing in timings)))
    without, with_cache = medians.values()
    reporting.report(
        f"{arguments.requests} simultaneous requests, {arguments.prefix_len} common and {arguments.suffix_len} own "
        "prompt tokens",
        ("server", "TTFT mean, ms", "TTFT median, ms", "TTFT worst, ms", "prompt tokens computed", "cached"),
        rows,
        f"Prefix caching changes the median TTFT by {with_cache / without - 1:+.0%}.",
    )


if __name__ == "__main__":
    main()
