"""How fast simulated time passes: output tokens and requests in a second of one core's time.

First with a number of sequences at a time on one replica, for outputs of several lengths; each request that ends is
followed by another. Then a fleet over a time of its traffic, whose requests come at random. Both play the scheduler and
the cache that serve, with the steps of Llama 3.1 8B on an H100.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from penstock.core.config import SchedulerConfig
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.routing.policies import LeastLoaded
from penstock.scheduler.build import build_scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.fleet import play_fleet
from penstock.simulation.fluid import Flow, mean
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes

MODELS = json.loads((Path(__file__).parent / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"))
TIMES = StepTimes(DEPLOYMENT, TYPICAL)
PROMPT = 512
POOL = msgspec.structs.replace(cache_of(DEPLOYMENT, memory_of(DEPLOYMENT, PROMPT).cache_bytes), prefix_caching=False)


def replica(rows: int, number: int = 0) -> Replica:
    """One that runs up to `rows` sequences at a time."""
    limits = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=2048, max_model_len=32768)
    return Replica(build_scheduler(limits, POOL), TIMES, number)


def request(number: int, output: int) -> Request:
    """Its tokens are never looked at."""
    return Request(request_id=number, prompt_token_ids=[0] * PROMPT, sampling=sampling(output))


@cache
def sampling(output: int) -> SamplingParams:
    """Shared by all requests whose outputs are as long."""
    return SamplingParams(max_tokens=output, seed=0, ignore_eos=True)


def one(rows: int, output: int, tokens: int) -> tuple[float, float, int]:
    """Tokens and requests a second, and steps, of one replica that is always full."""
    draw = random.Random(0)
    count = max(2 * rows, tokens // output)
    arrivals = [Arrival(0.0, request(number, draw.randint(output // 2, 3 * output // 2))) for number in range(count)]
    began = time.process_time()
    played = play_fleet([replica(rows)], Given(arrivals))
    seconds = time.process_time() - began
    return sum(each.output_tokens for each in played.requests) / seconds, count / seconds, played.figures.steps


def fleet(replicas: int, seconds: float, rate: float, output: int) -> None:
    """Say how long a fleet takes whose replicas each get `rate` requests a second."""
    draw = random.Random(0)

    def arrivals() -> Iterator[Arrival]:
        at, number = 0.0, 0
        while (at := at + draw.expovariate(rate * replicas)) < seconds:
            yield Arrival(at, request(number, draw.randint(output // 2, 3 * output // 2)))
            number += 1

    began = time.process_time()
    played = play_fleet([replica(256, number) for number in range(replicas)], Given(arrivals()), LeastLoaded())
    took = time.process_time() - began
    tokens = sum(each.output_tokens for each in played.requests)
    print(
        f"{replicas:,} replicas, {seconds:,.0f} s, {rate:g} requests a second each, outputs of {output}: "
        f"{took:,.1f} s of computing; "
        f"{len(played.requests):,} requests, {tokens:,} tokens, {played.figures.steps:,} steps; "
        f"{tokens / took:,.0f} tokens a second; busy {played.figures.busy / seconds / replicas:.0%} of the time"
    )
    began = time.process_time()
    moments = Flow(DEPLOYMENT, TYPICAL, replicas, 256, PROMPT, output).play(lambda _at: rate * replicas, seconds, 100)
    took = time.process_time() - began
    exact = statistics.fmean((each.last - each.first) / (each.output_tokens - 1) for each in played.requests)
    told = mean(moments, lambda moment: moment.tpot)
    print(
        f"As a flow: {took:.2f} s; TPOT {told * 1e3:.2f} ms, and {exact * 1e3:.2f} ms played ({told / exact - 1:+.1%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="sequences at a time")
    parser.add_argument("--outputs", default="128,512,1024,4096", help="mean tokens of outputs, each by itself")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of a run, about")
    parser.add_argument("--replicas", type=int, default=0, help="of the fleet; 0: none")
    parser.add_argument("--seconds", type=float, default=3600, help="of the fleet's traffic")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second for each of its replicas")
    parser.add_argument("--output", type=int, default=256, help="mean tokens of the fleet's outputs")
    arguments = parser.parse_args()
    if arguments.replicas:
        fleet(arguments.replicas, arguments.seconds, arguments.rate, arguments.output)
        return
    print(f"| outputs, tokens | {arguments.rows} at a time: tokens/s | requests/s | steps |")
    print("|---:|---:|---:|---:|")
    for output in map(int, arguments.outputs.split(",")):
        tokens, requests, steps = one(arguments.rows, output, arguments.tokens)
        print(f"| {output:,} | {tokens:,.0f} | {requests:,.0f} | {steps:,} |")


if __name__ == "__main__":
    main()
