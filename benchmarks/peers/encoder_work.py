"""What drivers of ../encoder_speed.py have in common: a line of JSON asks, and a line of JSON answers."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Work = Callable[[list[str]], Any]
Count = Callable[[list[str]], int]


def serve(load: Callable[[dict[str, Any]], tuple[Work, Count]]) -> None:
    """Answer each line `[texts, times]` with the seconds that all texts took, on average.

    `load` gives what makes vectors of texts, or scores of a query, the first text, with all others; and the number of
    tokens of the last text, or pair.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    work, count = load(json.loads(sys.argv[sys.argv.index("--work") + 1]))
    for line in sys.stdin:
        texts, times = json.loads(line)
        began = time.perf_counter()
        for _ in range(times):
            work(texts)
        seconds = (time.perf_counter() - began) / times
        print(json.dumps({"seconds": seconds, "tokens": count(texts)}), file=answers, flush=True)
