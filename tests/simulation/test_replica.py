"""A replica in simulated time, against what a step of the latency model takes."""

import json
from collections import Counter
from pathlib import Path

import pytest

from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.plan import RowPlan, StepPlan
from penstock.planning.estimates import Workload, estimate
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, decode_step, prefill_step
from penstock.planning.memory import memory_of
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.fleet import Played, play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import Given
from penstock.simulation.times import StepTimes, rows_of
from support.made_up_model import kv_spec
from support.simulation import make_request

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"), weights=FORMATS["fp8"])


def scheduler(blocks: int = 4000, rows: int = 64) -> Scheduler:
    limits = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=2048, max_model_len=4096)
    return build_scheduler(limits, CacheConfig(kv_spec(16), blocks))


def play(books: Scheduler, arrivals: list[Arrival]) -> Played:
    return play_fleet([Replica(books, StepTimes(DEPLOYMENT, TYPICAL))], Given(arrivals))


def prompt(number: int, length: int) -> list[int]:
    return list(range(number * 10_000, number * 10_000 + length))


def test_what_a_plan_computes() -> None:
    rows = (
        RowPlan(0, 9, 1, [1], None, (0,), ()),
        RowPlan(1, 19, 1, [1], None, (1,), ()),
        RowPlan(2, 32, 16, [1] * 16, None, (), ()),
        # The last token of a prompt that is in the cache costs what a decode does.
        RowPlan(3, 63, 1, [1], None, (3,), ()),
    )
    found = rows_of(StepPlan(0, rows))
    assert (found.decodes, found.context, found.chunks) == (3, (10 + 20 + 64) / 3, ((32.0, 16.0),))


def test_one_request_takes_its_prompt_and_its_tokens() -> None:
    played = play(scheduler(), [Arrival(5.0, make_request(0, prompt(0, 1000), 3))])
    (request,) = played.requests
    first = prefill_step(DEPLOYMENT, TYPICAL, 1000).seconds
    second, third = (decode_step(DEPLOYMENT, TYPICAL, 1, 1000 + more).seconds for more in (1, 2))
    # What lies between a client and the engine keeps no step waiting.
    began = 5 + TYPICAL.first_layer_seconds * 32
    assert (request.first, request.last) == pytest.approx((began + first, began + first + second + third))
    assert (played.figures.steps, request.arrived, request.prompt_tokens, request.output_tokens) == (3, 5.0, 1000, 3)
    assert played.figures.busy == pytest.approx(first + second + third)
    assert played.figures.gaps == Counter(round(gap, 6) for gap in (second, third))
    assert request.longest_gap == pytest.approx(third, abs=1e-6)


def test_a_prefix_that_another_had_is_not_computed_again() -> None:
    arrivals = [Arrival(float(at), make_request(at, prompt(0, 1000), 1)) for at in (0, 1)]
    first, second = play(scheduler(), arrivals).requests
    assert first.cached_tokens == 0 and second.cached_tokens >= 980
    assert second.first - second.arrived < first.first - first.arrived


def test_a_closed_loop_is_near_its_closed_form() -> None:
    """Of 16 at a time, each followed by another: the mean of the time between tokens, within a tenth."""
    rows, inputs, outputs = 16, 512, 128
    books = scheduler(rows=rows)
    # All wait from the beginning, so that 16 always run.
    arrivals = [Arrival(0.0, make_request(number, prompt(number, inputs), outputs)) for number in range(10 * rows)]
    played = play(books, arrivals)
    seconds = max(request.last for request in played.requests)
    told = estimate(DEPLOYMENT, TYPICAL, Workload(inputs, outputs, rows))
    simulated = rows * seconds / (10 * rows * outputs)
    whole = told.step.seconds + rows * told.prompt.seconds / outputs
    assert simulated == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("split", [2, 8])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3", "Qwen3.5-397B-A17B"])
def test_the_pool_takes_what_the_plan_counts(model: str, split: int) -> None:
    deployment = Deployment(shape_of(MODELS[model]), device_of("b300"), split, weights=FORMATS["nvfp4"])
    cache = cache_of(deployment, memory_of(deployment, 2048).cache_bytes)
    tokens = sum(group.used_bytes for group in cache.spec.groups if group.record_interval is None)
    records = sum(group.used_bytes for group in cache.spec.groups if group.record_interval is not None)
    full = sum(
        layer.count
        * layer.attention.token_values
        / (1 if not layer.attention.kv_heads else min(split, layer.attention.kv_heads))
        for layer in deployment.shape.layers
    )
    assert tokens == pytest.approx(16 * full * 2, rel=0.01)
    assert records == pytest.approx(deployment.state_bytes, rel=0.01)


def test_a_pool_that_is_too_small_is_seen() -> None:
    arrivals = [Arrival(0.0, make_request(number, prompt(number, 64), 100)) for number in range(8)]
    roomy = play(scheduler(), arrivals)
    tight = play(scheduler(blocks=40), arrivals)
    assert roomy.figures.preemptions == 0 and roomy.figures.most_blocks <= 8 * 11
    assert tight.figures.preemptions > 0 or tight.figures.most_waiting > 0
    assert max(request.last for request in tight.requests) > max(request.last for request in roomy.requests)
    assert all(request.output_tokens == 100 for request in (*tight.requests, *roomy.requests))


def test_single_steps_vary_as_they_were_measured_to() -> None:
    def firsts(varied: tuple[float, ...]) -> list[float]:
        replica = Replica(scheduler(), StepTimes(DEPLOYMENT, TYPICAL, varied))
        arrivals = [Arrival(100.0 * at, make_request(at, prompt(at, 100), 1)) for at in range(20)]
        return [each.first - each.arrived for each in play_fleet([replica], Given(arrivals)).requests]

    after, (usual, *_) = TYPICAL.first_layer_seconds * 32, firsts(())
    ratios = {round((first - after) / (usual - after), 6) for first in firsts((0.5, 1.5))}
    assert ratios == {0.5, 1.5} and firsts((0.5, 1.5)) == firsts((0.5, 1.5))


def test_steps_that_follow_one_another_vary_less_together() -> None:
    times = StepTimes(DEPLOYMENT, TYPICAL, (0.5, 1.5))
    assert {times.chance(1) for _ in range(50)} == {0.5, 1.5}
    assert {round(times.chance(100), 6) for _ in range(50)} == {0.95, 1.05}
    assert StepTimes(DEPLOYMENT, TYPICAL).chance(7) == 1.0
