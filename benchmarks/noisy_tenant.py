"""What a noisy tenant costs another: the quiet one's time to first token, by itself and beside neighbours.

The quiet tenant sends short prompts at random (Poisson), at `--load` of the half of the engine that is its share. In
turn it is (a) by itself; (b) by itself on an engine with half of the threads; (c) the same, while its neighbour, which
sends long prompts at random `--noise` times as fast as half of the machine can serve them, has an engine with the other
half; (d) beside a neighbour that sends as much as its own half can serve; (e) beside one that sends `--noise` times as
much; (f) the same, with both as one tenant, first come, first served, in the first round only. To be alone at its share
is (c): a machine that is cut in two, with the same requests and the same client beside it. The last columns have the
99th percentile by those of the others.

Arrivals of the quiet tenant are the same in all, rounds take turns, and what is left of the neighbour's requests
at a round's end is aborted. What a share is, is measured first: requests of each kind a second, by themselves.

Time to first token counts from when a request was due. Figures are medians over rounds of each round's percentile. The
engine runs in a process of its own, the client beside it on the same machine.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import reporting

from penstock import AsyncEngine, SamplingParams

CALIBRATION_REQUESTS = 48
Send = Callable[[int], Awaitable[float]]


@dataclass(frozen=True)
class Shape:
    """Requests of one tenant: tokens in and out."""

    tenant: str
    input_len: int
    output_len: int


@dataclass(frozen=True)
class Kind:
    """A kind of round: how many times its share the neighbour sends, and as whom."""

    name: str
    noise: float
    tenant: str = "noisy"


ALONE = Kind("by itself", 0.0)
HALF = Kind("by itself, half of the threads", 0.0)
CUT = "by itself, half of the threads, the neighbour on the others"
WITHIN = Kind("neighbour within its share", 1.0)


async def first_token(engine: AsyncEngine, shape: Shape, tenant: str, vocabulary: int, seed: int) -> float:
    """When the first token of a new request came; its output is read to the end."""
    prompt = random.Random(seed).choices(range(10, vocabulary), k=shape.input_len)
    params = SamplingParams(temperature=0.0, max_tokens=shape.output_len, ignore_eos=True)
    first = 0.0
    async with contextlib.aclosing(engine.generate(prompt, params, tenant=tenant)) as outputs:
        async for _ in outputs:
            first = first or time.monotonic()
    return first


async def capacity(engine: AsyncEngine, shape: Shape, vocabulary: int, seed: int) -> float:
    """Requests of one shape that the engine serves in a second."""
    start = time.monotonic()
    requests = (
        first_token(engine, shape, shape.tenant, vocabulary, seed + number) for number in range(CALIBRATION_REQUESTS)
    )
    await asyncio.gather(*requests)
    return CALIBRATION_REQUESTS / (time.monotonic() - start)


async def send_all(rate: float, seconds: float, seed: int, send: Send) -> list[float]:
    """Seconds from when each request was due to its first token, for Poisson arrivals until `seconds` are over."""
    generator, start, due = random.Random(seed), time.monotonic(), 0.0

    async def one(number: int, due: float) -> float:
        await asyncio.sleep(start + due - time.monotonic())
        return await send(number) - start - due

    tasks = []
    while rate > 0 and (due := due + generator.expovariate(rate)) < seconds:
        tasks.append(asyncio.create_task(one(len(tasks), due)))
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def one_round(
    engine: AsyncEngine,
    beside: AsyncEngine,
    arguments: argparse.Namespace,
    kind: Kind,
    rates: tuple[float, float],
    seed: int,
) -> list[float]:
    """Times to first token of the quiet tenant; its neighbour sends to `beside`."""
    quiet, noisy = shapes(arguments)

    def sending(engine: AsyncEngine, shape: Shape, tenant: str, first_seed: int) -> Send:
        return lambda number: first_token(engine, shape, tenant, arguments.vocabulary, first_seed + number)

    # Arrivals are a round's; prompts are nobody else's, so that none is in the cache.
    prompts = random.Random(f"{seed} {kind.name}").randrange(2**40)
    neighbour = asyncio.create_task(
        send_all(rates[1] * kind.noise, arguments.seconds, seed + 1, sending(beside, noisy, kind.tenant, prompts))
    )
    times = await send_all(rates[0], arguments.seconds, seed, sending(engine, quiet, quiet.tenant, prompts + 2**41))
    neighbour.cancel()
    await asyncio.gather(neighbour, return_exceptions=True)
    # Until what was aborted has gone.
    for used in (engine, beside):
        while used.load.running or used.load.waiting:
            await asyncio.sleep(0.05)
            await first_token(used, Shape("", 1, 1), "", arguments.vocabulary, 0)
    return times


def shapes(arguments: argparse.Namespace) -> tuple[Shape, Shape]:
    """Of the quiet tenant and its neighbour."""
    return (
        Shape("quiet", arguments.input_len, arguments.output_len),
        Shape("noisy", arguments.noisy_input_len, arguments.noisy_output_len),
    )


async def measure(arguments: argparse.Namespace) -> tuple[dict[Kind, list[list[float]]], tuple[float, float]]:
    """Times to first token of each round of each kind; requests a second that are quiet's load and noisy's share."""
    kinds = [
        ALONE,
        HALF,
        Kind(CUT, arguments.noise),
        WITHIN,
        Kind(f"neighbour at {arguments.noise:g}× its share", arguments.noise),
        Kind("the same, both one tenant", arguments.noise, "quiet"),
    ]
    found: dict[Kind, list[list[float]]] = {kind: [] for kind in kinds}
    options = {
        name: getattr(arguments, name)
        for name in ("max_num_batched_tokens", "target_itl", "kv_cache_memory")
        if getattr(arguments, name) is not None
    }
    async with (
        await AsyncEngine.start(arguments.model, threads=arguments.threads, **options) as engine,
        await AsyncEngine.start(arguments.model, threads=max(1, arguments.threads // 2), **options) as half,
        await AsyncEngine.start(arguments.model, threads=max(1, arguments.threads // 2), **options) as other,
    ):
        quiet, noisy = shapes(arguments)
        for used in (half, other):
            await capacity(used, quiet, arguments.vocabulary, 0)
        await capacity(engine, noisy, arguments.vocabulary, 10_000)
        rates = (
            await capacity(engine, quiet, arguments.vocabulary, 20_000) / 2 * arguments.load,
            await capacity(engine, noisy, arguments.vocabulary, 30_000) / 2,
        )
        for number in range(arguments.rounds):
            # Each round begins with another kind.
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                if kind.tenant == "quiet" and number:
                    continue
                chosen = half if kind is HALF or kind.name == CUT else engine
                beside = other if kind.name == CUT else engine
                found[kind].append(await one_round(chosen, beside, arguments, kind, rates, seed=2 * number))
    return found, rates


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what to serve (default: the bundled model)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a round (default 20)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (default 5)")
    parser.add_argument("--load", type=float, default=0.25, help="of its share that the quiet one uses (default 0.25)")
    parser.add_argument(
        "--noise", type=float, default=10.0, help="times its share that the noisy one sends (default 10)"
    )
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens of the quiet tenant (default 64)")
    parser.add_argument("--output-len", type=int, default=16, help="its output tokens (default 16)")
    parser.add_argument("--noisy-input-len", type=int, default=1500, help="prompt tokens of the noisy (default 1500)")
    parser.add_argument("--noisy-output-len", type=int, default=16, help="its output tokens (default 16)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it (default 4000)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of the engine (default: all cores)")
    parser.add_argument("--max-num-batched-tokens", type=int, help="a step's budget (default: the engine's)")
    parser.add_argument("--target-itl", type=float, help="seconds of a step (default: the engine's)")
    parser.add_argument(
        "--kv-cache-memory",
        type=int,
        default=512 << 20,
        help="bytes of the KV pool (default 512 MiB: all of it has been touched once before anything is measured)",
    )
    arguments = parser.parse_args()

    found, rates = asyncio.run(measure(arguments))
    rows: list[tuple[object, ...]] = []
    for kind, rounds in found.items():
        p50, p99 = (median_of(rounds, share) for share in (0.5, 0.99))
        ratios = [p99 / median_of(found[other], 0.99) for other in found if other.tenant != "quiet"][:4]
        rows.append((kind.name, sum(map(len, rounds)), 1000 * p50, 1000 * p99, *ratios))
    reporting.report(
        f"{arguments.model}: a quiet tenant's time to first token",
        ("the quiet tenant is", "requests", "median, ms", "p99, ms", "by itself", "half", "cut", "within"),
        rows,
        f"It sends {rates[0]:.1f} requests/s of {arguments.input_len} tokens in and {arguments.output_len} out; the "
        f"neighbour's share is {rates[1]:.1f} requests/s of {arguments.noisy_input_len} in and "
        f"{arguments.noisy_output_len} out. {arguments.rounds} rounds of {arguments.seconds:g} s of each kind.",
    )


def median_of(rounds: list[list[float]], share: float) -> float:
    """The median over rounds of a percentile."""
    return statistics.median(reporting.percentile(times, share) or 0.0 for times in rounds)


if __name__ == "__main__":
    main()
