"""Prometheus metrics: what is counted, and that the text can be read by Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from penstock.core.events import LoadSnapshot
from penstock.observability.metrics import BUCKETS, Histogram, Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def test_a_histogram_counts_into_the_bucket_that_holds_the_value() -> None:
    histogram = Histogram()
    for value in (0.0, 0.001, 0.0011, 5000.0):
        histogram.observe(value)
    [bucketed] = [histogram.family("name", "text")]
    counts = {sample.labels["le"]: sample.value for sample in bucketed.samples if sample.name == "name_bucket"}
    assert counts["0.001"] == 2 and counts["0.0015"] == 3
    assert counts["600.0"] == 3 and counts["+Inf"] == 4
    assert BUCKETS[0] == 0.001 and BUCKETS[-1] == 600.0 and list(BUCKETS) == sorted(set(BUCKETS))


def test_the_engines_figures_are_those_of_the_newest_snapshot() -> None:
    load = LoadSnapshot()
    metrics = Metrics(lambda: load)
    load = LoadSnapshot(
        step=1,
        running=2,
        waiting=3,
        waiting_tokens=4,
        blocks_total=50,
        blocks_used=6,
        blocks_cached=7,
        blocks_free=8,
        blocks_kept=3,
        restarts=1,
        prefill_tokens=9,
        decode_tokens=10,
        prefix_queried_tokens=11,
        prefix_hit_tokens=12,
        preemptions=13,
        recomputed_tokens=14,
    )
    found = {name: value for (name, _), value in samples(metrics).items()}
    for name, value in {
        "penstock_engine_steps_total": 1,
        "penstock_requests_running": 2,
        "penstock_requests_waiting": 3,
        "penstock_requests_waiting_tokens": 4,
        "penstock_kv_blocks": 50,
        "penstock_kv_blocks_used": 6,
        "penstock_kv_blocks_cached": 7,
        "penstock_kv_blocks_free": 8,
        "penstock_kv_blocks_kept": 3,
        "penstock_engine_restarts_total": 1,
        "penstock_prefill_tokens_total": 9,
        "penstock_decode_tokens_total": 10,
        "penstock_prefix_cache_queried_tokens_total": 11,
        "penstock_prefix_cache_hit_tokens_total": 12,
        "penstock_preemptions_total": 13,
        "penstock_recomputed_tokens_total": 14,
    }.items():
        assert found[name] == value


def test_a_request_is_counted_once() -> None:
    metrics = Metrics(LoadSnapshot)
    meter = metrics.begin("chat")
    meter.accepted(5)
    meter.tokens(0)
    assert meter.time_to_first_token is None
    meter.tokens(1)
    meter.tokens(3)
    meter.finished("stop")
    assert metrics.in_flight == 1
    meter.end("completed")
    meter.end("cancelled")
    found = samples(metrics)
    assert found["penstock_requests_total", (("endpoint", "chat"), ("outcome", "completed"))] == 1
    assert found["penstock_requests_total", (("endpoint", "chat"), ("outcome", "cancelled"))] == 0
    assert found["penstock_prompt_tokens_total", ()] == 5
    assert found["penstock_generation_tokens_total", ()] == 4
    assert found["penstock_samples_finished_total", (("reason", "stop"),)] == 1
    assert found["penstock_time_to_first_token_seconds_count", ()] == 1
    assert found["penstock_inter_token_latency_seconds_count", ()] == 1
    assert found["penstock_request_duration_seconds_count", ()] == 1
    assert found["penstock_requests_in_flight", ()] == 0


def test_every_name_has_the_prefix() -> None:
    assert all(name.startswith("penstock_") for name, _ in samples(Metrics(LoadSnapshot)))
