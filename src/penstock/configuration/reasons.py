"""Collects a reason for each value that is resolved."""

from collections.abc import Callable

from penstock.core.config import Reason

Note = Callable[[str, object, str], None]
"""(setting, its value, why it has that value)"""


class Reasons:
    """Values with their reasons, in the order in which they were resolved."""

    def __init__(self) -> None:
        self.found: list[Reason] = []

    def note(self, setting: str, value: object, why: str) -> None:
        """Keep a value and its reason."""
        self.found.append(Reason(setting, str(value), why))

    def limit(self, setting: str, value: object, why: str) -> None:
        """The same for a value that limits what can be asked of a server, so that its start tells it."""
        self.found.append(Reason(setting, str(value), why, at_start=True))
