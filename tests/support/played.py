"""What simulated replicas are played with: a large model on a GPU, a small scheduler, and requests of all kinds."""

import json
import random
from pathlib import Path

import msgspec

from penstock.core.config import SchedulerConfig
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.simulation.loop import Arrival
from penstock.simulation.times import StepTimes
from support.simulation import make_request

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"), weights=FORMATS["fp8"])
TIMES = StepTimes(DEPLOYMENT, TYPICAL)


def config(**changes: object) -> SchedulerConfig:
    usual = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=512)
    return msgspec.structs.replace(usual, **changes)


def workload(seed: int, count: int = 30) -> list[Arrival]:
    """Requests whose prompts begin alike at times; some come together, some after a pause."""
    draw, at, arrivals = random.Random(seed), 0.0, []
    for number in range(count):
        at += draw.choice((0.0, 0.001, 0.05, draw.expovariate(5), 3.0))
        start = draw.choice((0, 10_000 * number))
        # Some prompts are equal, too.
        prompt = list(range(start, start + draw.choice((100, draw.randint(1, 200)))))
        arrivals.append(Arrival(at, make_request(number, prompt, draw.choice((1, 2, draw.randint(1, 250))))))
    return arrivals
