"""Fleets as a flow, against fleets that are played request by request."""

import json
import random
from pathlib import Path

import pytest

from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.routing.policies import LeastLoaded
from penstock.scheduler.build import build_scheduler
from penstock.simulation.fleet import play_fleet
from penstock.simulation.fluid import Flow, mean
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes
from support.made_up_model import kv_spec
from support.simulation import make_request

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"), weights=FORMATS["fp8"])
REPLICAS, PROMPT, OUTPUT, SECONDS = 4, 256, 64, 12.0


def flow(replicas: int = REPLICAS, places: int = 64, prompt: float = PROMPT, output: float = OUTPUT) -> Flow:
    return Flow(DEPLOYMENT, TYPICAL, replicas, places, prompt, output, budget=1024)


@pytest.mark.parametrize(("rate", "output"), [(4.0, OUTPUT), (20.0, OUTPUT), (120.0, 16)])
def test_means_are_those_of_a_fleet_that_is_played(rate: float, output: int) -> None:
    """Also where prompts have to share steps."""
    draw, at, arrivals = random.Random(0), 0.0, []
    while (at := at + draw.expovariate(rate * REPLICAS)) < SECONDS:
        number = len(arrivals)
        arrivals.append(Arrival(at, make_request(number, [number] * PROMPT, output)))
    limits = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=1024)
    cache = CacheConfig(kv_spec(16), 4000, prefix_caching=False)
    times = StepTimes(DEPLOYMENT, TYPICAL)
    played = play_fleet(
        [Replica(build_scheduler(limits, cache), times, number) for number in range(REPLICAS)],
        Given(arrivals),
        LeastLoaded(),
    )
    later = [each for each in played.requests if each.arrived > SECONDS / 4]
    tpot = sum((each.last - each.first) / (output - 1) for each in later) / len(later)
    seconds = sum(each.last - each.arrived for each in later) / len(later)
    moments = flow(output=output).play(lambda _at: rate * REPLICAS, SECONDS, 50)
    assert mean(moments, lambda moment: moment.tpot) == pytest.approx(tpot, rel=0.05)
    offered = len(later) / (SECONDS - SECONDS / 4)
    assert mean(moments, lambda moment: moment.running) == pytest.approx(offered * seconds, rel=0.1)
    assert mean(moments, lambda moment: moment.output_tokens_per_second) == pytest.approx(
        rate * REPLICAS * output, rel=0.02
    )


def test_more_than_there_are_places_for_waits() -> None:
    full = flow(replicas=1, places=8).play(lambda _at: 1000.0, 10.0, 20)
    assert all(moment.running <= 9.0 for moment in full)
    assert full[-1].waiting > full[9].waiting > 0 and full[-1].ttft > 1.0


def test_a_rate_that_falls_empties_the_queue() -> None:
    found = flow(replicas=1, places=8).play(lambda at: 60.0 if at < 5 else 1.0, 40.0, 80)
    assert max(moment.waiting for moment in found) > 10
    assert found[-1].waiting == pytest.approx(0.0, abs=0.1) and found[-1].rate == 1.0


def test_the_size_of_a_fleet_changes_nothing_but_numbers() -> None:
    one, many = (
        flow(replicas).play(lambda _at, replicas=replicas: 10.0 * replicas, 10.0, 10) for replicas in (1, 12500)
    )
    assert many[-1].tpot == pytest.approx(one[-1].tpot) and many[-1].running == pytest.approx(12500 * one[-1].running)


def test_long_prompts_take_several_steps() -> None:
    assert len(flow(prompt=5000).prompt_steps(10.0)) == 5
    assert len(flow().prompt_steps(10.0)) == 1
