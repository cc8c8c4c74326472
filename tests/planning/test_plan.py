"""Plans against arithmetic that can be done by hand, and what must hold of any plan."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.planning import priors
from penstock.planning.asked import Asked
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload, estimate
from penstock.planning.fitting import Point, coefficients, efficiency_of, fit
from penstock.planning.formats import FORMATS, format_of
from penstock.planning.hardware import DEVICES, device_of, machine_of
from penstock.planning.latency import Deployment, decode_step, least_seconds, prefill_step
from penstock.planning.memory import memory_of
from penstock.planning.plan import Plan, make_plan
from penstock.planning.prices import ApiPrice
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
H100 = device_of("h100")


def deployed(model: str = "Llama-3.1-70B", device: str = "h100", split: int = 1, kept: str = "fp8") -> Deployment:
    return Deployment(shape_of(MODELS[model]), device_of(device), split, FORMATS[kept])


def asked(deployment: Deployment, on: str, **fields: float) -> Asked:
    return Asked(deployment, machine_of(on), Workload(1024, 256, fields.pop("concurrency", 1)), **fields)


def test_reading_70_gb_at_3350_gb_a_second() -> None:
    """21 ms: the floor of a 70B model's step in 8 bits on an H100; the head stays in 16."""
    deployment = deployed()
    assert deployment.weight_bytes / 1e9 == pytest.approx(70, rel=0.05)
    assert least_seconds(deployment, 1) == pytest.approx(21e-3, rel=0.03)


def test_a_model_of_7b_in_16_bits_has_a_ceiling_of_250_tokens_a_second_on_an_h100() -> None:
    """Of 6.74B parameters, the embedding is not read; 14 GB without that would be 239."""
    assert 1 / least_seconds(deployed("Llama-7B", kept="bfloat16"), 1) == pytest.approx(253, rel=0.01)


def test_where_multiplying_takes_longer_than_reading() -> None:
    """An H100 does 295 operations a byte in 16 bits, dense: as many tokens make both take as long."""
    ridge = H100.rates["bf16"] / H100.bandwidth
    assert ridge == pytest.approx(295, rel=0.01)
    deployment = deployed("Llama-7B", kept="bfloat16")
    assert least_seconds(deployment, 0.9 * ridge) == least_seconds(deployment, 1)
    assert least_seconds(deployment, 1.1 * ridge) > 1.05 * least_seconds(deployment, 1)


def test_memory_adds_up_and_concurrency_is_what_fits() -> None:
    memory = memory_of(deployed(split=8), 2048)
    parts = memory.device_weights_bytes + memory.activation_bytes + memory.overhead_bytes + memory.cache_bytes
    assert abs(parts - memory.usable_bytes) <= 4
    one = 327_680 / 8 * 2048
    assert memory.max_concurrency == int(memory.cache_bytes / one)
    assert memory.kv_bytes_per_token == 327_680


def test_what_does_not_fit_is_told_with_what_would() -> None:
    plan = make_plan(asked(deployed(kept="bfloat16"), "h100"))
    assert plan.estimate is None and plan.sweep == [] and plan.money is None
    (note,) = plan.notes
    assert note.startswith("It does not fit") and "over 4 devices it would (--tensor-parallel-size 4)" in note


def test_money_is_an_hour_over_the_tokens_of_an_hour() -> None:
    plan = make_plan(asked(deployed(split=8), "8x h100", concurrency=64, device_hour=2.5))
    assert plan.estimate is not None and plan.money is not None
    rate = plan.estimate.output_tokens_per_second.value
    assert plan.money.output_million == pytest.approx(8 * 2.5 / (rate * 3600) * 1e6)
    assert plan.money.month == 8 * 2.5 * 730


def test_a_rate_needs_replicas_that_are_paid_when_they_wait() -> None:
    plan = make_plan(asked(deployed("Llama-3.1-8B"), "h100", rate=20.0, ttft=0.5, tpot=0.03, device_hour=2.0))
    assert plan.load is not None and plan.money is not None
    assert plan.load.utilisation <= 0.8 and plan.load.waiting_p99 <= 0.5
    paid = plan.load.replicas * 2.0 / 3600
    assert plan.money.output_million == pytest.approx(paid / (20.0 * 256) * 1e6)


