"""What a replica says of its cache, in the keys of the router."""

from collections.abc import Iterable

from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored
from penstock.routing.holdings import Holdings
from penstock.routing.keys import following, namespace


class Feed:
    """Takes the events of one replica in order.

    Attributes:
        orphans: blocks that could not be placed, since the one before them is not known. Then something was lost, and a
            snapshot is needed.
    """

    def __init__(self, holdings: Holdings, replica: int) -> None:
        self._holdings, self._replica = holdings, replica
        self._own: dict[bytes, int] = {}
        self.orphans = 0

    def take(self, events: Iterable[KVEvent]) -> None:
        """Take in what has changed in the replica's cache."""
        for event in events:
            match event:
                case Stored():
                    self._stored(event)
                case Removed(key):
                    if (own := self._own.pop(key, None)) is not None:
                        self._holdings.removed(self._replica, (own,))
                case Cleared():
                    self.restart()

    def restart(self) -> None:
        """The replica began anew, or what was known is not to be relied on."""
        self._holdings.removed(self._replica, self._own.values())
        self._own.clear()
        self.orphans = 0

    def _stored(self, event: Stored) -> None:
        parent = namespace(event.salt) if event.parent is None else self._own.get(event.parent)
        if parent is None:
            self.orphans += 1
            return
        own = self._own[event.key] = following(parent, event.tokens)
        self._holdings.stored(self._replica, (own,))
