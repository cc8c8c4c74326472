"""What a gateway counts, and what it tells of itself and of its replicas."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.core.usage import Used
from penstock.gateway.answer_cache import AnswerCache
from penstock.gateway.demand import Demand
from penstock.metering.prices import TRILLIONTHS
from penstock.observability.exposition import Value, exposition
from penstock.observability.gateway_definitions import (
    GATEWAY_DEFINITIONS,
    OUTCOMES,
    PLACES,
    RETRIES,
    STATES,
    TOKENS,
    VERDICTS,
    CheckResult,
    Outcome,
    Retry,
    When,
)
from penstock.observability.histogram import SECONDS, Histogram
from penstock.routing.stream import Exactness
from penstock.tenancy.entries import Ledger

# Series of tenants and models; what further ones use is counted together.
_MOST_PAIRS = 2000


class Figures:
    """Counts since the start.

    Attributes:
        requests, copies: that have ended, by how; copies are those for models that are tried.
        retries: by what was done.
        handed_over: requests whose prompts were computed by other replicas than their answers.
        judged: requests, by what their judges said.
        guarded: what guardrails were asked, by their names, when, and what they said.
        sent, failures, prompt_tokens, hit_tokens: by the replica's place.
        first_byte: seconds until answers began.
        batch_lines, batch_lines_running: of the gateway's own batches: done, by how; under way.
        used, cost: tokens by tenant, model and what they are of; what they cost, in trillionths.
    """

    def __init__(self) -> None:
        self.requests: Counter[Outcome] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.copies: Counter[Outcome] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.retries: Counter[Retry] = Counter(dict.fromkeys(RETRIES, 0))
        self.handed_over = 0
        self.judged: Counter[str] = Counter(dict.fromkeys(VERDICTS, 0))
        self.guarded: Counter[tuple[str, When, CheckResult]] = Counter()
        self.sent: Counter[int] = Counter()
        self.failures: Counter[int] = Counter()
        self.prompt_tokens: Counter[int] = Counter()
        self.hit_tokens: Counter[int] = Counter()
        self.first_byte = Histogram(SECONDS)
        self.batch_lines = {"completed": 0, "failed": 0}
        self.batch_lines_running = 0
        self.used: Counter[tuple[str, str, str]] = Counter()
        self.cost: Counter[tuple[str, str]] = Counter()

    def settled(self, tenant: str, model: str, used: Used, cost: int | None) -> None:
        """A request has used so much, and cost so much."""
        if len(self.cost) >= _MOST_PAIRS and (tenant, model) not in self.cost:
            tenant, model = "others", "others"
        for of, tokens in zip(TOKENS, (used.prompt, used.cached, used.output), strict=True):
            self.used[tenant, model, of] += tokens
        self.cost[tenant, model] += cost or 0

    def forget(self, place: int) -> None:
        """The replica in a place is gone."""
        for each in (self.sent, self.failures, self.prompt_tokens, self.hit_tokens):
            del each[place]


class ReplicaFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as the gateway sees it.

    Attributes:
        place: of it among all that there were.
        state, why: whether it can be asked, and why not.
        left_out: why it is left out although it can; None where it is not.
        models: that it serves.
        requests: under way there, with those that others have sent.
        most: that it takes on; None where nothing says it.
        running, waiting, blocks_used, blocks_total: that it tells of: sequences, and blocks of its KV cache; None
            where it tells nothing.
        sent, failures: requests since the start.
        hit_rate: the part of the prompts' tokens that were expected in its cache; None before the first.
        cache: how well it is known: exact, degraded or approximate.
        unlike: a replica that serves a model of the same name otherwise; None where there was none when it began.
    """

    place: int
    url: str
    state: str
    why: str
    left_out: str | None
    models: tuple[str, ...]
    requests: int
    most: int | None
    running: int | None
    waiting: int | None
    blocks_used: int | None
    blocks_total: int | None
    sent: int
    failures: int
    hit_rate: float | None
    cache: str
    unlike: str | None


class FleetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/fleet`: all replicas, and what was done with requests.

    Attributes:
        version: the gateway's.
        at: when, in Unix time.
        policy: how replicas are chosen.
        index_blocks: of prompts that are remembered.
        held: requests that wait, since no replica can answer, or all have as much as they take on.
        requests, retries: that have ended, by how; by what was done.
    """

    version: str
    at: float
    policy: str
    index_blocks: int
    held: int
    requests: dict[Outcome, int]
    retries: dict[Retry, int]
    replicas: list[ReplicaFigures]


class Behind(NamedTuple):
    """What a gateway leans on: whether the store of limits is away; its ledger, if there is one; its answer cache."""

    limits_apart: bool
    ledger: Ledger | None
    answers: AnswerCache


def text_of(
    fleet: FleetFigures,
    figures: Figures,
    demands: Sequence[Demand],
    index: tuple[int, int],
    traces: Mapping[str, int],
    behind: Behind,
    *,
    tenants: bool,
) -> bytes:
    """All of it in Prometheus' text format.

    Args:
        demands: what each model's replicas have to do.
        index: how many blocks are remembered and were forgotten.
        traces: requests by what became of their traces.
        tenants: whether it is told what each of them uses.
    """
    replicas = fleet.replicas

    def by_replica(counts: Counter[int]) -> dict[tuple[str, ...], float]:
        return {(each.url,): counts[each.place] for each in replicas}

    values: dict[str, Value] = {
        "requests_total": {(outcome,): count for outcome, count in figures.requests.items()},
        "copies_total": {(outcome,): count for outcome, count in figures.copies.items()},
        "retries_total": {(kind,): count for kind, count in figures.retries.items()},
        "handed_over_total": figures.handed_over,
        "judged_total": {(verdict,): count for verdict, count in figures.judged.items()},
        "guarded_total": dict[tuple[str, ...], float](figures.guarded.items()),
        "answers_total": {(lookup,): count for lookup, count in behind.answers.counts.items()},
        "answer_bytes": behind.answers.answers.size,
        "answers_dropped_total": behind.answers.answers.dropped,
        "answers_away": int(behind.answers.answers.away is not None),
        "traces_total": {(outcome,): count for outcome, count in traces.items()},
        "batch_lines_total": {(result,): count for result, count in figures.batch_lines.items()},
        "batch_lines_running": figures.batch_lines_running,
        "held": fleet.held,
        "model_replicas": {(each.model,): each.ready for each in demands},
        "model_asked_total": {(each.model,): each.counted.requests for each in demands},
        "model_requests": _at(demands, lambda each: (each.held, each.requests)),
        "model_waiting_tokens": _at(demands, lambda each: (each.held_tokens, each.waiting - each.held_tokens)),
        "model_backlog_seconds": _at(
            demands,
            lambda each: (each.backlog(each.held_tokens), each.backlog(each.waiting - each.held_tokens)),
        ),
        "index_blocks": index[0],
        "index_forgotten_total": index[1],
        "replica_state": {(each.url, state): int(each.state == state) for each in replicas for state in STATES},
        "replica_cache": {(each.url, known): int(each.cache == known) for each in replicas for known in Exactness},
        "replica_left_out": {(each.url,): int(each.left_out is not None) for each in replicas},
        "replica_requests": {(each.url,): each.requests for each in replicas},
        "replica_sent_total": by_replica(figures.sent),
        "replica_failures_total": by_replica(figures.failures),
        "replica_prompt_tokens_total": by_replica(figures.prompt_tokens),
        "replica_hit_tokens_total": by_replica(figures.hit_tokens),
        "tokens_total": dict[tuple[str, ...], float](figures.used.items()) if tenants else {},
        "cost_total": {pair: cost / TRILLIONTHS for pair, cost in figures.cost.items()} if tenants else {},
        "limits_apart": int(behind.limits_apart),
        "database_away": int(behind.ledger is not None and behind.ledger.away is not None),
        "ledger_waiting": 0 if behind.ledger is None else behind.ledger.pending,
        "time_to_first_byte_seconds": figures.first_byte,
    }
    return exposition({f"penstock_gateway_{name}": value for name, value in values.items()}, GATEWAY_DEFINITIONS)


def _at(demands: Sequence[Demand], of: Callable[[Demand], tuple[float, float]]) -> dict[tuple[str, ...], float]:
    """What there is of each model at this gateway, and at replicas."""
    return {(each.model, at): value for each in demands for at, value in zip(PLACES, of(each), strict=True)}
