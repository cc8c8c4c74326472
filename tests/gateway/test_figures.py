"""What a gateway tells of itself."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from gateway.conftest import Start
from penstock.gateway.figures import FleetFigures
from penstock.gateway.guardrail_options import Guardrail
from penstock.gateway.options import HoldOptions
from penstock.gateway.replicas import State
from penstock.observability.alerts import GATEWAY_RULES
from penstock.observability.gateway_dashboard import GATEWAY_DASHBOARD
from penstock.observability.gateway_definitions import GATEWAY_DEFINITIONS as DEFINITIONS
from penstock.observability.gateway_definitions import STATES
from support.promql import series_of
from support.scripted_http import CLOSE, Received, Step, whole_answer
from support.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def closing(_request: Received) -> list[Step]:
    return [CLOSE]


def samples(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(penstock_\S+) (\S+)$", text, re.MULTILINE)}


def test_each_request_and_retry_is_counted(gateway: Start) -> None:
    started = gateway(closing, whole_answer, hold=HoldOptions(seconds=0))
    bad, good = (server.base for server in started.servers)
    for _ in range(4):
        assert started.complete(max_tokens=1, prompt="x" * 4096).status_code == 200
    assert started.http.post("/v1/completions", json=[1]).status_code == 400
    assert started.complete(model="another").status_code == 404
    counts = started.dispatch.figures.requests
    # A client has its answer a moment before it is counted.
    until(lambda: (counts["answered"], counts["invalid"]) == (4, 2))
    found = samples(started.http.get("/metrics").text)
    assert found['penstock_gateway_requests_total{outcome="answered"}'] == 4
    assert found['penstock_gateway_requests_total{outcome="invalid"}'] == 2
    failed = found[f'penstock_gateway_replica_failures_total{{replica="{bad}"}}']
    assert 0 < failed == found['penstock_gateway_retries_total{kind="sent"}'] <= started.asked[0]
    assert found[f'penstock_gateway_replica_sent_total{{replica="{good}"}}'] == 4
    assert found["penstock_gateway_time_to_first_byte_seconds_count"] == 4
    fleet = started.http.get("/v1/fleet").json()
    assert fleet["requests"]["answered"] == 4 and fleet["policy"] == "round-robin"
    assert [each["url"] for each in fleet["replicas"]] == [bad, good]
    # After its first prompt, all of the same one but its last block is expected there.
    assert 0.6 < fleet["replicas"][1]["hit_rate"] < 0.8
    assert fleet["replicas"][0]["state"] == "ready" and set(fleet) == set(FleetFigures.__struct_fields__)


def test_all_of_it_is_in_the_documents(gateway: Start) -> None:
    told = re.findall(r"^# TYPE (\S+)", gateway(whole_answer).http.get("/metrics").text, re.MULTILINE)
    assert told == list(DEFINITIONS)
    page = PAGE.read_text()
    assert not [name for name in DEFINITIONS if f"`{name.removeprefix('penstock_gateway_')}`" not in page]


def test_each_request_is_in_the_log(gateway: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.gateway")
    started = gateway(closing, whole_answer)
    until(lambda: "is ready" in caplog.text)
    for _ in range(2):
        assert started.complete(max_tokens=1).status_code == 200
    good = started.servers[1].base
    until(lambda: f"/v1/completions answered at {good} (its turn), after 1 others" in caplog.text)
    assert started.complete(model="another").status_code == 404
    until(lambda: "/v1/completions invalid (model_not_found), " in caplog.text)


def test_what_dashboard_and_alerts_ask_for_is_there(gateway: Start) -> None:
    """Every series that they name, with its labels' values."""
    assert tuple(State) == STATES
    rail = Guardrail(name="rail", url="http://127.0.0.1:9", tenants=("others",))
    started = gateway(whole_answer, free=("scripted",), guardrail=(rail,))
    assert started.complete(max_tokens=1).status_code == 200

    async def all_of_it() -> str:
        return started.dispatch.text(tenants=True).decode()

    # What tenants use is only for administrators to see.
    until(lambda: "penstock_gateway_tokens_total{" in asyncio.run(all_of_it()))
    text = asyncio.run(all_of_it())
    for query in (*GATEWAY_DASHBOARD.queries(), *(rule.holds for rule in GATEWAY_RULES)):
        for name, labels in series_of(query):
            values = [labels[label].split("|")[0] for label in labels if label != "instance"]
            found = [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]
            assert [line for line in found if all(f'"{value}"' in line for value in values)], (name, labels)
