"""What is generated from the definitions of metrics: a dashboard, alert rules, and the files that are kept of them."""

import json
import re
from collections.abc import Set
from pathlib import Path

import pytest
import yaml

from penstock.observability.alerts import GATEWAY_RULES, RULES, alerts_yaml
from penstock.observability.dashboard import DASHBOARD
from penstock.observability.definitions import DEFINITIONS, as_markdown
from penstock.observability.gateway_dashboard import GATEWAY_DASHBOARD
from penstock.observability.gateway_definitions import GATEWAY_DEFINITIONS
from penstock.observability.grafana import Board
from penstock.observability.queries import Query
from support.promql import series_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("deploy/grafana/penstock.json", DASHBOARD.text()),
        ("deploy/grafana/penstock-gateway.json", GATEWAY_DASHBOARD.text()),
        ("deploy/prometheus/alerts.yml", alerts_yaml()),
    ],
)
def test_files_are_what_the_command_writes(file: str, text: str) -> None:
    assert (ROOT / file).read_text() == text, f"run `penstock metrics` and write {file} anew"


def test_the_documentation_has_the_table_of_all_metrics() -> None:
    assert as_markdown() in (ROOT / "docs/metrics.md").read_text(), "put what `penstock metrics table` prints there"


@pytest.mark.parametrize(
    ("board", "names"), [(DASHBOARD, DEFINITIONS.keys()), (GATEWAY_DASHBOARD, GATEWAY_DEFINITIONS.keys())]
)
def test_the_dashboard_shows_every_metric(board: Board, names: Set[str]) -> None:
    shown = {name for query in board.queries() for name, _ in series_of(query)}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == names


@pytest.mark.parametrize("board", [DASHBOARD, GATEWAY_DASHBOARD])
def test_the_dashboard_is_laid_out_without_overlap(board: Board) -> None:
    panels = json.loads(board.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


def test_alert_rules_are_yaml_that_says_what_they_mean() -> None:
    groups = yaml.safe_load(alerts_yaml())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["expr"] for rule in rules] == [rule.holds for rule in (*RULES, *GATEWAY_RULES)]
    for rule in rules:
        assert rule["alert"].startswith("Penstock") and re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".") and rule["annotations"]["description"].endswith(".")


def test_a_query_of_what_there_is_not_cannot_be_written() -> None:
    query = Query("5m")
    with pytest.raises(ValueError, match="penstock_nothing is no gauge"):
        query.now("penstock_nothing")
    with pytest.raises(ValueError, match="penstock_ready is no counter"):
        query.rate("penstock_ready")
    with pytest.raises(ValueError, match="no label outcome=lost"):
        query.rate("penstock_requests_total", outcome="lost")
    with pytest.raises(ValueError, match="no label reason"):
        query.rate("penstock_requests_total", by="reason")
