"""Conversations in simulated time: each turn follows the answer before it, whose keys and values are there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.scheduler.build import build_scheduler
from penstock.simulation.fleet import Played, play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import ClosedLoop, Conversations, Given, Source, Turn
from penstock.simulation.times import StepTimes
from support.made_up_model import kv_spec
from support.simulation import make_request

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"), weights=FORMATS["fp8"])
TIMES = StepTimes(DEPLOYMENT, TYPICAL)
FIRST, SECOND, THIRD = (200, 30), Turn(50, 20), Turn(40, 10)


def content(number: int, tokens: int) -> list[int]:
    return [1_000_000 * (number + 1) + place for place in range(tokens)]


def first(number: int) -> Arrival:
    return Arrival(0.5 * number, make_request(number, content(number, FIRST[0]), FIRST[1]))


def play(
    source: Source,
    turns: dict[int, list[Turn]],
    pause: float,
    replicas: int = 1,
    alike: Callable[[int, int], list[int]] = content,
) -> Played:
    limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=1024)
    schedulers = [build_scheduler(limits, CacheConfig(kv_spec(16), 400)) for _ in range(replicas)]
    fleet = [Replica(scheduler, TIMES, number) for number, scheduler in enumerate(schedulers)]
    played = play_fleet(fleet, Conversations(source, lambda number: turns.get(number, []), pause, 100, alike))
    for scheduler in schedulers:
        scheduler.check()
    return played


def test_a_turn_contains_those_before_it() -> None:
    one, two, three = play(Given([first(0)]), {0: [SECOND, THIRD]}, 7.0).requests
    assert [each.prompt_tokens for each in (one, two, three)] == [200, 200 + 30 + 50, 200 + 30 + 50 + 20 + 40]
    assert [each.output_tokens for each in (one, two, three)] == [30, 20, 10]
    for before, after in ((one, two), (two, three)):
        assert after.arrived == pytest.approx(before.last - TIMES.after + 7.0)
        # All full blocks of what was there, the answer's too, whose last token was never computed.
        there = before.prompt_tokens + before.output_tokens - 1
        assert after.cached_tokens == there // 16 * 16


def test_another_replica_has_nothing_of_it() -> None:
    played = play(Given([first(0)]), {0: [SECOND]}, 1.0, replicas=2)
    assert [(each.replica, each.cached_tokens) for each in played.requests] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_conversation_has_nothing_of_another_ones_answer(replicas: int) -> None:
    """Two have the same questions, and answers of their own: what the one had behind its answer is no hit."""
    same = [Arrival(float(at), make_request(at, content(0, 208), 33)) for at in range(2)]
    turns = {0: [Turn(64, 20), THIRD], 1: [Turn(64, 20), THIRD]}
    played = play(Given(same), turns, 100.0, replicas, alike=lambda _number, tokens: content(50, tokens))
    if replicas == 1:
        # The question that both had first, but for its last token, then what each has had itself.
        assert [each.cached_tokens for each in played.requests] == [0, 207, 240, 240, 320, 320]
    else:
        # Turns go to the replicas in turn: each has the conversation that began there, and its own next turn.
        assert [each.replica for each in played.requests] == [0, 1] * 3
        assert [each.cached_tokens for each in played.requests] == [0, 0, 240, 240, 320, 320]


@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    concurrency=st.integers(1, 4),
    pause=st.sampled_from((0.0, 0.3)),
)
@settings(max_examples=20, deadline=None)
def test_a_closed_loop_is_of_whole_conversations(lengths: list[int], concurrency: int, pause: float) -> None:
    turns = {number: [SECOND] * more for number, more in enumerate(lengths)}
    requests = [first(number).request for number in range(len(lengths))]
    played = play(ClosedLoop(requests, concurrency), turns, pause)
    assert len(played.requests) == len(lengths) + sum(lengths)
    assert all(each.arrived < each.first <= each.last for each in played.requests)
    at = sorted((each.arrived, each.last - TIMES.after) for each in played.requests)
    for number, (arrived, _) in enumerate(at):
        assert sum(last > arrived + 1e-9 for _, last in at[:number]) < concurrency


def test_what_comes_at_given_times_waits_for_nobody() -> None:
    source = Given([first(0), first(1)])
    assert source.due == 0.0 and source.take().request.request_id == 0 and source.due == 0.5
    source.ended(0.2, [])
    assert source.take().at == 0.5 and source.due == float("inf")