def test_a_rate_comes_to_requests_at_a_time() -> None:
    def at(rate: float, on: str = "h100") -> Plan:
        wanted = asked(deployed("Llama-3.1-8B"), on, rate=rate)
        return make_plan(msgspec.structs.replace(wanted, workload=Workload(1024, 256, loop="open")))

    slow, fast, too_fast = at(0.01), at(10.0), at(1000.0)
    alone = make_plan(asked(deployed("Llama-3.1-8B"), "h100")).estimate
    assert slow.estimate is not None and fast.estimate is not None and too_fast.estimate is not None
    assert slow.estimate.tpot_ms == alone.tpot_ms if alone else False
    assert slow.estimate.tpot_ms.value < fast.estimate.tpot_ms.value < too_fast.estimate.tpot_ms.value
    assert slow.estimate.output_tokens_per_second.value == pytest.approx(0.01 * 256)
    # As many tokens a second as come.
    assert fast.estimate.output_tokens_per_second.value == pytest.approx(10 * 256, rel=0.02)
    assert not any("grows without end" in note for note in fast.notes)
    assert any("grows without end" in note for note in too_fast.notes)
    two = at(20.0, "2x h100").estimate
    assert two is not None and two.tpot_ms.value == pytest.approx(fast.estimate.tpot_ms.value)


def test_own_devices_against_an_api() -> None:
    api = ApiPrice(0.1, 0.4)
    wanted = asked(deployed("Llama-3.1-8B"), "h100", device_hour=2.0)
    plan = make_plan(msgspec.structs.replace(wanted, api=api, operations_month=1000.0))
    assert plan.money is not None and plan.money.against_api is not None
    assert plan.money.against_api.requests_a_month == pytest.approx((2.0 * 730 + 1000) / api.month(1, 1024, 256))


def test_replicas_share_the_requests() -> None:
    one = make_plan(asked(deployed("Llama-3.1-8B"), "h100", concurrency=16)).estimate
    four = make_plan(asked(deployed("Llama-3.1-8B"), "4xh100", concurrency=64)).estimate
    assert one is not None and four is not None
    assert four.tpot_ms == one.tpot_ms
    assert four.output_tokens_per_second.value == pytest.approx(4 * one.output_tokens_per_second.value)
    with pytest.raises(ConfigurationError, match="3 devices cannot be shared out among replicas of 2"):
        make_plan(asked(deployed("Llama-3.1-8B", split=2), "3xh100"))


def test_fewer_requests_than_replicas_leave_some_idle() -> None:
    one = make_plan(asked(deployed("Llama-3.1-8B"), "h100")).estimate
    eight = make_plan(asked(deployed("Llama-3.1-8B"), "8xh100")).estimate
    assert one is not None and eight is not None
    assert eight.output_tokens_per_second == one.output_tokens_per_second


def test_the_most_tokens_are_those_of_a_full_machine() -> None:
    alone, full = (make_plan(asked(deployed("Llama-3.1-8B", "h100"), "h100", concurrency=size)) for size in (1, 2000))
    assert alone.most_tokens_per_second == full.most_tokens_per_second
    assert full.estimate is not None and full.most_tokens_per_second is not None
    told, most = full.estimate.output_tokens_per_second, full.most_tokens_per_second
    # A closed loop that is full is not far from it: prompts cost the same, and weights are read with them.
    assert 0.7 * most.value < told.value <= most.value * 1.001
    assert most.low < most.value < most.high


def test_what_does_not_fit_is_not_in_a_step() -> None:
    full = make_plan(asked(deployed("Llama-3.1-8B", "a10g"), "a10g", concurrency=1000))
    fits = full.memory.max_concurrency
    most = make_plan(asked(deployed("Llama-3.1-8B", "a10g"), "a10g", concurrency=fits))
    assert full.estimate is not None and most.estimate is not None
    # While outputs grow, a few more than that run.
    assert full.estimate.tpot_ms.value == pytest.approx(most.estimate.tpot_ms.value, rel=0.15)
    # A thousand requests go round, as many a second as those that run finish (Little's law).
    seconds = 1000 / (full.estimate.output_tokens_per_second.value / 256)
    cycle = full.estimate.ttft_ms.value + 255 * full.estimate.tpot_ms.value
    assert cycle / 1e3 == pytest.approx(seconds, rel=1e-3)
    assert any(f"holds {fits:,} requests" in note for note in full.notes)


