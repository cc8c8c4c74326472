"""A Grafana dashboard over the metrics of gateways."""

from penstock.observability.gateway_definitions import GATEWAY_DEFINITIONS as DEFINITIONS
from penstock.observability.grafana import Board, Panel
from penstock.observability.queries import GRAFANA_RANGE, Query

_PREFIX = "penstock_gateway_"
_query = Query(GRAFANA_RANGE, 'instance=~"$instance"', DEFINITIONS)


def _help(name: str) -> str:
    return DEFINITIONS[_PREFIX + name].help


def _rates(title: str, unit: str, name: str, by: str, *, width: int = 8) -> Panel:
    lines = ((f"{{{{{by}}}}}", _query.rate(_PREFIX + name, by=by)),)
    return Panel(title, unit, lines, _help(name), stacked=True, width=width)


def _by_replica(title: str, name: str) -> Panel:
    return Panel(title, "short", (("{{replica}}", _query.by(_PREFIX + name, "replica")),), _help(name))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        _rates("Requests by outcome", "reqps", "requests_total", "outcome"),
        Panel(
            "Time to the first byte",
            "s",
            tuple(
                (shown, _query.quantile(f"{_PREFIX}time_to_first_byte_seconds", share))
                for shown, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
            ),
            _help("time_to_first_byte_seconds"),
        ),
        _rates("Sent again, and gone on with", "reqps", "retries_total", "kind"),
        Panel("Waiting at the gateway", "short", (("requests", _query.now(f"{_PREFIX}held")),), _help("held")),
    ),
    "Replicas": (
        Panel(
            "States",
            "short",
            (("{{state}}", _query.by(f"{_PREFIX}replica_state", "state")),),
            _help("replica_state"),
            stacked=True,
        ),
        _by_replica("Left out", "replica_left_out"),
        _by_replica("Requests there", "replica_requests"),
        _rates("Sent", "reqps", "replica_sent_total", "replica"),
        _rates("Failures", "reqps", "replica_failures_total", "replica"),
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
