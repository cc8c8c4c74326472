"""Metrics in Prometheus' text format."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from penstock.core.facts import WAITS
from penstock.core.plan import SHELVES
from penstock.observability.definitions import DEFINITIONS, PHASES, Definition
from penstock.observability.histogram import Histogram
from penstock.observability.metrics import Metrics
from penstock.observability.stats import ProcessFigures, Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# By the values of the labels, in their order, where there are any.
Value = float | Histogram | Mapping[tuple[str, ...], float | Histogram]


class Storage(Protocol):
    """What is known of the disk under a server's data."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be kept now."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Operations that failed, by why."""


class Traces(Protocol):
    """What is known of the traces of requests."""

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Requests by what became of their traces."""


def values_of(metrics: Metrics) -> dict[str, Value]:
    """What a server counts, by name of metric."""
    now = metrics.now()
    values: dict[str, Value] = {
        "penstock_requests_total": {(endpoint, outcome): n for (endpoint, outcome), n in metrics.requests.items()},
        "penstock_requests_refused_total": _labelled(metrics.refused),
        "penstock_samples_finished_total": _labelled(metrics.finished),
        "penstock_requests_in_flight": metrics.in_flight,
        "penstock_prompt_tokens_total": metrics.prompt_tokens,
        "penstock_generation_tokens_total": metrics.generation_tokens,
        "penstock_kv_dropped_tokens_total": _labelled(metrics.dropped),
        "penstock_batch_lines_total": _labelled(metrics.batch_lines),
        "penstock_batch_lines_running": metrics.batch_lines_running,
        "penstock_time_to_first_token_seconds": metrics.ttft.histogram(),
        "penstock_inter_token_latency_seconds": metrics.itl.histogram(),
        "penstock_time_per_output_token_seconds": metrics.tpot.histogram(),
        "penstock_request_duration_seconds": metrics.e2e.histogram(),
        "penstock_queue_time_seconds": metrics.queue.histogram(),
        "penstock_step_duration_seconds": metrics.step_seconds,
        "penstock_step_rows": metrics.step_rows,
        "penstock_step_tokens": metrics.step_tokens,
        "penstock_step_budget_used_ratio": metrics.step_budget_used,
        "penstock_kv_tier_tokens_total": _labelled(metrics.tier_tokens),
        "penstock_kv_tier_left_tokens_total": {(tier, why): n for (tier, why), n in metrics.tier_left.items()},
        "penstock_kv_tier_read_bytes_total": _labelled(metrics.tier_read),
        "penstock_kv_tier_written_bytes_total": _labelled(metrics.tier_stored),
        "penstock_kv_tier_read_seconds": _labelled(metrics.fetch_seconds),
        "penstock_uptime_seconds": now - metrics.began,
        **_engine_values(metrics),
    }
    if metrics.slo is not None:
        values |= {
            "penstock_slo_seconds": _labelled(metrics.slo.limits()),
            "penstock_slo_judged_requests_total": metrics.judged,
            "penstock_good_requests_total": metrics.good,
            "penstock_good_tokens_total": metrics.good_tokens,
            "penstock_slo_missed_total": _labelled(metrics.missed),
        }
    return values


def _engine_values(metrics: Metrics) -> dict[str, Value]:
    sums = metrics.sums()
    load, steps = sums.load, sums.steps
    return {
        "penstock_requests_running": load.running,
        "penstock_requests_waiting": load.waiting,
        "penstock_requests_waiting_tokens": load.waiting_tokens,
        "penstock_waiting_seconds_total": _labelled(dict(zip(WAITS, steps.held, strict=True))),
        "penstock_preemptions_total": load.preemptions,
        "penstock_recomputed_tokens_total": load.recomputed_tokens,
        "penstock_preemptions_not_swapped_total": steps.not_swapped,
        "penstock_expert_rows_total": load.expert_rows,
        "penstock_expert_rows_busiest_total": load.expert_rows_busiest,
        "penstock_kv_blocks": load.blocks_total,
        "penstock_kv_blocks_used": load.blocks_used,
        "penstock_kv_blocks_cached": load.blocks_cached,
        "penstock_kv_blocks_kept": load.blocks_kept,
        "penstock_kv_blocks_free": load.blocks_free,
        "penstock_kv_swap_blocks": load.swap_blocks_total,
        "penstock_kv_swap_blocks_used": load.swap_blocks_used,
        "penstock_kv_blocks_swapped_out_total": steps.swapped_out,
        "penstock_kv_blocks_swapped_in_total": steps.swapped_in,
        "penstock_kv_tier_blocks": _labelled({name: load.shelf(name).slots for name in SHELVES}),
        "penstock_kv_tier_blocks_kept": _labelled({name: load.shelf(name).kept for name in SHELVES}),
        "penstock_kv_tier_blocks_written_total": _labelled({name: load.shelf(name).written for name in SHELVES}),
        "penstock_kv_tier_blocks_dropped_total": _labelled({name: load.shelf(name).dropped for name in SHELVES}),
        "penstock_kv_tier_blocks_read_total": _labelled({name: load.shelf(name).read for name in SHELVES}),
        "penstock_kv_tier_blocks_lost_total": _labelled({name: load.shelf(name).lost for name in SHELVES}),
        "penstock_prefix_cache_queried_tokens_total": load.prefix_queried_tokens,
        "penstock_prefix_cache_hit_tokens_total": load.prefix_hit_tokens,
        "penstock_engine_steps_total": load.step,
        "penstock_engine_restarts_total": load.restarts,
        "penstock_prefill_tokens_total": load.prefill_tokens,
        "penstock_decode_tokens_total": load.decode_tokens,
        "penstock_drafted_tokens_total": steps.drafted,
        "penstock_judged_drafts_total": _labelled({place: counts[0] for place, counts in metrics.drafts.items()}),
        "penstock_accepted_drafts_total": _labelled({place: counts[1] for place, counts in metrics.drafts.items()}),
        "penstock_step_seconds_total": _labelled({phase: getattr(steps, phase) for phase in PHASES}),
        "penstock_step_bytes_total": steps.bytes,
        "penstock_step_operations_total": steps.operations,
        "penstock_cpu_wait_seconds_total": steps.cpu_wait,
    }


def storage_values(storage: Storage) -> dict[str, Value]:
    """What is known of the disk."""
    return {
        "penstock_storage_failing": int(storage.failure is not None),
        "penstock_storage_failures_total": _labelled(storage.failures),
    }


def traces_values(traces: Traces) -> dict[str, Value]:
    """Numbers of traces by what became of them."""
    return {"penstock_traces_total": _labelled(traces.outcomes)}


def settings_values(settings: Settings, uptime: float) -> dict[str, Value]:
    """What figures are to be read with, and what the machine has cost."""
    values: dict[str, Value] = {}
    for name, value in (
        ("penstock_machine_bytes_per_second", settings.memory_bytes_per_second),
        ("penstock_machine_operations_per_second", settings.operations_per_second),
        ("penstock_cost_per_hour", settings.cost_per_hour),
    ):
        if value is not None:
            values[name] = value
    if settings.simulated is not None:
        values["penstock_simulated"] = 1
    if settings.cost_per_hour is not None:
        values["penstock_cost_total"] = settings.cost_per_hour * uptime / 3600
    return values


def process_values(processes: Mapping[str, ProcessFigures]) -> dict[str, Value]:
    """What the server's processes take, of those that can be looked at."""
    return {
        "penstock_process_resident_bytes": {
            (name,): figures.resident_bytes for name, figures in processes.items() if figures.resident_bytes is not None
        },
        "penstock_process_cpu_seconds_total": {
            (name,): figures.cpu_seconds for name, figures in processes.items() if figures.cpu_seconds is not None
        },
    }


