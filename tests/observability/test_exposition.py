"""The text for Prometheus: that its own parser reads it, and that it has what the definitions say, and nothing else."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.configuration.slo import Slo
from penstock.core.events import LoadSnapshot, ShelfTotals
from penstock.core.facts import Fetched, StepFacts, StepTotals, TierCame
from penstock.observability.definitions import DEFINITIONS, SECTIONS, TRACES, as_markdown
from penstock.observability.exposition import exposition
from penstock.observability.metrics import Metrics
from penstock.observability.monitor import Monitor
from penstock.observability.stats import Settings
from support.scripted_engine import ScriptedEngine

LOAD = LoadSnapshot(
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
    swap_blocks_total=15,
    swap_blocks_used=16,
    shelves=(ShelfTotals("disk", 20, 21, 22, 23, 24, 25),),
)
STEP = StepFacts(
    schedule=0.5,
    execute=2.0,
    sample=0.25,
    send=0.125,
    budget=64,
    rows=3,
    decodes=2,
    held="blocks",
    swapped_out=17,
    swapped_in=18,
    not_swapped=19,
    fetched=[Fetched(1, 0, [TierCame("disk", 32, bytes=25, seconds=0.5)])],
    stored={"disk": 26},
)
SETTINGS = Settings(
    slo={"ttft": 0.5, "itl": 0.05},
    cost_per_hour=3.5,
    memory_bytes_per_second=4e10,
    operations_per_second=2e12,
    simulated="H100 SXM",
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def text_of(settings: Settings | None, *, stored: bool) -> str:
    engine = ScriptedEngine(None, [5])
    engine.load, engine.totals = LOAD, StepTotals().add(STEP, (1000, 2000))
    slo = None if settings is None else Slo(ttft=0.5, itl=0.05)
    metrics = Metrics(lambda: engine.load, lambda: engine.totals, slo=slo)
    metrics.step(STEP)
    storage = SimpleNamespace(failure=None, failures={"full": 0, "failed": 2}) if stored else None
    traces = SimpleNamespace(outcomes=dict.fromkeys(TRACES, 4)) if stored else None
    return Monitor(engine, metrics, settings, storage, traces).exposition().decode()


def samples(text: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, tuple(sorted(sample.labels.items())), sample.value


def test_the_engines_figures_are_those_of_its_newest_snapshot_and_sums() -> None:
    found = {name: value for name, labels, value in samples(text_of(SETTINGS, stored=True)) if not labels}
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
        "penstock_kv_swap_blocks": 15,
        "penstock_kv_swap_blocks_used": 16,
        "penstock_kv_blocks_swapped_out_total": 17,
        "penstock_kv_blocks_swapped_in_total": 18,
        "penstock_preemptions_not_swapped_total": 19,
        "penstock_step_bytes_total": 1000,
        "penstock_step_operations_total": 2000,
        "penstock_machine_bytes_per_second": 4e10,
        "penstock_cost_per_hour": 3.5,
        "penstock_step_rows_sum": 3,
        "penstock_ready": 1,
        "penstock_simulated": 1,
    }.items():
        assert found[name] == value, name


def test_labels_say_which() -> None:
    found = {(name, labels): value for name, labels, value in samples(text_of(SETTINGS, stored=True))}
    assert found["penstock_step_seconds_total", (("phase", "execute"),)] == 2.0
    assert found["penstock_waiting_seconds_total", (("reason", "blocks"),)] == 2.875
    assert found["penstock_slo_seconds", (("figure", "itl"),)] == 0.05
    assert found["penstock_storage_failures_total", (("reason", "failed"),)] == 2
    assert found["penstock_traces_total", (("outcome", "queue_full"),)] == 4
    assert found["penstock_kv_tier_tokens_total", (("tier", "disk"),)] == 32
    assert found["penstock_kv_tier_read_bytes_total", (("tier", "disk"),)] == 25
    assert found["penstock_kv_tier_written_bytes_total", (("tier", "disk"),)] == 26
    assert found["penstock_kv_tier_read_seconds_sum", (("tier", "disk"),)] == 0.5
    assert found["penstock_kv_tier_read_seconds_bucket", (("le", "0.4"), ("tier", "disk"))] == 0
    assert found["penstock_kv_tier_read_seconds_bucket", (("le", "+Inf"), ("tier", "disk"))] == 1
    assert found["penstock_process_resident_bytes", (("process", "api"),)] > 1e6
    assert found["penstock_requests_total", (("endpoint", "chat"), ("outcome", "completed"))] == 0


def test_each_tier_beyond_the_pool_has_its_figures() -> None:
    found = {(name, labels): value for name, labels, value in samples(text_of(SETTINGS, stored=True))}
    names = ("", "_written_total", "_dropped_total", "_read_total", "_lost_total", "_kept")
    for tier, values in (("disk", [20, 21, 22, 23, 24, 25]), ("shared", [0] * 6)):
        assert [found[f"penstock_kv_tier_blocks{name}", (("tier", tier),)] for name in names] == values


def test_all_that_is_defined_is_exposed_and_nothing_else() -> None:
    text = text_of(SETTINGS, stored=True)
    families = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    assert families == {name: definition.kind for name, definition in DEFINITIONS.items()}
    only = {name for name, definition in DEFINITIONS.items() if definition.only}
    bare = {line.split()[2] for line in text_of(None, stored=False).splitlines() if line.startswith("# TYPE")}
    assert bare == DEFINITIONS.keys() - only


def test_labels_have_no_values_but_those_that_are_defined() -> None:
    seen: dict[str, int] = {}
    for name, labels, _ in samples(text_of(SETTINGS, stored=True)):
        base = name if name in DEFINITIONS else name.rsplit("_", 1)[0]
        seen[base] = seen.get(base, 0) + 1
        for label, value in labels:
            assert label == "le" or value in DEFINITIONS[base].labels[label]
    for name, definition in DEFINITIONS.items():
        assert seen[name] <= definition.series
    assert sum(definition.series for definition in DEFINITIONS.values()) < 700


def test_names_follow_prometheus_conventions() -> None:
    assert len(DEFINITIONS) == sum(map(len, SECTIONS.values()))
    for name, definition in DEFINITIONS.items():
        assert name.startswith("penstock_") and name.endswith("_total") == (definition.kind == "counter")
        assert definition.help.endswith(".") and definition.unit
        assert bool(definition.buckets) == (definition.kind == "histogram")


def test_what_is_not_defined_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="penstock_surprise"):
        exposition({"penstock_surprise": 1})


def test_the_table_has_every_metric() -> None:
    table = as_markdown()
    assert all(f"`{name}" in table for name in DEFINITIONS)
