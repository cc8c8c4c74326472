"""Alert rules for Prometheus over the metrics, as YAML."""

import json
from dataclasses import dataclass
from typing import Literal

from penstock.observability.gateway_definitions import GATEWAY_DEFINITIONS
from penstock.observability.queries import Query

_five, _ten, _hour = Query("5m"), Query("10m"), Query("1h")
_GOOD, _JUDGED = "penstock_good_requests_total", ["penstock_slo_judged_requests_total"]
_DROPPED = "penstock_kv_tier_blocks_dropped_total"
_COMPUTED = ["penstock_prefill_tokens_total", "penstock_decode_tokens_total"]


@dataclass(frozen=True)
class Rule:
    """One alert.

    Attributes:
        holds: PromQL that has a value where something is wrong.
        lasting: how long it has to last before the alert is sent.
        means: what is wrong, in a sentence; `does`: what helps.
    """

    name: str
    holds: str
    lasting: str
    severity: Literal["page", "ticket"]
    means: str
    does: str


RULES = (
    Rule(
        "PenstockAbsent",
        "absent(penstock_ready)",
        "5m",
        "page",
        "No Penstock server is scraped.",
        "Look whether the server runs, and whether Prometheus reaches it and has a key.",
    ),
    Rule(
        "PenstockNotReady",
        "penstock_ready == 0",
        "2m",
        "page",
        "A server has not been ready for two minutes.",
        "GET /health/ready says why.",
    ),
    Rule(
        "PenstockEngineRestarted",
        f"{_ten.increase('penstock_engine_restarts_total')} > 0",
        "0m",
        "ticket",
        "An engine ended or hung, and was started again.",
        "The server's log has the cause.",
    ),
    Rule(
        "PenstockEngineStuck",
        f"sum(penstock_requests_in_flight) > 0 and {_five.increase('penstock_engine_steps_total')} == 0",
        "2m",
        "page",
        "There are requests, and the engine has computed nothing for minutes.",
        "GET /health/ready; the engine may be paused, or a step takes that long.",
    ),
    Rule(
        "PenstockMissesServiceLevels",
        f"{_five.share(_GOOD, _JUDGED)} < 0.9 and {_hour.share(_GOOD, _JUDGED)} < 0.99",
        "2m",
        "page",
        "More than one in ten requests misses the service levels now, and more than one in a hundred did in this hour.",
        "penstock_slo_missed_total says which limit; GET /v1/requests/{id}/explain says why for one request.",
    ),
    Rule(
        "PenstockRequestsFail",
        f"{_five.rate('penstock_requests_total', outcome='failed')} / {_five.rate('penstock_requests_total')} > 0.01",
        "5m",
        "page",
        "More than 1% of the requests fail.",
        "The server's log has the causes.",
    ),
    Rule(
        "PenstockRefusesRequests",
        f"{_five.rate('penstock_requests_total', outcome='refused')} / {_five.rate('penstock_requests_total')} > 0.05",
        "5m",
        "ticket",
        "More than 5% of the requests are refused, since more come than can be served.",
        "penstock_requests_refused_total says why; add servers, or allow a longer queue.",
    ),
    Rule(
        "PenstockQueueDoesNotEmpty",
        "sum(min_over_time(penstock_requests_waiting[10m])) > 0",
        "5m",
        "ticket",
        "There has always been a queue for fifteen minutes.",
        "penstock_waiting_seconds_total says what it waits for.",
    ),
    Rule(
        "PenstockPreempts",
        f"{_ten.share('penstock_recomputed_tokens_total', _COMPUTED)} > 0.1",
        "10m",
        "ticket",
        "More than 10% of what is computed had been computed before: sequences lose their KV blocks and begin again.",
        "Give the pool more memory (--kv-cache-memory), or run fewer sequences at a time (--max-num-seqs).",
    ),
    Rule(
        "PenstockWaitsForProcessor",
        f"{_five.share('penstock_cpu_wait_seconds_total', ['penstock_step_seconds_total'])} > 0.1",
        "10m",
        "ticket",
        "The engine is ready to run and has no processor for more than a tenth of its time.",
        "Something else computes on these cores: move it, or give the engine cores of its own.",
    ),
    Rule(
        "PenstockTierTakesLittle",
        f"{_ten.share(_DROPPED, [_DROPPED, 'penstock_kv_tier_blocks_written_total'])} > 0.5",
        "10m",
        "ticket",
        "More than half of the blocks of prefixes that were to be kept beyond the pool are not.",
        "A disk or a store is too slow, or fails: penstock_kv_tier_blocks_dropped_total says which, the log why.",
    ),
    Rule(
        "PenstockStorageFails",
        "penstock_storage_failing == 1",
        "5m",
        "ticket",
        "The disk under a server's data takes nothing: no files, batches or stored responses.",
        "Make room on it, or see what the log says of it.",
    ),
)


