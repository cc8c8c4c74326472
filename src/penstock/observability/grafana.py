"""Dashboards for Grafana as JSON: panels in rows, one below the other."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.observability.definitions import Definition
from penstock.observability.queries import GRAFANA_RANGE, Query

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _HEIGHT = 24, 8
_QUANTILES = {0.5: "p50", 0.95: "p95", 0.99: "p99"}


@dataclass(frozen=True)
class Panel:
    """One graph.

    Attributes:
        lines: what is drawn: the legend, in which Grafana fills in labels in {{…}}, and the PromQL.
        unit: as Grafana knows it.
        width: of 24 columns.
    """

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    description: str = ""
    stacked: bool = False
    width: int = 8


class Drawing:
    """Draws metrics of one kind of server.

    Attributes:
        query: over the servers that a dashboard's reader chooses.
    """

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions
        self.query = Query(GRAFANA_RANGE, 'instance=~"$instance"', definitions)

    def help(self, name: str) -> str:
        """What a metric is, in a sentence."""
        return self._definitions[name].help

    def quantiles(self, title: str, name: str, unit: str = "s") -> Panel:
        """Three quantiles of a histogram."""
        lines = tuple((shown, self.query.quantile(name, share)) for share, shown in _QUANTILES.items())
        return Panel(title, unit, lines, self.help(name))

    def rates(self, title: str, unit: str, name: str, by: str) -> Panel:
        """A counter by second, by one of its labels, one upon the other."""
        lines = ((f"{{{{{by}}}}}", self.query.rate(name, by=by)),)
        return Panel(title, unit, lines, self.help(name), stacked=True)


@dataclass(frozen=True)
class Board:
    """A dashboard.

    Attributes:
        uid: by which Grafana tells it from others.
        servers: a metric that each of the servers has that it is about.
        rows: panels, by the titles of their rows.
    """

    title: str
    uid: str
    servers: str
    rows: Mapping[str, Sequence[Panel]]

    def content(self) -> dict[str, Any]:
        """The whole dashboard, as Grafana's JSON has it."""
        return {
            "title": self.title,
            "uid": self.uid,
            "tags": ["penstock", "llm"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": self._variables()},
            "panels": list(self._panels()),
        }

    def text(self) -> str:
        """The whole dashboard as text in JSON."""
        return json.dumps(self.content(), indent=2, ensure_ascii=False) + "\n"

    def queries(self) -> list[str]:
        """The PromQL of all its panels."""
        return [target["expr"] for panel in self._panels() for target in panel.get("targets", ())]

    def _variables(self) -> list[dict[str, Any]]:
        return [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
            {
                "name": "instance",
                "type": "query",
                "label": "Server",
                "datasource": _SOURCE,
                "query": f"label_values({self.servers}, instance)",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            },
        ]

    def _panels(self) -> Iterator[dict[str, Any]]:
        number, top = 0, 0
        for title, panels in self.rows.items():
            number += 1
            place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
            yield {"id": number, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}
            top, left = top + 1, 0
            for panel in panels:
                if left + panel.width > _COLUMNS:
                    top, left = top + _HEIGHT, 0
                number += 1
                yield _panel(number, panel, left, top)
                left += panel.width
            top += _HEIGHT


def _panel(number: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 5, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}},
        "targets": [_target(place, *line) for place, line in enumerate(panel.lines)],
    }


def _target(place: int, legend: str, expression: str) -> dict[str, Any]:
    return {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
