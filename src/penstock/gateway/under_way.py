"""The requests that are under way with each key, so that they can end when it is revoked."""

import contextlib
from collections.abc import Iterator

from penstock.core.errors import PenstockError
from penstock.http.drain import Ending


class UnderWay:
    """By the id of the key; those that asked without one are not known here."""

    def __init__(self) -> None:
        self._by_key: dict[str, set[Ending]] = {}

    @contextlib.contextmanager
    def noted(self, key: str, request: Ending) -> Iterator[None]:
        """A request is under way while the block runs."""
        if not key:
            yield
            return
        mine = self._by_key.setdefault(key, set())
        mine.add(request)
        try:
            yield
        finally:
            mine.discard(request)
            if not mine and self._by_key.get(key) is mine:
                del self._by_key[key]

    def end(self, key: str, error: PenstockError) -> int:
        """End all of a key; how many there were."""
        ended = list(self._by_key.get(key, ()))
        for request in ended:
            request.end_with(error)
        return len(ended)
