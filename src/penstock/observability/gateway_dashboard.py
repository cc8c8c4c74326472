"""A Grafana dashboard over the metrics of gateways."""

from penstock.observability.gateway_definitions import GATEWAY_DEFINITIONS
from penstock.observability.grafana import Board, Drawing, Panel

_PREFIX = "penstock_gateway_"
_draw = Drawing(GATEWAY_DEFINITIONS)
_query = _draw.query


def _help(name: str) -> str:
    return _draw.help(_PREFIX + name)


def _rates(title: str, unit: str, name: str, by: str) -> Panel:
    return _draw.rates(title, unit, _PREFIX + name, by)


def _by_replica(title: str, name: str) -> Panel:
    return Panel(title, "short", (("{{replica}}", _query.by(_PREFIX + name, "replica")),), _help(name))


def _by_model(title: str, unit: str, name: str) -> Panel:
    """What waits at the gateways, each its own, and at replicas, all of them told by each gateway."""
    here = _query.by(_PREFIX + name, "model", at="gateway")
    there = _query.most_by(_PREFIX + name, "model", at="replicas")
    return Panel(title, unit, (("{{model}}", f"{here} + {there}"),), _help(name))


def _told(title: str, name: str, label: str) -> Panel:
    """Numbers of replicas, which each gateway tells."""
    return Panel(title, "short", ((f"{{{{{label}}}}}", _query.most_by(_PREFIX + name, label)),), _help(name))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        _rates("Requests by outcome", "reqps", "requests_total", "outcome"),
        _draw.quantiles("Time to the first byte", f"{_PREFIX}time_to_first_byte_seconds"),
        _rates("Sent again, and gone on with", "reqps", "retries_total", "kind"),
        Panel(
            "Prompts handed over",
            "reqps",
            (("requests", _query.rate(f"{_PREFIX}handed_over_total")),),
            _help("handed_over_total"),
        ),
        _rates("Judged", "reqps", "judged_total", "verdict"),
        _rates("Guardrails", "reqps", "guarded_total", "result"),
        _rates("Traces", "reqps", "traces_total", "outcome"),
        Panel("Waiting at the gateway", "short", (("requests", _query.now(f"{_PREFIX}held")),), _help("held")),
    ),
    "Models": (
        _told("Replicas", "model_replicas", "model"),
        _rates("Asked", "reqps", "model_asked_total", "model"),
        _by_model("Requests", "short", "model_requests"),
        _by_model("Tokens of prompts that wait", "short", "model_waiting_tokens"),
        _by_model("Seconds that one replica would need for them", "s", "model_backlog_seconds"),
    ),
    "Replicas": (
        Panel(
            "States",
            "short",
            (("{{state}}", _query.seen_by(f"{_PREFIX}replica_state", "replica", "state")),),
            _help("replica_state"),
            stacked=True,
        ),
        _by_replica("Left out", "replica_left_out"),
        _by_replica("Requests there", "replica_requests"),
        _rates("Sent", "reqps", "replica_sent_total", "replica"),
        _rates("Failures", "reqps", "replica_failures_total", "replica"),
    ),
    "Tenants": (
        _rates("Tokens", "short", "tokens_total", "tenant"),
        _rates("Cost", "short", "cost_total", "tenant"),
        _rates("Tokens by model", "short", "tokens_total", "model"),
        Panel(
            "Behind the gateway",
            "short",
            (
                ("limits apart", _query.now(f"{_PREFIX}limits_apart")),
                ("database away", _query.now(f"{_PREFIX}database_away")),
                ("entries that wait", _query.now(f"{_PREFIX}ledger_waiting")),
            ),
            _help("ledger_waiting"),
        ),
    ),
    "Batches and copies": (
        _rates("Lines of batches", "reqps", "batch_lines_total", "line"),
        Panel(
            "Lines under way",
            "short",
            (("lines", _query.now(f"{_PREFIX}batch_lines_running")),),
            _help("batch_lines_running"),
        ),
        _rates("Copies of requests", "reqps", "copies_total", "outcome"),
    ),
    "Caches": (
        Panel(
            "Expected hits",
            "percentunit",
            (
                (
                    "of the prompts' tokens",
                    _query.share(f"{_PREFIX}replica_hit_tokens_total", [f"{_PREFIX}replica_prompt_tokens_total"]),
                ),
            ),
            "Tokens that were expected in the cache of the replica that a prompt was sent to.",
        ),
        Panel(
            "How well caches are known",
            "short",
            (("{{known}}", _query.by(f"{_PREFIX}replica_cache", "known")),),
            _help("replica_cache"),
            stacked=True,
        ),
        _rates("Answers given again", "reqps", "answers_total", "lookup"),
        Panel(
            "Answer cache",
            "bytes",
            (
                ("in memory", _query.now(f"{_PREFIX}answer_bytes")),
                ("dropped/s", _query.rate(f"{_PREFIX}answers_dropped_total")),
                ("store away", _query.now(f"{_PREFIX}answers_away")),
            ),
            _help("answer_bytes"),
        ),
        Panel(
            "Index",
            "short",
            (
                ("blocks", _query.now(f"{_PREFIX}index_blocks")),
                ("forgotten/s", _query.rate(f"{_PREFIX}index_forgotten_total")),
            ),
            _help("index_blocks"),
        ),
    ),
}

GATEWAY_DASHBOARD = Board("Penstock gateway", "penstock-gateway", "penstock_gateway_held", ROWS)
