"""What a server says of itself: that it is what its client counted, and what the dashboard and the alerts ask for."""

import asyncio
import re
from collections.abc import Iterator

import msgspec
import pytest
from self_check import OPTIONS, Count, Load, Seen, compare_counts, metrics_of, put_load

from penstock.observability.alerts import RULES
from penstock.observability.dashboard import DASHBOARD
from penstock.observability.definitions import DEFINITIONS
from penstock.observability.histogram import SECONDS
from penstock.observability.stats import Quantiles, Stats
from support.checkpoints import make
from support.collector import collecting
from support.live_server import RunningServer, serving
from support.promql import series_of
from support.waiting import until

# What only some machines can tell, or servers that compute nothing.
SOMETIMES = {
    name for name, definition in DEFINITIONS.items() if definition.only in ("where it is known", "with `--simulate`")
}


# With their chunks, more than the buffers between a server and a client hold.
MORE_THAN_BUFFERS = 60_000
STEPS = "penstock_engine_steps_total"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = make("llama", tmp_path_factory.mktemp("models") / "tiny-llama", max_position_embeddings=65536)
    data = str(tmp_path_factory.mktemp("data"))
    options = ("--threads", "1", "--data-dir", data, "--cost-per-hour", "2", "--max-num-seqs", "6")
    with collecting() as collector:
        traced = ("--otlp-endpoint", collector.url)
        with serving(model, *options, *traced, *OPTIONS) as running:
            yield running


def stats_of(server: RunningServer) -> Stats:
    return msgspec.json.decode(server.get("/v1/stats"), type=Stats)


def counted(server: RunningServer, load: Load) -> tuple[Seen, list[Count]]:
    before, seen = metrics_of(server.get("/metrics")), Seen()
    asyncio.run(put_load(server.base, load, seen))
    server.wait_for("penstock_requests_in_flight", 0)
    return seen, compare_counts(seen, before, metrics_of(server.get("/metrics")))


@pytest.mark.parametrize("cancel", [0.0, 0.4])
def test_counts_are_what_a_client_counted(judged: RunningServer, cancel: float) -> None:
    load = Load(streams=10, requests=40, prompt=(5, 60), output=(16, 64), cancel=cancel, seed=3, left=MORE_THAN_BUFFERS)
    seen, counts = counted(judged, load)
    assert seen.completed + seen.cancelled == 40 and bool(seen.cancelled) == bool(cancel)
    assert [count for count in counts if not count.agrees] == []


def test_sketch_and_histogram_are_of_the_same_values(judged: RunningServer) -> None:
    counted(judged, Load(streams=8, requests=16, prompt=(5, 20), output=(16, 32)))
    latency, metrics = stats_of(judged).life.latency, metrics_of(judged.get("/metrics"))
    for found, name in (
        (latency.ttft, "penstock_time_to_first_token_seconds"),
        (latency.itl, "penstock_inter_token_latency_seconds"),
        (latency.tpot, "penstock_time_per_output_token_seconds"),
        (latency.e2e, "penstock_request_duration_seconds"),
        (latency.queue, "penstock_queue_time_seconds"),
    ):
        assert isinstance(found, Quantiles) and found.p50 is not None and found.p99 is not None, name
        assert found.count == metrics[f"{name}_count"] > 0
        assert found.mean == pytest.approx(metrics[f"{name}_sum"] / found.count)
        for share, value in ((0.5, found.p50), (0.99, found.p99)):
            below = max((bound for bound in SECONDS if bound < value / 1.01), default=0.0)
            above = min((bound for bound in SECONDS if bound >= value * 1.01), default=SECONDS[-1])
            rank = share * found.count
            assert metrics.get(f"{name}_bucket{{le={below!r}}}", 0.0) < rank + 1
            assert metrics[f"{name}_bucket{{le={above!r}}}"] >= rank - 1


def test_the_timeline_adds_up_to_the_minute(judged: RunningServer) -> None:
    counted(judged, Load(streams=4, requests=8, prompt=(5, 20), output=(16, 32)))
    told = list[Stats]()
    # The engine may tell of one more step, which it had begun before the last answer ended.
    until(lambda: told.append(stats_of(judged)) or told[-1].life.steps.steps == judged.metric(STEPS))
    found = told[-1]
    assert found.ready and found.model == "tiny-llama" and found.settings.max_num_seqs == 6
    assert found.settings.slo == {"e2e": 600.0}
    seconds = found.timeline
    assert [round(after.at - before.at, 3) for before, after in zip(seconds, seconds[1:], strict=False)] == [1.0] * (
        len(seconds) - 1
    )
    # What the seconds that are over lack is in the one that is not.
    for name in ("prompt_tokens", "output_tokens"):
        assert sum(getattr(second, name) for second in seconds) <= getattr(found.minute, name)
    assert found.minute.output_tokens <= found.life.output_tokens == judged.metric("penstock_generation_tokens_total")
    steps = found.life.steps
    assert steps.bytes > 0 < steps.operations
    assert 0 < found.life.utilisation.busy <= 1 and found.life.utilisation.batch is not None
    assert found.now.kv.total == found.now.kv.used + found.now.kv.cached + found.now.kv.free
    assert found.processes["engine"].resident_bytes != found.processes["api"].resident_bytes
    # Two an hour, by what has come out.
    assert found.life.cost == pytest.approx(found.life.seconds * 2 / 3600)
    assert found.life.slo is not None and found.life.slo.attainment == 1.0


def test_every_query_names_series_that_the_server_has(judged: RunningServer) -> None:
    live: dict[str, list[dict[str, str]]] = {}
    for name, labels in re.findall(r"^(penstock_\w+)(?:\{([^}]*)\})? ", judged.get("/metrics"), re.MULTILINE):
        live.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    asked = [*DASHBOARD.queries(), *(rule.holds for rule in RULES)]
    assert len(asked) > 60
    for query in asked:
        named = [(name, labels) for name, labels in series_of(query) if name not in SOMETIMES]
        for name, labels in named:
            assert name in live, f"{query} asks for {name}"
            # Prometheus itself says which server it is.
            wanted = {label: value for label, value in labels.items() if label != "instance"}
            assert any(wanted.items() <= series.items() for series in live[name]), query
            for grouped in re.findall(r"by \((\w+)\)", query) if len(named) == 1 else ():
                assert all(grouped in series for series in live[name]), query
