"""Whether the prefix cache's timing tells one tenant what another has sent.

In each trial somebody sends a prompt (warm) or another one of the same length (cold), and then an attacker times the
first token of the prompt. The attacker's key is either another tenant's (across), where the time must tell nothing, or
that of whoever sent the prompt (within), where it has to tell: that shows that the measurement can see a hit. The four
kinds come in random order, every prompt is random, and nobody else asks.

AUC is the probability that a cold prompt takes longer than a warm one, with a 95% interval by bootstrap: 0.5 where time
tells nothing, 1 where it tells all. Starts `penstock serve MODEL` with keys; the client runs on the same machine.
"""

import argparse
import asyncio
import hashlib
import random
import secrets
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import reporting
from numpy.typing import NDArray
from serving import HOST, serving

from penstock.bench.load.address import Address
from penstock.bench.load.answer import Answer
from penstock.bench.load.client import Client

WANTED = 0.55
WARMUP = 20


class Kind(NamedTuple):
    """Of a trial: whether the prompt was sent before, and whether by the tenant who times it."""

    warm: bool
    within: bool


class Timed(NamedTuple):
    """A request's time to first token, and what its usage says."""

    seconds: float
    cached_tokens: int


async def timed(client: Client, prompt: list[int]) -> Timed:
    """Send a prompt for one token."""
    answer = Answer()
    body = {
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    exchange = await client.fetch("POST", "/v1/completions", msgspec.json.encode(body), answer.feed)
    answer.end()
    problem = answer.error or answer.violation
    if exchange.status != 200 or problem or answer.first is None or answer.usage is None or exchange.sent is None:
        raise SystemExit(f"A request failed: {problem or exchange.body.decode(errors='replace')}")
    details = answer.usage.prompt_tokens_details
    return Timed(answer.first - exchange.sent, (details and details.cached_tokens) or 0)


async def measure(port: int, keys: Sequence[str], arguments: argparse.Namespace) -> dict[Kind, list[Timed]]:
    """All trials' times."""
    generator = random.Random(arguments.seed)
    victim, attacker = (Client(Address(HOST, port), key) for key in keys)

    def prompt() -> list[int]:
        return generator.choices(range(10, arguments.vocabulary), k=arguments.input_len)

    kinds = [Kind(warm, within) for warm in (True, False) for within in (True, False)]
    order = kinds * arguments.trials
    generator.shuffle(order)
    found: dict[Kind, list[Timed]] = {kind: [] for kind in kinds}
    for number, kind in enumerate([*kinds * (WARMUP // len(kinds)), *order]):
        asked = prompt()
        await timed(victim, asked if kind.warm else prompt())
        times = await timed(victim if kind.within else attacker, asked)
        if number >= WARMUP:
            found[kind].append(times)
    victim.close()
    attacker.close()
    return found


def auc(cold: NDArray[np.float64], warm: NDArray[np.float64]) -> float:
    """The probability that one of the cold is longer than one of the warm, where equal ones count a half."""
    ordered = np.sort(warm)
    below, upto = np.searchsorted(ordered, cold, "left"), np.searchsorted(ordered, cold, "right")
    return float((below + upto).sum() / (2 * len(cold) * len(warm)))


def interval(cold: NDArray[np.float64], warm: NDArray[np.float64], resamples: int = 2000) -> tuple[float, float]:
    """What 95% of the AUCs are in that samples of these samples have."""
    generator = np.random.default_rng(0)
    found = [
        auc(generator.choice(cold, len(cold)), generator.choice(warm, len(warm)))  # with replacement
        for _ in range(resamples)
    ]
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what to serve (default haiku)")
    parser.add_argument("--trials", type=int, default=1000, help="of each of the four kinds (default 1000)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of each prompt (default 128)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it (default 4000)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and their order (default 0)")
    arguments = parser.parse_args()

    keys = [secrets.token_urlsafe(32) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.toml"
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
        file.write_text(
            f'[[key]]\nname = "victim"\nsha256 = "{hashes[0]}"\n[[key]]\nname = "attacker"\nsha256 = "{hashes[1]}"\n'
        )
        with serving(arguments.model, ["--api-key-file", str(file), "--data-dir", "off"]) as server:
            server.wait_until_ready()
            found = asyncio.run(measure(server.port, keys, arguments))
    rows = []
    for within in (False, True):
        both = {warm: found[Kind(warm, within)] for warm in (True, False)}
        cold, warm = (np.array([trial.seconds for trial in both[warm]]) for warm in (False, True))
        low, high = interval(cold, warm)
        medians = [1000 * statistics.median(times) for times in (cold, warm)]
        hits = sum(trial.cached_tokens > 0 for trial in both[True])
        name = "within one tenant" if within else "across tenants"
        rows.append((name, len(cold), *medians, hits, f"{auc(cold, warm):.3f}", f"{low:.3f} to {high:.3f}"))
    reporting.report(
        f"Time to first token of prompts of {arguments.input_len} tokens, sent before or not",
        ("", "trials of each", "cold, median, ms", "warm, median, ms", "warm with a hit", "AUC", "95%"),
        rows,
        f"Wanted: at most {WANTED} across tenants, and near 1 within one.",
    )


if __name__ == "__main__":
    main()