def test_behind_the_knee_is_a_doubling() -> None:
    plan = make_plan(asked(deployed("Llama-3.1-8B", "a10g"), "a10g"))
    sizes = [point.concurrency for point in plan.sweep]
    assert sizes[-1] < 2 * sizes[-2]
    assert plan.knee is None or 2 * plan.knee in sizes


def test_levels_that_nothing_keeps_are_told() -> None:
    plan = make_plan(asked(deployed("Llama-3.1-8B"), "h100", tpot=1e-6, rate=5.0))
    assert plan.load is None and plan.largest is None
    assert any(note.startswith("No number of requests at a time keeps") for note in plan.notes)


def test_more_tokens_than_a_model_was_made_for_are_told() -> None:
    shape = msgspec.structs.replace(shape_of(MODELS["Llama-3.1-8B"]), max_context=1000)
    plan = make_plan(asked(msgspec.structs.replace(deployed("Llama-3.1-8B"), shape=shape), "h100"))
    assert any("made for 1,000 tokens" in note for note in plan.notes)


def test_own_devices_that_can_never_serve_enough() -> None:
    wanted = asked(deployed("Llama-3.1-8B"), "h100", device_hour=2.0)
    money = make_plan(msgspec.structs.replace(wanted, api=ApiPrice(0.01, 0.01), operations_month=10_000.0)).money
    assert money is not None and money.against_api is not None and not money.against_api.comes


def test_the_bound_of_a_prompt_has_one_row_of_logits() -> None:
    deployment = deployed("Qwen3-32B")
    head = deployment.shape.head_parameters
    with_all = 2 * deployment.shape.active_parameters * 2048 / deployment.device.rate(deployment.weights)
    assert least_seconds(deployment, 2048) == pytest.approx(
        with_all - 2 * head * 2047 / deployment.device.rate(deployment.weights)
    )


def test_a_level_of_service_bounds_the_batch() -> None:
    free = make_plan(asked(deployed(split=8), "8x h100"))
    held = make_plan(asked(deployed(split=8), "8x h100", tpot=0.02))
    assert free.largest is not None and held.largest is not None
    assert held.largest < free.largest == held.memory.max_concurrency
    assert all(point.within == (point.tpot_ms <= 20) for point in held.sweep)
    assert [point.within for point in free.sweep] == [None] * len(free.sweep)


@pytest.mark.parametrize("model", sorted(MODELS))
@given(rows=st.integers(1, 512), context=st.integers(1, 30_000), split=st.sampled_from([1, 2, 8]))
def test_no_estimate_is_below_the_bound_and_more_takes_longer(model: str, rows: int, context: int, split: int) -> None:
    deployment = deployed(model, "b200", split)
    step = decode_step(deployment, priors.TYPICAL, rows, context)
    assert step.seconds >= least_seconds(deployment, rows)
    assert step.seconds <= decode_step(deployment, priors.TYPICAL, rows + 1, context).seconds
    assert step.seconds <= decode_step(deployment, priors.TYPICAL, rows, context + 100).seconds
    prompt = prefill_step(deployment, priors.TYPICAL, context)
    assert prompt.seconds >= least_seconds(deployment, context)
    # Chunks pay for what is common to all steps once more.
    first, second = context // 2, context - context // 2
    if first:
        parts = prefill_step(deployment, priors.TYPICAL, first), prefill_step(deployment, priors.TYPICAL, second, first)
        assert parts[0].seconds + parts[1].seconds >= prompt.seconds


def test_what_a_prompt_attends_to_is_the_same_in_chunks() -> None:
    deployment = deployed("gpt-oss-20b")
    whole = prefill_step(deployment, priors.TYPICAL, 1000).attention
    chunks = [prefill_step(deployment, priors.TYPICAL, 250, start).attention for start in (0, 250, 500, 750)]
    assert sum(chunks) == pytest.approx(whole)