def exposition(values: Mapping[str, Value], definitions: Mapping[str, Definition] = DEFINITIONS) -> bytes:
    """The text. What has no definition is a mistake."""
    return exposition_of([(None, values)], definitions)


def exposition_of(
    parts: Sequence[tuple[str | None, Mapping[str, Value]]], definitions: Mapping[str, Definition] = DEFINITIONS
) -> bytes:
    """The same of several parts, each with its model as a label; None: it has no such label."""
    unknown = {name for _, values in parts for name in values} - definitions.keys()
    if unknown:
        raise KeyError(f"no definition of {', '.join(sorted(unknown))}")
    lines: list[str] = []
    for name, definition in definitions.items():
        having = [(model, values[name]) for model, values in parts if name in values]
        if having:
            lines += [f"# HELP {name} {definition.help}", f"# TYPE {name} {definition.kind}"]
        for model, value in having:
            lines += _samples(definition, value, model)
    return ("\n".join(lines) + "\n").encode()


def _samples(definition: Definition, value: Value, model: str | None) -> Iterator[str]:
    name, whose = definition.name, [] if model is None else [f'model="{_escaped(model)}"']
    for labels, each in value.items() if isinstance(value, Mapping) else (((), value),):
        pairs = [f'{label}="{text}"' for label, text in zip(definition.labels if labels else (), labels, strict=True)]
        pairs += whose
        if isinstance(each, Histogram):
            yield from _buckets(name, pairs, each)
        else:
            yield f"{name}{_braced(pairs)} {float(each)!r}"


def _buckets(name: str, pairs: list[str], value: Histogram) -> Iterator[str]:
    count = 0
    for bound, count in value.cumulative():
        le = f'le="{bound}"'
        yield f"{name}_bucket{_braced([*pairs, le])} {float(count)!r}"
    yield f"{name}_sum{_braced(pairs)} {float(value.sum)!r}"
    yield f"{name}_count{_braced(pairs)} {float(count)!r}"


def _escaped(text: str) -> str:
    """A label's value, as the format has it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _braced(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _labelled(values: Mapping[Any, float | Histogram]) -> dict[tuple[str, ...], float | Histogram]:
    return {(label,): value for label, value in values.items()}
