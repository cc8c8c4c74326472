"""Layouts of a machine's devices, and the largest number of requests that keeps what was asked."""

import json
from math import inf
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.apart import MOST_BUSY, best_apart
from penstock.planning.asked import Asked
from penstock.planning.estimates import Workload, estimate, prompts_of
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import machine_of
from penstock.planning.latency import Deployment, Rows, decode_step, prefill_step, step_time
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
    assert len(layouts) == 11
    for each in layouts:
        assert each.split * each.stages * each.replicas + each.prefill_split * each.prefill_replicas == 8
    rates = [each.output_tokens_per_second for each in layouts]
    assert rates == sorted(rates, reverse=True) and [each.best for each in layouts] == [True] + 10 * [False]
    assert layouts[0].why.startswith("the most tokens")
    # A dollar buys the most where there are the most tokens: all have the same devices.
    assert layouts[0].dollars_million == min(each.dollars_million for each in layouts if each.dollars_million)
    alone = by_name(layouts)["8 x 1 device"]
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


def mixture(groups: int = 1, **changes: object) -> Deployment:
    usual = Deployment(shape_of(MODELS["DeepSeek-V3"]), machine_of("h200").device, 8, FORMATS["fp8_block"])
    return msgspec.structs.replace(usual, groups=groups, **changes)


def test_groups_keep_requests_of_their_own() -> None:
    """Latent attention has no heads to split: each of eight devices keeps it of all requests, or of an eighth."""
    together, apart = (memory_of(mixture(groups), 8192) for groups in (1, 8))
    # Each has all attention, and an eighth of the experts.
    assert apart.device_weights_bytes > 1.1 * together.device_weights_bytes
    assert apart.max_concurrency % 8 == 0 and apart.max_concurrency > 4 * together.max_concurrency
    many = 8.0 * 64
    split, spread = (decode_step(mixture(groups), TYPICAL, many, 8192) for groups in (1, 8))
    assert spread.cache == pytest.approx(split.cache / 8)
    assert spread.seconds < split.seconds
    # With one request there is nothing to spread: a device reads all of attention, and the others wait.
    alone, waiting = (decode_step(mixture(groups), TYPICAL, 1, 8192) for groups in (1, 8))
    assert waiting.reading > alone.reading and waiting.seconds > alone.seconds


def test_groups_compute_prompts_at_the_same_time() -> None:
    deployment = mixture(8)
    one, eight = (step_time(deployment, TYPICAL, Rows(chunks=((0.0, 1000.0),) * count)) for count in (1, 8))
    assert eight.attention == pytest.approx(one.attention)
    assert eight.seconds < 3 * one.seconds
    prompts = prompts_of(deployment, TYPICAL, Workload(1000, 100, 64))
    assert (prompts.step, prompts.together) == (eight, 8) and prompts.behind == pytest.approx(eight.seconds / 8)
    # Eight that begin together wait for no prompt but their own.
    assert estimate(deployment, TYPICAL, Workload(1000, 100, 8, loop="static")).ttft == pytest.approx(eight.seconds)


def test_one_group_is_what_it_was() -> None:
    """Without groups, nothing but the second message of a layer could differ."""
    for shape in ("DeepSeek-V3", "Llama-3.1-70B"):
        deployment = mixture(shape=shape_of(MODELS[shape]))
        rows = Rows(7.0, 300.0, ((0.0, 50.0), (100.0, 64.0)))
        step = step_time(deployment, TYPICAL, rows)
        tokens, layers = 7 + 50 + 64, deployment.shape.num_layers
        sent = tokens * deployment.shape.hidden * 2 * 2 * 7 / 8 / (deployment.device.link * TYPICAL.link)
        assert step.messages == pytest.approx(2 * layers * (TYPICAL.message_seconds * 3 + sent))


def test_layouts_of_routed_experts_have_groups() -> None:
    machine = machine_of("8x h200")
    wanted = Asked(mixture(), machine, Workload(4096, 1024, 512), tpot=0.05)
    found = by_name(layouts_of(wanted, TYPICAL))
    assert "DP 8 EP 8" in found and "DP 2 TP 4 EP 8" in found
    assert found["DP 8 EP 8"].concurrency > 2 * found["TP 8"].concurrency
    assert not any("EP" in str(each) for each in layouts_of(asked(), TYPICAL))


@pytest.mark.parametrize(("ttft", "tpot"), [(0.5, 0.03), (None, 0.02), (0.3, None)])
def test_prompts_may_have_devices_of_their_own(ttft: float | None, tpot: float | None) -> None:
    wanted = asked("16x h100", tpot, ttft)
    levels = ttft or inf, tpot or inf
    found = best_apart(wanted.deployment, TYPICAL, wanted.workload, 16, levels)
    assert found is not None
    assert found.prefills * found.prefill.split + found.decodes * found.decode.split == 16
    assert found.ttft <= levels[0] + 1e-9 and found.tpot <= levels[1] + 1e-9
    # Each second's prompts are computed in a second, and as many tokens are decoded.
    prompt = prefill_step(found.prefill, TYPICAL, 1024).seconds
    assert found.rate * prompt <= MOST_BUSY * found.prefills + 1e-9
    assert found.rate * 255 * found.tpot == pytest.approx(found.decodes * found.rows, rel=0.05)
    (shown,) = [each for each in layouts_of(wanted, TYPICAL) if each.prefill_replicas]
    assert shown.output_tokens_per_second == pytest.approx(found.rate * 256)
    assert str(shown).endswith("to decode") and "for prompts" in str(shown)


def test_nothing_is_apart_that_cannot_be() -> None:
    one = asked("8x h100")
    assert best_apart(one.deployment, TYPICAL, one.workload, 1, (inf, inf)) is None
    assert best_apart(one.deployment, TYPICAL, one.workload, 8, (1e-4, inf)) is None
    assert best_apart(one.deployment, TYPICAL, one.workload, 8, (inf, 1e-5)) is None
    assert best_apart(one.deployment, TYPICAL, Workload(100, 1, 1), 8, (inf, inf)) is None


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
