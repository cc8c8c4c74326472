"""What `GET /v1/stats` answers: the state of a server now, and its figures of two periods.

Everything that adds up is in a `Period`: once since the start, once over the last minute. Times are in seconds. What
was not measured is null, never 0.
"""

import msgspec

from penstock.core.facts import StepTotals


class Quantiles(msgspec.Struct, frozen=True):
    """Seconds of something that happened `count` times; quantiles are within 1% of values that occurred."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Latencies(msgspec.Struct, frozen=True):
    """How long requests took, as far as the server can see it.

    Attributes:
        ttft: from a request's arrival to the first chunk with content.
        itl: gaps between later chunks with content, all requests' together.
        tpot: (e2e - ttft) / (n - 1) of each request that was completed with n > 1 output tokens.
        e2e: from the arrival to the last chunk, of requests that were completed.
        queue: from the arrival at the engine to the first step that computed something of it.
    """

    ttft: Quantiles
    itl: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    queue: Quantiles


class SloFigures(msgspec.Struct, frozen=True):
    """How requests did against the service levels (`Settings.slo`).

    Attributes:
        judged: requests that ended by the server's doing: completed, failed, timed out or refused under load. Those
            that their clients cancelled, and those that could not be served as they were, are not judged.
        good: of these, the completed ones that met all service levels.
        attainment: good / judged.
        missed: how often which was missed: `ttft`, `itl`, `tpot`, `e2e`, or `failed`; a request may miss several.
        good_tokens: output tokens of good requests.
        goodput, token_goodput: good requests, and their output tokens, by second of the period.
    """

    judged: int
    good: int
    attainment: float | None
    missed: dict[str, int]
    good_tokens: int
    goodput: float
    token_goodput: float


class Rates(msgspec.Struct, frozen=True):
    """By second of the period: requests that ended, tokens of prompts and of outputs, steps of the engine."""

    requests: float
    prompt_tokens: float
    output_tokens: float
    steps: float


class Utilisation(msgspec.Struct, frozen=True):
    """What steps made of the machine while they ran.

    Attributes:
        busy: share of the period in which the engine was in a step.
        bytes_per_second, operations_per_second: by busy second, estimated from what steps must do at least; null where
            the engine does not say.
        memory, arithmetic: these, of what the machine was measured to do (`Settings`); null where it was not.
        budget: share of the token budgets of steps that was used.
        batch: rows in a step, in the mean.
    """

    busy: float
    bytes_per_second: float | None = None
    operations_per_second: float | None = None
    memory: float | None = None
    arithmetic: float | None = None
    budget: float | None = None
    batch: float | None = None


class Period(msgspec.Struct, frozen=True):
    """What happened in a period.

    Attributes:
        seconds: how long it was.
        requests: that ended, by outcome.
        refused: those of them that were refused under load, by why.
        prompt_tokens: of requests that were taken on.
        output_tokens: that were sent to clients.
        prefill_tokens, decode_tokens: that the engine computed of prompts and of outputs.
        recomputed_tokens: computed again after preemptions.
        prefix_queried_tokens, prefix_hit_tokens: of prompts, looked up in the prefix cache, and found there.
        steps: sums over the engine's steps; `held` is seconds in which a request waited, in the order of `waits`.
        waited: the same by what was waited for; reasons with 0 seconds are left out.
        cost: of the machine, in the currency of `Settings.cost_per_hour`.
        cost_per_million_tokens: of output; null where there was none, or nothing is known of the cost.
    """

    seconds: float
    requests: dict[str, int]
    refused: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    prefill_tokens: int
    decode_tokens: int
    recomputed_tokens: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    steps: StepTotals
    waited: dict[str, float]
    latency: Latencies
    rates: Rates
    utilisation: Utilisation
    slo: SloFigures | None = None
    cost: float | None = None
    cost_per_million_tokens: float | None = None


class KvBlocks(msgspec.Struct, frozen=True):
    """The pool's blocks: used + cached + free = total; `kept`, used or cached, are those that clients want kept."""

    total: int
    used: int
    cached: int
    free: int
    kept: int


class Now(msgspec.Struct, frozen=True):
    """The newest state that is known.

    Attributes:
        in_flight: requests that have not ended, whatever they wait for.
        running: sequences in the batch.
        waiting, waiting_tokens: sequences that wait for their first step, and their prompts' tokens.
        held: what the first waiting sequence waits for (`core.facts.Wait`).
    """

    in_flight: int
    running: int
    waiting: int
    waiting_tokens: int
    kv: KvBlocks
    held: str | None = None


class Second(msgspec.Struct, frozen=True):
    """One second of the timeline.

    Attributes:
        at: its end, in seconds since 1970.
        running, waiting, waiting_tokens, kv_used, kv_cached: at its end; the last two are blocks.
        requests: that ended.
        prompt_tokens, output_tokens: of requests that were taken on, and sent to clients.
        steps: that ended.
        schedule, draft, execute, sample, send: seconds that they spent with each.
        ttft, itl: medians of what was measured.
    """

    at: float
    running: int
    waiting: int
    waiting_tokens: int
    kv_used: int
    kv_cached: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    steps: int
    schedule: float
    draft: float
    execute: float
    sample: float
    send: float
    ttft: float | None = None
    itl: float | None = None


class ProcessFigures(msgspec.Struct, frozen=True):
    """What a process takes; null where it cannot be told."""

    resident_bytes: int | None
    cpu_seconds: float | None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that figures are to be read with; null where it is unknown or not set.

    Attributes:
        slo: most seconds of `ttft`, `itl`, `tpot` and `e2e`, those that were asked for.
        simulated: the devices that the replica pretends to have.
        role: "prefill" or "decode", where it does one for others behind a gateway.
        memory_bytes_per_second, operations_per_second: what this machine was measured to do.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    target_itl: float | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    threads: int | None = None
    quantization: str | None = None
    dtype: str | None = None
    max_queued_requests: int | None = None
    slo: dict[str, float] | None = None
    cost_per_hour: float | None = None
    memory_bytes_per_second: float | None = None
    operations_per_second: float | None = None
    simulated: str | None = None
    role: str | None = None


class Stats(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        version: of Penstock.
        model: whose figures these are; `models` are all that the server has. Without a wish, they are those of the
            first.
        at: when, in seconds since 1970.
        uptime: seconds since the server's start.
        ready: whether requests can be served now; `why_not` says why not.
        restarts: of the engine.
        waits: what can keep requests waiting, in the order of `StepTotals.held`.
        life: since the start; `minute`: at most the last 60 seconds.
        timeline: the last 60 seconds that are over, the oldest first.
        processes: `api` and `engine`.
    """

    version: str
    model: str | None
    at: float
    uptime: float
    ready: bool
    why_not: str | None
    restarts: int
    settings: Settings
    waits: tuple[str, ...]
    now: Now
    life: Period
    minute: Period
    timeline: list[Second]
    processes: dict[str, ProcessFigures]
    models: list[str] = []
