"""Every metric: its name, kind, unit, labels and meaning. What `/metrics` writes, documents, dashboards and alerts use.

Labels take values from fixed sets only, so the number of series is bounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from penstock.core.facts import TIERS, UNREAD, WAITS
from penstock.core.kv_policy import POLICY_KINDS
from penstock.core.plan import SHELVES
from penstock.observability.histogram import SECONDS
from penstock.observability.metrics import (
    DRAFT_PLACES,
    ENDPOINTS,
    FINISH_REASONS,
    MISSES,
    OUTCOMES,
    POWERS,
    REFUSALS,
    SHARES,
)

Phase = Literal["schedule", "draft", "execute", "sample", "send"]
Kind = Literal["counter", "gauge", "histogram"]

PHASES: tuple[Phase, ...] = get_args(Phase)
FIGURES = ("ttft", "itl", "tpot", "e2e")
PROCESSES = ("api", "engine")
TRACES = ("exported", "queue_full", "failed")


@dataclass(frozen=True)
class Definition:
    """One metric.

    Attributes:
        name: as it is exposed; counters end in `_total`.
        unit: what is counted.
        help: what it is, in a sentence.
        labels: each with all its values.
        buckets: of a histogram, their upper bounds.
        only: where it is exposed, if not everywhere.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    only: str | None = None

    @property
    def series(self) -> int:
        """How many series it is."""
        count = len(self.buckets) + 3 if self.buckets else 1
        for values in self.labels.values():
            count *= len(values)
        return count


def _counter(name: str, unit: str, text: str, only: str | None = None, **labels: Sequence[str]) -> Definition:
    return Definition(f"penstock_{name}_total", "counter", unit, text, labels, only=only)


def _gauge(name: str, unit: str, text: str, only: str | None = None, **labels: Sequence[str]) -> Definition:
    return Definition(f"penstock_{name}", "gauge", unit, text, labels, only=only)


def _histogram(
    name: str, unit: str, text: str, buckets: tuple[float, ...] = SECONDS, **labels: Sequence[str]
) -> Definition:
    return Definition(f"penstock_{name}", "histogram", unit, text, labels, buckets)


_SLO, _COST, _SIMULATED = "with `--slo`", "with `--cost-per-hour`", "with `--simulate`"
_STORED, _KNOWN = "where files are kept", "where it is known"

