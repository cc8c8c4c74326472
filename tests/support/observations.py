"""Made-up observations of servers, and answers of /v1/stats."""

from typing import Any

from penstock.core.facts import WAITS, StepTotals, Wait
from penstock.doctor.observation import Observation
from penstock.observability.stats import (
    KvBlocks,
    Latencies,
    Now,
    Period,
    ProcessFigures,
    Quantiles,
    Rates,
    Second,
    Settings,
    Stats,
    Utilisation,
)

SETTINGS = Settings(
    max_model_len=4096,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    target_itl=0.1,
    block_size=16,
    prefix_caching=True,
    threads=2,
    quantization="none",
    dtype="bfloat16",
    max_queued_requests=128,
    memory_bytes_per_second=10e9,
    operations_per_second=100e9,
)
NOTHING = Quantiles()
EVEN = Quantiles(1000, 0.01, 0.01, 0.012, 0.015, 0.02)


def held(**seconds: float) -> tuple[float, ...]:
    """Seconds in which somebody waited, by what for."""
    return tuple(seconds.get(wait, 0.0) for wait in WAITS)


def steps(**changes: Any) -> StepTotals:
    """Ten seconds of steps that decode eight sequences, 1,000 of 10 ms each, nothing special about them."""
    usual = {
        "steps": 1000,
        "schedule": 0.2,
        "execute": 9.4,
        "sample": 0.2,
        "send": 0.2,
        "budget": 2_048_000,
        "rows": 8000,
        "decodes": 8000,
        "bytes": int(20e9),
        "operations": int(100e9),
    }
    return StepTotals(**{**usual, **changes})


def waits(wait: Wait, seconds: float, **changes: Any) -> StepTotals:
    """The same, while somebody waits for something."""
    return steps(held=held(**{wait: seconds}), **changes)


def prompts(**changes: Any) -> StepTotals:
    """The same with long prompts, whose 20 steps take 200 ms each."""
    return steps(
        **{
            "steps": 620,
            "chunk_steps": 20,
            "chunk_seconds": 4.0,
            "chunk_tokens": 20 * 2040,
            "rows": 4980,
            "decodes": 4960,
            **changes,
        }
    )


def now(waiting: int = 0, used: int = 100, running: int = 8) -> Now:
    return Now(running + waiting, running, waiting, 50 * waiting, KvBlocks(1000, used, 0, 1000 - used, 0))


def second(at: float, waiting: int = 0, used: int = 100) -> Second:
    return Second(at, 8, waiting, 50 * waiting, used, 0, 1, 50, 800, 100, 0.02, 0.0, 0.94, 0.02, 0.02)


def latencies(itl: Quantiles = EVEN, ttft: Quantiles = EVEN, queue: Quantiles = EVEN) -> Latencies:
    return Latencies(ttft, itl, EVEN, EVEN, queue)


def seen(**changes: Any) -> Observation:
    """A server that does well: busy, with nobody waiting."""
    usual = {
        "model": "made-up",
        "version": "1.0",
        "seconds": 10.0,
        "settings": SETTINGS,
        "first": now(),
        "last": now(),
        "requests": {"completed": 40},
        "refused": {},
        "prompt_tokens": 2000,
        "output_tokens": 8000,
        "queried_tokens": 2000,
        "hit_tokens": 100,
        "steps": steps(),
        "latency": latencies(),
        "timeline": tuple(second(float(at)) for at in range(10)),
        "api_cpu": 0.3,
    }
    return Observation(**{**usual, **changes})


def period(requests: int, totals: StepTotals, **changes: Any) -> Period:
    """Since the start, with so many requests that ended."""
    usual = {
        "seconds": 60.0,
        "requests": {"completed": requests, "cancelled": 1},
        "refused": {"queue_full": requests // 10},
        "prompt_tokens": 50 * requests,
        "output_tokens": 200 * requests,
        "prefill_tokens": 50 * requests,
        "decode_tokens": 200 * requests,
        "recomputed_tokens": 0,
        "prefix_queried_tokens": 40 * requests,
        "prefix_hit_tokens": 10 * requests,
        "steps": totals,
        "waited": {},
        "latency": latencies(),
        "rates": Rates(1.0, 1.0, 1.0, 1.0),
        "utilisation": Utilisation(0.5),
    }
    return Period(**{**usual, **changes})


def stats(uptime: float, requests: int, totals: StepTotals, cpu: float, **changes: Any) -> Stats:
    """An answer of `GET /v1/stats`; `cpu` is what the API process has used."""
    life = period(requests, totals)
    usual = {
        "version": "1.0",
        "model": "made-up",
        "at": 1000.0 + uptime,
        "uptime": uptime,
        "ready": True,
        "why_not": None,
        "restarts": 0,
        "settings": SETTINGS,
        "waits": WAITS,
        "now": now(),
        "life": life,
        "minute": life,
        "timeline": [second(1000.0 + uptime - age) for age in range(59, -1, -1)],
        "processes": {"api": ProcessFigures(1, cpu), "engine": ProcessFigures(1, None)},
    }
    return Stats(**{**usual, **changes})
