"""A Grafana dashboard over the metrics of servers, as JSON that Grafana imports."""

from penstock.observability.definitions import DEFINITIONS
from penstock.observability.grafana import Board, Drawing, Panel

_draw = Drawing(DEFINITIONS)
_query, _quantiles, _rates = _draw.query, _draw.quantiles, _draw.rates


def _gauges(title: str, unit: str, *names: str, stacked: bool = False, width: int = 8) -> Panel:
    prefix = len("penstock_")
    lines = tuple((name[prefix:].replace("_", " "), _query.now(name)) for name in names)
    return Panel(title, unit, lines, " ".join(DEFINITIONS[name].help for name in names), stacked, width)


def _by_second(amount: str) -> str:
    """What steps did, by second in which one ran."""
    return f"{_query.rate(amount)} / {_query.rate('penstock_step_seconds_total')}"


_BALANCE = f"{_query.rate('penstock_expert_rows_total')} / {_query.rate('penstock_expert_rows_busiest_total')}"
_FOR_NOTHING = f"{_query.rate('penstock_drafted_tokens_total')} - {_query.rate('penstock_accepted_drafts_total')}"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        _rates("Requests by outcome", "reqps", "penstock_requests_total", "outcome"),
        Panel(
            "Tokens",
            "short",
            (
                ("output tokens/s", _query.rate("penstock_generation_tokens_total")),
                ("prompt tokens/s", _query.rate("penstock_prompt_tokens_total")),
            ),
            "Of requests that were taken on.",
        ),
        _gauges(
            "Requests", "short", "penstock_requests_in_flight", "penstock_requests_running", "penstock_requests_waiting"
        ),
        _gauges("Ready servers", "short", "penstock_ready", width=4),
        _gauges("Uptime", "s", "penstock_uptime_seconds", width=4),
        _gauges("Simulated servers", "short", "penstock_simulated", width=4),
        Panel(
            "Engine restarts",
            "short",
            (("restarts", _query.increase("penstock_engine_restarts_total")),),
            DEFINITIONS["penstock_engine_restarts_total"].help,
            width=4,
        ),
        _rates("Samples by finish reason", "ops", "penstock_samples_finished_total", "reason"),
        Panel(
            "Batches",
            "short",
            (
                ("{{outcome}} lines/s", _query.rate("penstock_batch_lines_total", by="outcome")),
                ("lines running", _query.now("penstock_batch_lines_running")),
            ),
            DEFINITIONS["penstock_batch_lines_total"].help,
            width=4,
        ),
    ),
    "Latency": (
        _quantiles("Time to first token", "penstock_time_to_first_token_seconds"),
        _quantiles("Inter-token latency", "penstock_inter_token_latency_seconds"),
        _quantiles("Time per output token", "penstock_time_per_output_token_seconds"),
        _quantiles("End to end", "penstock_request_duration_seconds"),
        _quantiles("Time in the queue", "penstock_queue_time_seconds"),
        Panel(
            "Limits",
            "s",
            (("{{figure}}", _query.by("penstock_slo_seconds", "figure")),),
            DEFINITIONS["penstock_slo_seconds"].help,
        ),
    ),
    "Service levels": (
        Panel(
            "Attainment",
            "percentunit",
            (("good", _query.share("penstock_good_requests_total", ["penstock_slo_judged_requests_total"])),),
            "Good requests of all that were judged.",
        ),
        Panel(
            "Goodput",
            "short",
            (
                ("good requests/s", _query.rate("penstock_good_requests_total")),
                ("tokens/s of good requests", _query.rate("penstock_good_tokens_total")),
            ),
            DEFINITIONS["penstock_good_requests_total"].help,
        ),
        _rates("Missed limits", "reqps", "penstock_slo_missed_total", "by"),
    ),
    "Queue": (
        _gauges("Waiting tokens", "short", "penstock_requests_waiting_tokens"),
        _rates("What the queue waits for", "s", "penstock_waiting_seconds_total", "reason"),
        _rates("Refused under load", "reqps", "penstock_requests_refused_total", "reason"),
    ),
    "KV cache": (
        _gauges(
            "Blocks",
            "short",
            "penstock_kv_blocks_used",
            "penstock_kv_blocks_cached",
            "penstock_kv_blocks_free",
            stacked=True,
        ),
        _gauges(
            "Pool",
            "short",
            "penstock_kv_blocks",
            "penstock_kv_blocks_kept",
            "penstock_kv_swap_blocks",
            "penstock_kv_swap_blocks_used",
            width=4,
        ),
        Panel(
            "Prefix hits",
            "percentunit",
            (
                (
                    "tokens found",
                    _query.share(
                        "penstock_prefix_cache_hit_tokens_total", ["penstock_prefix_cache_queried_tokens_total"]
                    ),
                ),
            ),
            "Prompt tokens found in the prefix cache, of those that were looked up.",
            width=6,
        ),
        Panel(
            "Preemptions",
            "short",
            (
                ("preemptions/s", _query.rate("penstock_preemptions_total")),
                ("tokens/s computed again", _query.rate("penstock_recomputed_tokens_total")),
                ("blocks/s swapped out", _query.rate("penstock_kv_blocks_swapped_out_total")),
                ("blocks/s swapped in", _query.rate("penstock_kv_blocks_swapped_in_total")),
                ("tokens/s dropped from contexts", _query.rate("penstock_kv_dropped_tokens_total")),
                ("not swapped/s, for want of room", _query.rate("penstock_preemptions_not_swapped_total")),
            ),
            DEFINITIONS["penstock_preemptions_total"].help,
            width=6,
        ),
        Panel(
            "Beyond the pool",
            "short",
            (
                ("{{tier}}", _query.by("penstock_kv_tier_blocks", "tier")),
                ("kept: {{tier}}", _query.by("penstock_kv_tier_blocks_kept", "tier")),
            ),
            DEFINITIONS["penstock_kv_tier_blocks"].help,
            width=12,
        ),
        Panel(
            "To and from there",
            "short",
            (
                ("blocks/s to: {{tier}}", _query.rate("penstock_kv_tier_blocks_written_total", by="tier")),
                ("blocks/s not taken: {{tier}}", _query.rate("penstock_kv_tier_blocks_dropped_total", by="tier")),
                ("blocks/s from: {{tier}}", _query.rate("penstock_kv_tier_blocks_read_total", by="tier")),
                ("blocks/s lost: {{tier}}", _query.rate("penstock_kv_tier_blocks_lost_total", by="tier")),
            ),
            DEFINITIONS["penstock_kv_tier_blocks_read_total"].help,
            width=12,
        ),
    ),
    "KV tiers": (
        _rates("Tokens by the tier that had them", "short", "penstock_kv_tier_tokens_total", "tier"),
        _rates("Left there and computed, by why", "short", "penstock_kv_tier_left_tokens_total", "reason"),
        _rates("Read", "Bps", "penstock_kv_tier_read_bytes_total", "tier"),
        _rates("Written", "Bps", "penstock_kv_tier_written_bytes_total", "tier"),
        _quantiles("Reading what a prompt needs", "penstock_kv_tier_read_seconds"),
    ),
    "Steps": (
        _rates("Time of steps", "percentunit", "penstock_step_seconds_total", "phase"),
        _quantiles("Duration of a step", "penstock_step_duration_seconds"),
        _quantiles("Batch size", "penstock_step_rows", "short"),
        _quantiles("Tokens in a step", "penstock_step_tokens", "short"),
        Panel(
            "Token budget used",
            "percentunit",
            (("mean", _query.mean("penstock_step_budget_used_ratio")),),
            DEFINITIONS["penstock_step_budget_used_ratio"].help,
        ),
        Panel(
            "Computed",
            "short",
            (
                ("steps/s", _query.rate("penstock_engine_steps_total")),
                ("prefill tokens/s", _query.rate("penstock_prefill_tokens_total")),
                ("decode tokens/s", _query.rate("penstock_decode_tokens_total")),
                ("drafted tokens/s", _query.rate("penstock_drafted_tokens_total")),
            ),
            "What the engine did.",
        ),
        Panel(
            "Balance of experts",
            "percentunit",
            (("even / busiest", _BALANCE),),
            "Rows of experts by what they would be if all groups of processes had those of the busiest one.",
        ),
        Panel(
            "Drafted tokens",
            "short",
            (
                ("right: saved a step each", _query.rate("penstock_accepted_drafts_total")),
                ("for nothing", _FOR_NOTHING),
            ),
            "What came of them. What making them takes is the draft phase in the time of steps.",
            stacked=True,
        ),
        _rates("Drafted tokens judged, by place", "short", "penstock_judged_drafts_total", "place"),
        _rates("Drafted tokens right, by place", "short", "penstock_accepted_drafts_total", "place"),
    ),
    "Machine": (
        Panel(
            "Memory bandwidth while busy",
            "Bps",
            (
                ("used", _by_second("penstock_step_bytes_total")),
                ("measured ceiling", _query.now("penstock_machine_bytes_per_second")),
            ),
            DEFINITIONS["penstock_step_bytes_total"].help,
        ),
        Panel(
            "Arithmetic while busy",
            "ops",
            (
                ("used", _by_second("penstock_step_operations_total")),
                ("measured ceiling", _query.now("penstock_machine_operations_per_second")),
            ),
            DEFINITIONS["penstock_step_operations_total"].help,
        ),
        _rates("Cores", "short", "penstock_process_cpu_seconds_total", "process"),
        Panel(
            "Memory",
            "bytes",
            (("{{process}}", _query.by("penstock_process_resident_bytes", "process")),),
            DEFINITIONS["penstock_process_resident_bytes"].help,
        ),
        Panel(
            "Waiting for a processor",
            "percentunit",
            (("engine", _query.rate("penstock_cpu_wait_seconds_total")),),
            DEFINITIONS["penstock_cpu_wait_seconds_total"].help,
        ),
        Panel(
            "Disk",
            "short",
            (
                ("failing", _query.now("penstock_storage_failing")),
                ("{{reason}}/s", _query.rate("penstock_storage_failures_total", by="reason")),
            ),
            DEFINITIONS["penstock_storage_failing"].help,
        ),
        Panel(
            "Traces",
            "short",
            (("{{outcome}}/s", _query.rate("penstock_traces_total", by="outcome")),),
            DEFINITIONS["penstock_traces_total"].help,
        ),
    ),
    "Cost": (
        Panel(
            "Per million output tokens",
            "short",
            (
                (
                    "cost",
                    f"1e6 * {_query.rate('penstock_cost_total')} / {_query.rate('penstock_generation_tokens_total')}",
                ),
            ),
            "In the currency of --cost-per-hour.",
        ),
        _gauges("Per hour", "short", "penstock_cost_per_hour"),
    ),
}

DASHBOARD = Board("Penstock", "penstock", "penstock_ready", ROWS)