def test_a_static_batch_waits_for_no_prompt_but_the_first() -> None:
    deployment = deployed(split=8)
    static = estimate(deployment, priors.TYPICAL, Workload(1024, 256, 16, loop="static"))
    closed = estimate(deployment, priors.TYPICAL, Workload(1024, 256, 16))
    assert static.tpot == static.step.seconds < closed.tpot


def test_a_fit_finds_the_coefficients_that_made_the_points() -> None:
    true = efficiency_of(
        {
            name: value * (1.3 if name == "layer_seconds" else 0.8)
            for name, value in coefficients(priors.TYPICAL).items()
        }
    )
    assert coefficients(efficiency_of(coefficients(true))) == coefficients(true)
    points = []
    for split in (1, 2, 4):
        for inputs, outputs, rows in ((128, 128, 1), (1024, 256, 8), (8192, 512, 32), (512, 2048, 128)):
            deployment, workload = deployed("Qwen3-32B", split=split), Workload(inputs, outputs, rows)
            told = estimate(deployment, true, workload)
            points.append(Point(deployment, workload, told.ttft, told.tpot))
    found = fit(points, priors.TYPICAL, {}, usual=1e-3)
    for point in points:
        told = estimate(point.deployment, found, point.workload)
        assert told.tpot == pytest.approx(point.tpot, rel=0.01)
        assert told.ttft == pytest.approx(point.ttft, rel=0.02)
    # What no point has anything to do with stays.
    assert found.weights["gguf"] == pytest.approx(priors.TYPICAL.weights["gguf"])


def test_every_device_is_found_by_its_name() -> None:
    assert [device_of(device.name) for device in DEVICES] == list(DEVICES)
    assert machine_of("2x a100-80gb").count == 2 and machine_of("8 x H100-SXM").device is H100
    # What makers print for an H100, 1,979, is with half of the weights zero.
    assert H100.rates["bf16"] == 989e12
    # FP8 is not only on Hopper.
    assert "fp8" in device_of("l40s").rates and "fp8" in device_of("b200").rates


@pytest.mark.parametrize(
    ("name", "told"),
    [("h1000", "Near it are H100 SXM"), ("toaster", "`penstock plan --list` shows all"), ("0x h100", "1 to 1,000,000")],
)
def test_an_unknown_device_is_refused_with_the_nearest(name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        machine_of(name)


def test_formats_have_other_names() -> None:
    assert format_of("BF16") is FORMATS["bfloat16"] and format_of("AWQ") is FORMATS["int4"]
    with pytest.raises(ConfigurationError, match="--dtype 'fp3' is not a format"):
        format_of("fp3")


def test_where_nothing_was_measured_that_is_said() -> None:
    def basis(device: str, kept: str) -> str:
        plan = make_plan(asked(deployed("Llama-3.1-8B", device, kept=kept), device))
        assert plan.estimate is not None
        return plan.estimate.tpot_ms.basis

    assert "of this device and format" in basis("h100", "fp8")
    assert "nothing of this one in this format is known here" in basis("l40s", "fp8")
    assert "nothing like it is known here" in basis("h100", "q4_k_m")
    plan = make_plan(asked(deployed("Llama-3.1-8B", "rtx3090"), "rtx3090"))
    assert "not read again in a source" in plan.notes[0]


def test_coefficients_are_parts_of_limits_and_times() -> None:
    assert isinstance(priors.TYPICAL, Efficiency)
    found = coefficients(priors.TYPICAL)
    assert all(value > 0 for value in found.values())
    assert all(
        value <= 1 for name, value in found.items() if name.split()[0] in ("weights", "products", "cache", "link")
    )
    assert {kind.kind for kind in FORMATS.values()} == set(priors.TYPICAL.weights) == set(priors.TYPICAL.products)
    assert priors.TPOT_INTERVAL[0] < 1 < priors.TPOT_INTERVAL[1]
    assert msgspec.json.decode(msgspec.json.encode(priors.TYPICAL), type=Efficiency) == priors.TYPICAL
