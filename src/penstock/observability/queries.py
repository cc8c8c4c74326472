"""PromQL over metrics that have a definition: a name or label that has none is a mistake at once."""

from collections.abc import Mapping, Sequence

from penstock.observability.definitions import DEFINITIONS, Definition

# Grafana replaces it by a range that suits the panel and the scrape interval.
GRAFANA_RANGE = "$__rate_interval"


class Query:
    """Writes PromQL with one range for rates, and matchers that all selectors have."""

    def __init__(self, window: str, matchers: str = "", definitions: Mapping[str, Definition] = DEFINITIONS) -> None:
        self._window, self._matchers, self._definitions = window, matchers, definitions

    def now(self, name: str, **labels: str) -> str:
        """A gauge's newest value, of all servers."""
        self._checked(name, "gauge", labels)
        return f"sum({self._selector(name, labels)})"

    def by(self, name: str, label: str, **labels: str) -> str:
        """A gauge by one of its labels, of all servers."""
        self._checked(name, "gauge", {label: "", **labels})
        return f"sum by ({label}) ({self._selector(name, labels)})"

    def most_by(self, name: str, label: str, **labels: str) -> str:
        """A gauge by one of its labels, where each server tells the same of others: the one that tells most."""
        self._checked(name, "gauge", {label: "", **labels})
        return f"max by ({label}) ({self._selector(name, labels)})"

    def seen_by(self, name: str, each: str, label: str) -> str:
        """A gauge by one of its labels, where each server tells the same of others, which another label names."""
        self._checked(name, "gauge", {each: "", label: ""})
        return f"sum by ({label}) (max by ({each}, {label}) ({self._selector(name, {})}))"

    def rate(self, name: str, *, by: str | None = None, **labels: str) -> str:
        """A counter by second, of all servers, or by one of its labels."""
        self._checked(name, "counter", {**labels, **({by: ""} if by else {})})
        grouped = f" by ({by}) " if by else ""
        return f"sum{grouped}(rate({self._selector(name, labels)}[{self._window}]))"

    def increase(self, name: str) -> str:
        """The query of what a counter gained in the window."""
        self._checked(name, "counter", {})
        return f"sum(increase({self._selector(name, {})}[{self._window}]))"

    def quantile(self, name: str, share: float) -> str:
        """A quantile of a histogram."""
        self._checked(name, "histogram", {})
        return (
            f"histogram_quantile({share}, sum by (le) (rate({self._selector(f'{name}_bucket', {})}[{self._window}])))"
        )

    def mean(self, name: str) -> str:
        """The mean of a histogram."""
        self._checked(name, "histogram", {})
        total, count = (
            f"sum(rate({self._selector(f'{name}_{part}', {})}[{self._window}]))" for part in ("sum", "count")
        )
        return f"{total} / {count}"

    def share(self, part: str, whole: Sequence[str]) -> str:
        """The rate of one counter by that of several together."""
        rates = [self.rate(name) for name in whole]
        return f"{self.rate(part)} / {rates[0] if len(rates) == 1 else '(' + ' + '.join(rates) + ')'}"

    def _selector(self, name: str, labels: Mapping[str, str]) -> str:
        matchers = [f'{label}="{value}"' for label, value in labels.items()]
        every = ",".join([*([self._matchers] if self._matchers else []), *matchers])
        return f"{name}{{{every}}}" if every else name

    def _checked(self, name: str, kind: str, labels: Mapping[str, str]) -> None:
        """Raise ValueError where there is no such metric of this kind, or it has no such label or value."""
        definition = self._definitions.get(name)
        if definition is None or definition.kind != kind:
            raise ValueError(f"{name} is no {kind}")
        for label, value in labels.items():
            values = definition.labels.get(label)
            # Of labels without values anything may stand there, such as a replica's name.
            if values is None or (values and value not in ("", *values)):
                raise ValueError(f"{name} has no label {label}={value}")
