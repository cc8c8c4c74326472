"""The metrics of a gateway. Series of replicas are one for each."""

from collections.abc import Sequence
from typing import Literal, get_args

from penstock.observability.definitions import TRACES, Definition
from penstock.observability.histogram import SECONDS
from penstock.routing.stream import Exactness

# answered: a replica has answered to the end. refused: no replica could be asked. broken: a replica did not answer to
# the end. invalid: the request could not be read, no replica has its model, or a guardrail refuses it. cancelled: the
# client left. cached: it was given an answer of the answer cache.
Outcome = Literal["answered", "refused", "broken", "invalid", "cancelled", "cached"]
Retry = Literal["sent", "resumed", "hedged", "over_budget"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
RETRIES: tuple[Retry, ...] = get_args(Retry)


# bypass: the request wants an answer of its own. away: the store of answers did not say what it has.
Lookup = Literal["hit", "miss", "bypass", "away"]
LOOKUPS: tuple[Lookup, ...] = get_args(Lookup)
# Of a guardrail: what it says, or that it says nothing.
CheckResult = Literal["allow", "deny", "replace", "timeout", "failure"]
When = Literal["before", "after"]
# yes: the judge says that its rule applies. failed: it says nothing in time, or cannot be asked.
VERDICTS = ("yes", "no", "failed")
STATES = ("unknown", "ready", "stale", "unready", "unreachable", "draining", "gone")
TOKENS = ("prompt", "cached", "output")
# gateway: it waits in this one. replicas: it is there, from any gateway.
PLACES = ("gateway", "replicas")
# What labels can be; a replica's can be any URL, a tenant's and a model's any name of one that is served.
_VALUES: dict[str, Sequence[str]] = {
    "outcome": OUTCOMES,
    "kind": RETRIES,
    "state": STATES,
    "verdict": VERDICTS,
    "lookup": LOOKUPS,
    "result": get_args(CheckResult),
    "line": ("completed", "failed"),
    "when": get_args(When),
    "guardrail": (),
    "known": [each.value for each in Exactness],
    "of": TOKENS,
    "at": PLACES,
    "replica": (),
    "tenant": (),
    "model": (),
}


def _of(name: str, kind: Literal["counter", "gauge"], unit: str, text: str, *labels: str) -> Definition:
    suffix = "_total" if kind == "counter" else ""
    values = {label: _VALUES[label] for label in labels}
    return Definition(f"penstock_gateway_{name}{suffix}", kind, unit, text, values)


GATEWAY_DEFINITIONS = {
    each.name: each
    for each in (
        _of("requests", "counter", "requests", "Requests that have ended, by how.", "outcome"),
        _of(
            "copies",
            "counter",
            "requests",
            "Copies of requests for models that are tried, by how they ended.",
            "outcome",
        ),
        _of("retries", "counter", "requests", "Requests whose replica broke or refused, by what was done.", "kind"),
        _of("handed_over", "counter", "requests", "Requests whose prompt another replica has computed."),
        _of("judged", "counter", "requests", "Requests that a judge was asked about, by what it said.", "verdict"),
        _of(
            "answers", "counter", "requests", "Requests whose tenant lets answers be kept, by what there was.", "lookup"
        ),
        _of("answer_bytes", "gauge", "bytes", "Answers that are kept in memory."),
        _of("answers_dropped", "counter", "answers", "Answers that had no room, or were not taken by the store."),
        _of("answers_away", "gauge", "", "1 while the store of answers does not answer."),
        _of(
            "guarded",
            "counter",
            "checks",
            "What guardrails were asked, by what they said.",
            "guardrail",
            "when",
            "result",
        ),
        Definition(
            "penstock_gateway_traces_total",
            "counter",
            "requests",
            "Requests by what became of their traces; all but the exported ones were dropped.",
            {"outcome": TRACES},
        ),
        _of(
            "held",
            "gauge",
            "requests",
            "Requests that wait, since no replica can take them on now.",
        ),
        _of("model_replicas", "gauge", "replicas", "Replicas of a model that can be asked.", "model"),
        _of("model_asked", "counter", "requests", "Requests that came for a model.", "model"),
        _of("model_requests", "gauge", "requests", "Requests for a model, by where they are.", "model", "at"),
        _of("model_waiting_tokens", "gauge", "tokens", "Tokens of a model's prompts, not computed yet.", "model", "at"),
        _of(
            "model_backlog_seconds",
            "gauge",
            "seconds",
            "Seconds that one replica of a model would need for the prompts that wait.",
            "model",
            "at",
        ),
        _of("batch_lines", "counter", "requests", "Lines of the gateway's batches that are done, by how.", "line"),
        _of("batch_lines_running", "gauge", "requests", "Lines of the gateway's batches under way."),
        _of("index_blocks", "gauge", "blocks", "Blocks of prompts that are remembered."),
        _of("index_forgotten", "counter", "blocks", "Blocks that were forgotten, since there were too many."),
        _of("replica_state", "gauge", "", "1 for the state that a replica is in.", "replica", "state"),
        _of("replica_left_out", "gauge", "", "1 where a replica is left out, since it failed.", "replica"),
        _of("replica_cache", "gauge", "", "1 for how well a replica's cache is known.", "replica", "known"),
        _of("replica_requests", "gauge", "requests", "Requests at a replica, with those of others.", "replica"),
        _of("replica_sent", "counter", "requests", "Requests that were sent to a replica.", "replica"),
        _of("replica_failures", "counter", "requests", "Requests at which a replica broke or failed.", "replica"),
        _of("replica_prompt_tokens", "counter", "tokens", "Tokens of prompts, as estimated.", "replica"),
        _of("replica_hit_tokens", "counter", "tokens", "Those expected in the replica's cache.", "replica"),
        _of("tokens", "counter", "tokens", "What was used; cached ones are of prompts.", "tenant", "model", "of"),
        _of("cost", "counter", "money", "What that has cost, in the currency of prices.", "tenant", "model"),
        _of("limits_apart", "gauge", "", "1 while the store of limits does not answer, and a part of each is left."),
        _of("database_away", "gauge", "", "1 while the database of tenants does not answer."),
        _of("ledger_waiting", "gauge", "entries", "Entries of the ledger that the database does not have yet."),
        Definition(
            "penstock_gateway_time_to_first_byte_seconds",
            "histogram",
            "seconds",
            "From a request's arrival to the first byte of its answer.",
            buckets=SECONDS,
        ),
    )
}
