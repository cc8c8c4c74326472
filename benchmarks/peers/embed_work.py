"""What drivers of ../embedding_speed.py have in common: a line of JSON asks, and a line of JSON answers."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Embed = Callable[[list[str]], Any]
Count = Callable[[str], int]


def serve(load: Callable[[dict[str, Any]], tuple[Embed, Count]]) -> None:
    """Answer each line `[texts, times]` with the seconds that vectors of all texts took, on average."""
    answers, sys.stdout = sys.stdout, sys.stderr
    embed, count = load(json.loads(sys.argv[sys.argv.index("--work") + 1]))
    for line in sys.stdin:
        texts, times = json.loads(line)
        began = time.perf_counter()
        for _ in range(times):
            embed(texts)
        seconds = (time.perf_counter() - began) / times
        print(json.dumps({"seconds": seconds, "tokens": count(texts[0])}), file=answers, flush=True)