_fleet = Query("5m", definitions=GATEWAY_DEFINITIONS)
_FLEETS = "penstock_gateway_requests_total"
GATEWAY_RULES = (
    Rule(
        "PenstockNoReplica",
        'sum by (instance) (penstock_gateway_replica_state{state="ready"}) == 0',
        "1m",
        "page",
        "A gateway has had no replica that can answer for a minute.",
        "GET /v1/fleet of the gateway says why for each.",
    ),
    Rule(
        "PenstockReplicaMissing",
        'sum by (instance, replica) (penstock_gateway_replica_state{state=~"unreachable|stale|unready"}) > 0',
        "5m",
        "ticket",
        "A replica has not been able to answer for five minutes.",
        "GET /v1/fleet of the gateway says why; the replica's log has the cause.",
    ),
    Rule(
        "PenstockReplicaFails",
        f"{_fleet.rate('penstock_gateway_replica_failures_total', by='replica')} > 0.1",
        "5m",
        "ticket",
        "A replica breaks or fails more than six times a minute.",
        "Its log has the cause; the gateway leaves it out after three failures in a row, and tries it again.",
    ),
    Rule(
        "PenstockGatewayBreaks",
        f"{_fleet.rate(_FLEETS, outcome='broken')} / {_fleet.rate(_FLEETS)} > 0.01",
        "5m",
        "page",
        "More than 1% of the requests end without a whole answer.",
        "The gateway's log says at which replicas; replicas that are alike go on with each other's streams.",
    ),
    Rule(
        "PenstockGatewayRefuses",
        f"{_fleet.rate(_FLEETS, outcome='refused')} / {_fleet.rate(_FLEETS)} > 0.05",
        "5m",
        "ticket",
        "More than 5% of the requests are refused, since more come than replicas can serve.",
        "Add replicas, or let requests wait for longer (hold.seconds).",
    ),
    Rule(
        "PenstockRetriesOverBudget",
        f"{_fleet.rate('penstock_gateway_retries_total', kind='over_budget')} > 0",
        "5m",
        "ticket",
        "Requests are not sent elsewhere any more, since too many were.",
        "Replicas fail too often: GET /v1/fleet says which, and their logs why.",
    ),
    Rule(
        "PenstockLimitsApart",
        "sum by (instance) (penstock_gateway_limits_apart) > 0",
        "5m",
        "ticket",
        "A gateway has not reached the store of limits for five minutes, and goes on with a part of each limit.",
        "The gateway's log says why; look whether the Valkey or Redis of --limits-store answers.",
    ),
    Rule(
        "PenstockDatabaseAway",
        "sum by (instance) (penstock_gateway_database_away) > 0",
        "5m",
        "ticket",
        "A gateway has not reached its database for five minutes: it learns of no key that is new or revoked.",
        "The gateway's log says why; entries of the ledger wait in its journal until the database answers.",
    ),
    Rule(
        "PenstockCachesUnknown",
        'sum by (instance) (penstock_gateway_replica_cache{known="degraded"}) > 0',
        "10m",
        "ticket",
        "A gateway has not known for ten minutes what a replica has in its cache.",
        "The gateway's log says what cannot be read; look whether it reaches the port of --kv-events and the next.",
    ),
)


def alerts_yaml() -> str:
    """The rules as a file for `rule_files`. Texts are in JSON's quotes, which are YAML's too."""
    lines = ["groups:"]
    for group, rules in (("penstock", RULES), ("penstock-gateway", GATEWAY_RULES)):
        lines += [f"  - name: {group}", "    rules:"]
        for rule in rules:
            lines += _lines(rule)
    return "\n".join(lines) + "\n"


def _lines(rule: Rule) -> list[str]:
    return [
        f"      - alert: {rule.name}",
        f"        expr: {json.dumps(rule.holds)}",
        f"        for: {rule.lasting}",
        "        labels:",
        f"          severity: {rule.severity}",
        "        annotations:",
        f"          summary: {json.dumps(rule.means)}",
        f"          description: {json.dumps(rule.does)}",
    ]
