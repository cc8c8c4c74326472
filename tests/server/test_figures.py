"""`GET /v1/stats`: the state of a server, and its figures since the start and of the last minute."""

from collections.abc import Iterator

import httpx
import msgspec
import pytest

from penstock.core.facts import StepFacts, StepTotals
from penstock.observability.stats import Quantiles, Settings, Stats
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine

STEP = StepFacts(schedule=0.5, execute=2.0, sample=0.25, budget=64, rows=3, decodes=2, chunk_tokens=30, held="rows")
SETTINGS = Settings(
    max_num_seqs=8, slo={"ttft": 60.0, "e2e": 60.0}, cost_per_hour=3600.0, memory_bytes_per_second=4000.0
)


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer.table, tokenizer.encode("Hello", False))


@pytest.fixture
def http(engine: ScriptedEngine, tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    with running(create_app(engine, tokenizer, settings=SETTINGS)) as url, described_client(url) as client:
        yield client


def stats_of(http: httpx.Client) -> Stats:
    return msgspec.json.decode(http.get("/v1/stats").content, type=Stats)


def ask(http: httpx.Client, **fields: object) -> int:
    body = {"prompt": [5, 6, 7], "max_tokens": 2, "return_token_ids": True, **fields}
    return http.post("/v1/completions", json=body).status_code


def test_a_server_that_has_done_nothing_measured_nothing(http: httpx.Client) -> None:
    found = stats_of(http)
    assert found.model == "scripted" and found.ready and found.why_not is None
    assert found.settings == SETTINGS
    assert (found.now.running, found.now.waiting, found.now.kv.used, found.now.kv.cached) == (2, 3, 40, 5)
    for period in (found.life, found.minute):
        assert period.latency.ttft == period.latency.queue == Quantiles()
        assert period.slo is not None and (period.slo.judged, period.slo.attainment) == (0, None)
        assert period.cost_per_million_tokens is None
        assert period.utilisation.budget is None


def test_requests_are_in_both_periods(http: httpx.Client) -> None:
    assert [ask(http), ask(http, stream=True), ask(http, temperature=-1)] == [200, 200, 400]
    found = stats_of(http)
    assert found.now.in_flight == 0
    for period in (found.life, found.minute):
        assert (period.requests["completed"], period.requests["rejected"], period.requests["failed"]) == (2, 1, 0)
        assert (period.prompt_tokens, period.output_tokens) == (6, 4)
        latency = period.latency
        assert [each.count for each in (latency.ttft, latency.itl, latency.tpot, latency.e2e)] == [2, 2, 2, 2]
        assert latency.e2e.p50 is not None and latency.ttft.p50 is not None and latency.e2e.p50 > latency.ttft.p50 > 0
        assert period.slo is not None and (period.slo.judged, period.slo.good, period.slo.good_tokens) == (2, 2, 4)
        assert period.slo.attainment == 1.0
        assert period.rates.requests == pytest.approx(3 / period.seconds)
        # 3,600 an hour are 1 a second.
        assert period.cost == pytest.approx(period.seconds)
        assert period.cost_per_million_tokens == pytest.approx(period.seconds / 4 * 1e6)


def test_steps_are_summed_up(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.totals = StepTotals().add(STEP, (5500, 11000))
    for observer in engine.observers:
        observer(STEP)
    found = stats_of(http)
    assert found.now.held == "rows"
    assert found.waits[found.life.steps.held.index(2.75)] == "rows" and found.life.waited == {"rows": 2.75}
    assert found.life.steps == engine.totals
    used = found.life.utilisation
    assert (used.budget, used.batch, used.bytes_per_second, used.operations_per_second) == (0.5, 3.0, 2000.0, 4000.0)
    # What memory was measured to do is known, and what cores do is not.
    assert (used.memory, used.arithmetic) == (0.5, None)


def test_it_says_why_a_server_is_not_ready(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.unavailable = "The engine is away."
    found = stats_of(http)
    assert not found.ready and found.why_not == "The engine is away."
    assert "penstock_ready 0.0" in http.get("/metrics").text


def test_without_service_levels_nothing_is_judged(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    with running(create_app(engine, tokenizer)) as url, described_client(url) as http:
        assert ask(http) == 200
        found = stats_of(http)
        assert found.life.slo is None and found.life.cost is None and found.settings == Settings()
        assert "penstock_good_requests" not in http.get("/metrics").text
