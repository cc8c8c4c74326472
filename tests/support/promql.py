"""Just enough of PromQL to see which series a query names."""

import re

_SELECTOR = re.compile(r"\b(penstock_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(?:=~|=)"([^"]*)"')


def series_of(query: str) -> list[tuple[str, dict[str, str]]]:
    """Each name in a query, and the labels that its selector asks for."""
    return [(name, dict(_MATCHER.findall(matchers or ""))) for name, matchers in _SELECTOR.findall(query)]
