"""Money against arithmetic that can be done by hand."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.planning.asked import Asked
from penstock.planning.decisions import Decision, large, small
from penstock.planning.estimates import Workload
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of, machine_of
from penstock.planning.latency import Deployment
from penstock.planning.money import Money
from penstock.planning.owning import Purchase, owning
from penstock.planning.plan import make_plan
from penstock.planning.prices import ApiPrice, DevicePrice
from penstock.planning.reading import shape_of
from penstock.planning.volume import Replica, volume_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
LISTED_PRICE = DevicePrice("H100 SXM", "on-demand", 1.5, 2.0, 3.0, "2026-05-01", "a list")


def asked(**fields: object) -> Asked:
    deployment = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"), 1, FORMATS["fp8"])
    workload = Workload(2000, 500, 32)
    return msgspec.structs.replace(Asked(deployment, machine_of("h100"), workload, device_hour=2.0), **fields)


def money(**fields: object) -> Money:
    found = make_plan(asked(**fields)).money
    assert found is not None
    return found


@pytest.mark.parametrize("cached", [0, 500, 1999])
@pytest.mark.parametrize("rate", [None, 20.0])
@pytest.mark.parametrize("loop", ["closed", "static"])
def test_the_parts_of_a_request_are_its_cost(cached: int, rate: float | None, loop: str) -> None:
    found = money(workload=Workload(2000, 500, 32, cached, loop), rate=rate, operations_month=1000.0)
    million = found.million
    assert million.cached is not None
    assert million.cached_tokens == (cached or 1000)
    whole = million.input.value * (2000 - cached) + million.cached.value * cached + million.output.value * 500
    assert whole / 1e6 * found.requests_a_month == pytest.approx(found.total_month)
    assert found.total_month == found.month + 1000
    assert found.output_million * 500 / 1e6 * found.requests_a_month == pytest.approx(found.total_month)
    for cost in (million.input, million.cached, million.output):
        assert cost.low < cost.value < cost.high
    # A token that is in the cache costs what attending to it costs, and no product with the weights.
    assert million.cached.value < 0.2 * million.input.value


@pytest.mark.parametrize("cached", [0, 1500])
def test_the_parts_of_a_request_are_its_cost_with_groups(cached: int) -> None:
    shape, machine = shape_of(MODELS["DeepSeek-V3"]), machine_of("8x h200")
    deployment = Deployment(shape, machine.device, 8, FORMATS["fp8_block"], groups=8)
    found = money(deployment=deployment, machine=machine, workload=Workload(2000, 500, 64, cached))
    million = found.million
    assert million.cached is not None
    whole = million.input.value * (2000 - cached) + million.cached.value * cached + million.output.value * 500
    assert whole / 1e6 * found.requests_a_month == pytest.approx(found.total_month)


def test_one_token_out_costs_a_prompt_and_nothing_more() -> None:
    million = money(workload=Workload(2000, 1, 1)).million
    assert million.output.value == 0 and million.prompt_part == 1
    assert money(workload=Workload(1, 100, 1)).million.cached is None


def test_idle_devices_make_tokens_dearer() -> None:
    full, half = money(), money(utilisation=0.5)
    assert half.million.output.value == pytest.approx(2 * full.million.output.value)
    assert half.output_million == pytest.approx(2 * full.output_million)
    assert (full.utilisation, half.utilisation) == (1.0, 0.5)
    assert half.requests_a_month == pytest.approx(full.requests_a_month / 2)


def test_a_rate_for_which_no_replicas_are_counted_is_what_is_paid_for() -> None:
    found = money(rate=0.01, tpot=1e-9)
    assert found.requests_a_month == pytest.approx(0.01 * 730 * 3600) and found.devices == 1
    assert 0 < found.utilisation < 0.01
    # More than they can serve, they do not serve.
    assert money(rate=1e6, tpot=1e-9).utilisation == 1.0


@given(
    month=st.floats(100, 1e5),
    served=st.floats(1e3, 1e8),
    operations=st.floats(0, 1e5),
    request=st.floats(1e-5, 0.1),
)
def test_costs_meet_where_they_first_do(month: float, served: float, operations: float, request: float) -> None:
    replica = Replica(month, served, 0.8, 64, 0.5, 2.0)
    found = volume_of(replica, operations, request, 1000)
    if found.first is None or found.always is None:
        assert served * request <= month and found.least_part >= 1
        assert all(found.own(served * count) >= found.api(served * count) for count in (1, 2, 1000))
        return
    # Equal there, and before it nowhere less: own replicas are cheapest for a volume when they are all full.
    assert found.own(found.first * (1 - 1e-9)) == pytest.approx(found.api(found.first), rel=1e-6)
    assert found.first <= found.always * (1 + 1e-9)
    before = found.replicas(found.first * (1 - 1e-9)) - 1
    for count in {1, before // 2, before - 1, before} - {0, -1}:
        assert count > before or found.own(served * count * (1 - 1e-9)) >= found.api(served * count) * (1 - 1e-6)
    for part in (1.000001, 1.01, 1.5, 2.0, 10.0):
        assert found.own(found.always * part) <= found.api(found.always * part) * (1 + 1e-6)
    faster = found.first_faster
    assert faster is not None and faster <= found.first * (1 + 1e-9)
    assert found.first_slower is None or found.first_slower >= found.first * (1 - 1e-9)


def test_volume_by_hand() -> None:
    """Replicas of $1,000 serve 1,000,000 requests that cost $2,000 elsewhere; operations cost $2,500."""
    found = volume_of(Replica(1000.0, 1e6, 0.8, 64, 0.4, 2.0), 2500.0, 0.002, 3000)
    # Two full ones save 2,000 and three 3,000, so three are needed, whose cost is reached at 2.75 million.
    assert found.first == pytest.approx(2.75e6) and found.replicas(2.75e6) == 3
    # Just above three million, four cost 6,500 and the API 6,000; above 3.25 million that is over, and above four too.
    assert found.always == pytest.approx(3.25e6)
    assert found.least_part == 0.5
    assert found.first_faster == pytest.approx(1.75e6) and found.first_slower is None
    with pytest.raises(ConfigurationError, match="costs nothing"):
        volume_of(Replica(1.0, 1.0, 1.0, 1, 1.0, 1.0), 0.0, 0.0, 1)


def test_buying_by_hand() -> None:
    """$24,000 over 4 years, 1 kW at a PUE of 1.5 and $0.10, $9.50 of upkeep: $109.50 a month of power."""
    found = owning(Purchase(24_000, years=4, watts=1000, pue=1.5, kwh=0.1, upkeep=9.5), 2.0, 700)
    assert found.power_month == pytest.approx(109.5) and found.running_month == pytest.approx(119)
    assert found.own_month == pytest.approx(619) and found.own_hour == pytest.approx(619 / 730)
    assert found.rent_month == 1460 and found.break_even_months == pytest.approx(24_000 / 1341)
    assert found.pays and found.least_hours == pytest.approx(619 / 1460)
    # After that long, rent and purchase have cost the same.
    months = found.break_even_months
    assert months is not None
    assert 24_000 + months * found.running_month == pytest.approx(months * found.rent_month)
    assert owning(Purchase(24_000), 2.0, 700).purchase.watts == 700
    assert not owning(Purchase(90_000), 2.0, 700).pays
    assert owning(Purchase(24_000), 0.05, 700).break_even_months is None
    with pytest.raises(ConfigurationError, match="power is not known"):
        owning(Purchase(24_000), 2.0, 0)
    with pytest.raises(ConfigurationError, match="rent above zero"):
        owning(Purchase(24_000), 0.0, 700)


def decisions(**fields: object) -> dict[str, Decision]:
    return {decision.question: decision for decision in money(**fields).decisions}


def test_no_prices_no_decisions() -> None:
    assert money().decisions == []


def test_an_api_or_own_devices() -> None:
    question = "An API or own devices?"
    dear, cheap = ApiPrice(5.0, 25.0), ApiPrice(0.001, 0.001)
    assert decisions(api=cheap)[question].answer == "An API, at any volume"
    assert decisions(api=dear)[question].answer.startswith("It depends on the volume")
    assert decisions(api=dear, rate=10.0)[question].answer == "Own devices"
    assert decisions(api=dear, rate=0.001)[question].answer == "An API"
    told = decisions(api=dear, rate=0.001)[question].because
    assert told.startswith(
        "2,628 requests a month cost $59 there and $1,460 on one own replica; own replicas cost less"
    )
    # No replica keeps this, so there is nothing to compare.
    assert question not in decisions(api=dear, tpot=1e-9)


def test_rules_of_thumb_are_judged() -> None:
    tokens = "Below 10 million tokens a month an API, above 100 million own devices?"
    requests = "Below 10,000 requests a day an API, above 100,000 own devices?"
    assert "own devices cost more at any volume" in decisions(api=ApiPrice(0.001, 0.001))[tokens].because
    # One H100 costs $1,460 a month: 146 million tokens at $10 a million, 29 million at $50.
    found = decisions(api=ApiPrice(10.0, 10.0))
    assert found[tokens].because == "the costs meet at 146 million tokens a month, 1.5 times its upper end."
    assert decisions(api=ApiPrice(50.0, 50.0))[tokens].answer == "This rule holds here"
    assert decisions(api=ApiPrice(500.0, 500.0))[tokens].because.endswith("0.29 of its lower end.")
    assert found[requests].because.startswith("the costs meet at 1,920 requests a day")


def test_further_branches() -> None:
    api = ApiPrice(1.0, 5.0, model="gpt", batch_discount=0.5)
    found = decisions(api=api, device_price=LISTED_PRICE, reserved_hour=1.0, purchase=Purchase(20_000))
    assert found["A further replica, or an API for the rest?"].answer.startswith("A replica from ")
    assert found["And where answers may wait?"].answer.startswith("The API's batches below ")
    assert found["By the hour or reserved for three years?"].answer.endswith("more than 50% of the hours")
    assert found["Rent or buy?"].answer == "Buy"
    found = decisions(
        api=msgspec.structs.replace(api, input=0.01, output=0.08),
        device_price=LISTED_PRICE,
        reserved_hour=2.5,
        purchase=Purchase(200_000),
    )
    assert found["By the hour or reserved for three years?"].answer == "By the hour"
    assert found["Rent or buy?"].answer == "Rent"
    assert "any volume" in found["And where answers may wait?"].answer
    steady = decisions(device_price=LISTED_PRICE, reserved_hour=1.0, rate=1.0, purchase=Purchase(9, kwh=9.0))
    assert steady["By the hour or reserved for three years?"].answer == "Reserved"
    assert steady["Rent or buy?"].because.startswith("running an owned device costs more")


def test_numbers_in_words() -> None:
    assert [large(number) for number in (999, 25_000, 1.25e6, 3e10, 4.5e12)] == [
        "999",
        "25,000",
        "1.25 million",
        "30 billion",
        "4.5 trillion",
    ]
    prices = [small(dollars) for dollars in (1234.5, 1.0, 0.5, 0.12345, 1.2e-6, 0.0)]
    assert prices == ["$1,234.50", "$1.00", "$0.500", "$0.123", "$0.00000120", "$0.00"]
