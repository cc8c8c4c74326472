"""What `--workload` of a plan says: lengths of requests, by a usual name or from a trace, whose rate it has too."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from penstock.bench.load.traces import BLOCK_TOKENS, read_trace
from penstock.core.errors import ConfigurationError

_INPUT, _OUTPUT = 1024, 256
# Seconds over which a trace's busiest time is counted.
_PEAK_SECONDS = 60.0


class Requests(NamedTuple):
    """Requests that a plan is for.

    Attributes:
        input_tokens, output_tokens, cached_tokens: means.
        static: whether all begin together.
        rate, peak: requests a second of a trace, in the mean and in its busiest minute; None without one.
        said: what they are, for people.
    """

    input_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0
    static: bool = False
    rate: float | None = None
    peak: float | None = None
    said: str = ""


# Means of what services have published, but for the last two, which are assumptions.
NAMED = {
    "chat": Requests(1155, 211, said="conversations of Azure's trace of 2023 (Patel et al., 2024)"),
    "code": Requests(2048, 28, said="completions of code of Azure's trace of 2023 (Patel et al., 2024)"),
    "agent": Requests(8596, 182, 5072, said="tools and agents of Kimi's trace, 59% of them cached (Qin et al., 2025)"),
    "rag": Requests(4000, 300, said="an assumption: a question with five passages of 750 tokens"),
    "batch": Requests(1024, 128, static=True, said="an assumption: documents that are classified or condensed"),
}


def requests_of(
    workload: str | None, input_len: int | None, output_len: int | None, cached_len: int | None
) -> Requests:
    """The requests of a name, of a trace's file, or of lengths. Raises ConfigurationError."""
    if workload is None:
        return Requests(input_len or _INPUT, output_len or _OUTPUT, cached_len or 0)
    for option, given in (("--input-len", input_len), ("--output-len", output_len), ("--cached-len", cached_len)):
        if given is not None:
            raise ConfigurationError(f"--workload has lengths of its own; leave {option} out, or --workload.")
    if workload in NAMED:
        return NAMED[workload]
    if Path(workload).suffix not in (".csv", ".jsonl"):
        raise ConfigurationError(
            f"--workload {workload!r} is none of {', '.join(NAMED)}, and no trace, whose name ends in .csv or .jsonl."
        )
    return _traced(Path(workload))


def _traced(file: Path) -> Requests:
    """Means of a trace's requests. Of blocks that came before, all are taken to be in the cache."""
    count = inputs = outputs = cached = 0
    at, minutes, known = 0.0, Counter[int](), set[int]()
    for request in read_trace(file, "--workload"):
        count, at = count + 1, request.at
        inputs, outputs = inputs + max(1, request.prompt), outputs + max(1, request.output)
        minutes[int(at / _PEAK_SECONDS)] += 1
        seen = 0
        for identity in request.hash_ids:
            if identity not in known:
                break
            seen += BLOCK_TOKENS
        known.update(request.hash_ids)
        # A prompt's last token is always computed.
        cached += max(0, min(seen, request.prompt - 1))
    if at <= 0:
        raise ConfigurationError(f"--workload {file} has no two requests that come at different times, so no rate.")
    return Requests(
        inputs / count,
        outputs / count,
        cached / count,
        rate=count / at,
        peak=max(minutes.values()) / min(_PEAK_SECONDS, at),
        said=f"means of {count:,} requests of {file.name}",
    )