SECTIONS: dict[str, tuple[Definition, ...]] = {
    "Requests": (
        _counter("requests", "requests", "Requests that have ended, by how.", endpoint=ENDPOINTS, outcome=OUTCOMES),
        _counter("requests_refused", "requests", "Requests that were refused under load, by why.", reason=REFUSALS),
        _counter("samples_finished", "samples", "Samples by finish reason.", reason=FINISH_REASONS),
        _gauge("requests_in_flight", "requests", "Requests that have not ended."),
        _counter("prompt_tokens", "tokens", "Tokens of the prompts of accepted requests."),
        _counter("generation_tokens", "tokens", "Output tokens that came from the engine for a client."),
        _counter("batch_lines", "requests", "Requests of batches that are done.", outcome=("completed", "failed")),
        _gauge("batch_lines_running", "requests", "Requests of batches under way."),
    ),
    "Latencies": (
        _histogram(
            "time_to_first_token_seconds", "seconds", "TTFT: from a request's arrival to its first chunk with content."
        ),
        _histogram(
            "inter_token_latency_seconds", "seconds", "ITL: gaps between later chunks with content, of all requests."
        ),
        _histogram(
            "time_per_output_token_seconds",
            "seconds",
            "TPOT: (E2E - TTFT) / (n - 1) of each completed request with n > 1 output tokens.",
        ),
        _histogram(
            "request_duration_seconds", "seconds", "E2E: from a request's arrival to its last chunk, if completed."
        ),
        _histogram(
            "queue_time_seconds", "seconds", "From a prompt's arrival at the engine to the first step that has it."
        ),
    ),
    "Service levels": (
        _gauge("slo_seconds", "seconds", "The limits of --slo.", _SLO, figure=FIGURES),
        _counter(
            "slo_judged_requests", "requests", "Requests that were completed, failed, timed out or refused.", _SLO
        ),
        _counter("good_requests", "requests", "Completed requests that met all limits of --slo.", _SLO),
        _counter("good_tokens", "tokens", "Output tokens of good requests.", _SLO),
        _counter(
            "slo_missed", "requests", "Requests that were not good, by each limit that they missed.", _SLO, by=MISSES
        ),
    ),
    "Batch and queue": (
        _gauge("requests_running", "sequences", "Sequences in the running batch."),
        _gauge("requests_waiting", "sequences", "Sequences that wait for their first step (queue depth)."),
        _gauge("requests_waiting_tokens", "tokens", "Prompt tokens of waiting sequences."),
        _counter(
            "waiting_seconds",
            "seconds",
            "Time of steps while requests waited, by what the first one waited for.",
            reason=WAITS,
        ),
        _counter("preemptions", "sequences", "Sequences that had to give up their KV blocks."),
        _counter("recomputed_tokens", "tokens", "Tokens computed again after preemption."),
        _counter(
            "preemptions_not_swapped",
            "sequences",
            "Preempted sequences for whose KV blocks --swap-space had no room, so that they are computed again.",
        ),
    ),
    "KV cache": (
        _gauge("kv_blocks", "blocks", "KV blocks of the pool."),
        _gauge("kv_blocks_used", "blocks", "KV blocks that running sequences hold."),
        _gauge("kv_blocks_cached", "blocks", "KV blocks kept for prefix hits only."),
        _gauge("kv_blocks_kept", "blocks", "KV blocks that clients want kept for a time, used or cached."),
        _gauge("kv_blocks_free", "blocks", "KV blocks that hold nothing."),
        _gauge("kv_swap_blocks", "blocks", "KV blocks in the processor's memory, beside a GPU's pool (--swap-space)."),
        _gauge("kv_swap_blocks_used", "blocks", "Those of them that preempted sequences hold."),
        _counter("kv_blocks_swapped_out", "blocks", "KV blocks that were copied to the processor's memory."),
        _counter("kv_blocks_swapped_in", "blocks", "KV blocks that were copied back from there."),
        _counter(
            "kv_dropped_tokens",
            "tokens",
            "Tokens that requests with a kv_policy dropped from their contexts, by type of policy.",
            type=POLICY_KINDS,
        ),
        _gauge(
            "kv_tier_blocks", "blocks", "Blocks of prefixes in tiers beyond the pool, as far as known.", tier=SHELVES
        ),
        _gauge("kv_tier_blocks_kept", "blocks", "Those of them that clients want kept for a time.", tier=SHELVES),
        _counter("kv_tier_blocks_written", "blocks", "Blocks that were written to a tier.", tier=SHELVES),
        _counter(
            "kv_tier_blocks_dropped", "blocks", "Blocks that were not, since it is too slow or fails.", tier=SHELVES
        ),
        _counter("kv_tier_blocks_read", "blocks", "Blocks that were read instead of being computed.", tier=SHELVES),
        _counter(
            "kv_tier_blocks_lost",
            "blocks",
            "Blocks that should have been there and could not be read.",
            tier=SHELVES,
        ),
        _counter(
            "kv_tier_tokens", "tokens", "Tokens whose KV blocks came from a tier instead of being computed.", tier=TIERS
        ),
        _counter(
            "kv_tier_left_tokens",
            "tokens",
            "Tokens whose KV blocks a tier had and that were computed all the same, by why.",
            tier=SHELVES,
            reason=UNREAD,
        ),
        _counter("kv_tier_read_bytes", "bytes", "What was read from a tier beyond the pool.", tier=SHELVES),
        _counter("kv_tier_written_bytes", "bytes", "What was written to a tier beyond the pool.", tier=SHELVES),
        _histogram(
            "kv_tier_read_seconds", "seconds", "Reading all blocks of a sequence from a tier, added up.", tier=SHELVES
        ),
        _counter("prefix_cache_queried_tokens", "tokens", "Prompt tokens looked up in the prefix cache."),
        _counter("prefix_cache_hit_tokens", "tokens", "Prompt tokens found there."),
    ),
    "Steps": (
        _counter("engine_steps", "steps", "Steps of the engine."),
        _counter("prefill_tokens", "tokens", "Prompt tokens computed."),
        _counter("decode_tokens", "tokens", "Output tokens computed."),
        _counter("drafted_tokens", "tokens", "Tokens that were drafted, and verified by a step."),
        _counter(
            "judged_drafts", "tokens", "Drafted tokens that were looked at, by place in the draft.", place=DRAFT_PLACES
        ),
        _counter("accepted_drafts", "tokens", "Drafted tokens that were right, and are output.", place=DRAFT_PLACES),
        _counter("step_seconds", "seconds", "Time of steps, by what they did.", phase=PHASES),
        _histogram("step_duration_seconds", "seconds", "Time of a step, but for sending its outputs."),
        _histogram("step_rows", "sequences", "Sequences in a step (batch size).", POWERS),
        _histogram("step_tokens", "tokens", "Tokens that a step computes.", POWERS),
        _histogram("step_budget_used_ratio", "share", "Share of its token budget that a step used.", SHARES),
    ),
    "Machine": (
        _counter("step_bytes", "bytes", "What steps moved through memory, estimated from what they must at least."),
        _counter("expert_rows", "rows", "Rows that experts have computed, where processes have experts of their own."),
        _counter(
            "expert_rows_busiest",
            "rows",
            "What they would be if all groups of processes had the rows of the busiest one, in each layer of a step.",
        ),
        _counter("step_operations", "operations", "Multiplications and additions of steps, estimated in the same way."),
        _gauge("machine_bytes_per_second", "bytes/s", "What the machine's memory was measured to do.", _KNOWN),
        _gauge("machine_operations_per_second", "operations/s", "What its cores were measured to do.", _KNOWN),
        _counter("cpu_wait_seconds", "seconds", "Time in which the engine was ready to run and had no processor."),
        _gauge(
            "process_resident_bytes", "bytes", "Memory of a process; mapped weights count in both.", process=PROCESSES
        ),
        _counter("process_cpu_seconds", "seconds", "Processor time of a process.", process=PROCESSES),
    ),
    "Cost": (
        _gauge("cost_per_hour", "currency/h", "Of the machine, as it was told.", _COST),
        _counter("cost", "currency", "Of the machine since the server's start.", _COST),
    ),
    "Server": (
        _gauge("ready", "0 or 1", "1 while requests can be served."),
        _gauge("uptime_seconds", "seconds", "Since the server's start."),
        _gauge("simulated", "0 or 1", "1: nothing is computed, and tokens are made up.", _SIMULATED),
        _counter("engine_restarts", "starts", "Starts of the engine after its first."),
        _gauge("storage_failing", "0 or 1", "1 while the disk under the server's data takes nothing.", _STORED),
        _counter(
            "storage_failures",
            "operations",
            "Operations that the disk has failed, by why.",
            _STORED,
            reason=("full", "failed"),
        ),
        _counter(
            "traces",
            "requests",
            "Requests by what became of their traces; all but the exported ones were dropped.",
            "with `--otlp-endpoint`",
            outcome=TRACES,
        ),
    ),
}

DEFINITIONS = {definition.name: definition for section in SECTIONS.values() for definition in section}


def as_markdown() -> str:
    """All of them as tables, for docs/metrics.md."""
    parts = []
    for title, section in SECTIONS.items():
        rows = [f"| {_shown_name(each)} | {each.kind} | {each.unit} | {_shown_help(each)} |" for each in section]
        parts.append("\n".join([f"### {title}", "", "| name | kind | unit | |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _shown_name(definition: Definition) -> str:
    labels = ", ".join(definition.labels)
    return f"`{definition.name}{{{labels}}}`" if labels else f"`{definition.name}`"


def _shown_help(definition: Definition) -> str:
    labels = "".join(
        f" `{name}`: {', '.join(f'`{value}`' for value in values)}." for name, values in definition.labels.items()
    )
    only = f" Only {definition.only}." if definition.only else ""
    return f"{definition.help}{labels}{only}"
