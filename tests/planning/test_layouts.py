"""Layouts of a machine's devices, and the largest number of requests that keeps what was asked."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.asked import Asked
from penstock.planning.estimates import Workload, estimate
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import machine_of
from penstock.planning.latency import Deployment, decode_step, prefill_step
from penstock.planning.layouts import Layout, keeps_asked, largest_within, layouts_of
from penstock.planning.memory import memory_of
from penstock.planning.plan import make_plan
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
SEVENTY = shape_of(MODELS["Llama-3.1-70B"])


def asked(on: str = "8x h100", tpot: float | None = 0.04, ttft: float | None = None) -> Asked:
    machine = machine_of(on)
    deployment = Deployment(SEVENTY, machine.device, weights=FORMATS["fp8"])
    return Asked(deployment, machine, Workload(1024, 256, 64), tpot=tpot, ttft=ttft, device_hour=2.5)


def by_name(layouts: list[Layout]) -> dict[str, Layout]:
    return {str(layout): layout for layout in layouts}


def test_all_ways_are_tried_and_the_best_is_first() -> None:
    layouts = layouts_of(asked(), TYPICAL)
    assert len(layouts) == 10 and all(each.split * each.stages * each.replicas == 8 for each in layouts)
    rates = [each.output_tokens_per_second for each in layouts]
    assert rates == sorted(rates, reverse=True) and [each.best for each in layouts] == [True] + 9 * [False]
    assert layouts[0].why.startswith("the most tokens")
    # A dollar buys the most where there are the most tokens: all have the same devices.
    assert layouts[0].dollars_million == min(each.dollars_million for each in layouts if each.dollars_million)
    alone = by_name(layouts)["8 x"]
    assert alone.concurrency == 0 and alone.dollars_million is None and "does not fit: 72.7 GB" in alone.why


def test_a_slow_link_is_for_stages() -> None:
    """Of eight L40S, whose layers' messages go over PCIe, eight stages yield more than eight parts of each layer."""
    found = by_name(layouts_of(asked("8x l40s", tpot=None), TYPICAL))
    assert found["PP 8"].output_tokens_per_second > 3 * found["TP 8"].output_tokens_per_second
    assert "messages" in found["TP 8"].why


def test_what_is_too_slow_says_by_how_much() -> None:
    layouts = layouts_of(asked(tpot=0.012), TYPICAL)
    slow = by_name(layouts)["PP 8"]
    assert slow.concurrency == 0 and slow.why.startswith("too slow: one request alone takes")
    late = by_name(layouts_of(asked(ttft=0.01), TYPICAL))["TP 2 PP 4"]
    assert "has its first token after" in late.why
    assert not any(each.best for each in layouts_of(asked(tpot=1e-6), TYPICAL))


def test_one_device_has_no_layouts() -> None:
    assert layouts_of(asked("h100"), TYPICAL) == []


@given(st.floats(0.005, 0.5), st.integers(1, 4000))
def test_the_largest_number_keeps_what_was_asked_and_one_more_does_not(tpot: float, most: int) -> None:
    wanted = asked("4x h100", tpot)
    deployment = msgspec.structs.replace(wanted.deployment, split=4)
    size, told = largest_within(wanted, deployment, TYPICAL, most)

    def keeps(size: int) -> bool:
        workload = msgspec.structs.replace(wanted.workload, concurrency=float(size))
        return keeps_asked(wanted, estimate(deployment, TYPICAL, workload))

    assert (told is None) == (size == 0) and size <= most
    assert size == 0 or keeps(size)
    assert size == most or not keeps(size + 1)


def test_stages_are_devices_that_cost() -> None:
    wanted = msgspec.structs.replace(asked("8x h100", tpot=None), rate=5.0)
    staged = msgspec.structs.replace(wanted.deployment, split=4, stages=2)
    plan = make_plan(msgspec.structs.replace(wanted, deployment=staged))
    assert plan.money is not None and plan.load is not None
    assert plan.money.devices == 8 * plan.load.replicas and (plan.split, plan.stages) == (4, 2)
    assert plan.estimate is not None and plan.bounds.step_ms < plan.estimate.tpot_ms.value


def test_stages_share_memory_and_requests_but_not_a_step() -> None:
    whole = Deployment(SEVENTY, machine_of("h100").device, weights=FORMATS["fp8"])
    staged = msgspec.structs.replace(whole, stages=4)
    kept = [memory_of(each, 1024).device_weights_bytes for each in (staged, whole)]
    # One of the stages has the head beside its quarter of the layers, and another the embedding.
    assert kept[1] / 4 < kept[0] == pytest.approx(kept[1] / 4 + SEVENTY.head_parameters * 2 / 2, rel=1e-3)
    # Each stage has a quarter of the cache of each request.
    one, all_ = staged.cache_bytes(1024) / 4, memory_of(staged, 1024)
    assert all_.max_concurrency == int(all_.cache_bytes / one)
    # A token goes through all layers, and from stage to stage.
    assert decode_step(staged, TYPICAL, 1, 100).seconds > decode_step(whole, TYPICAL, 1, 100).seconds
    assert prefill_step(staged, TYPICAL, 1000).seconds > prefill_step(whole, TYPICAL, 1000).seconds
    many, few = (estimate(each, TYPICAL, Workload(256, 256, 64)) for each in (staged, whole))
    assert many.output_tokens_per_second > few.output_tokens_per_second
    assert many.step.seconds == decode_step(staged, TYPICAL, 16, 384).seconds
