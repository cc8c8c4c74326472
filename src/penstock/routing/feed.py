"""What a replica says of its cache, in the keys of the router."""

from collections import Counter
from collections.abc import Iterable, Sequence

from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored
from penstock.routing.holdings import Holdings
from penstock.routing.keys import following, token_root


class Feed:
    """Takes the events of one replica in order.

    Attributes:
        reads: how its prompts are read; what sets their blocks apart from those that are read otherwise.
        orphans: blocks that could not be placed, since the one before them is not known. Then something was lost, and a
            snapshot is needed.
        is_partial: whether the replica has told of more than there is room for.
    """

    def __init__(self, holdings: Holdings, replica: int, reads: str = "") -> None:
        self._holdings, self._replica = holdings, replica
        self.reads = reads
        self._own: dict[bytes, int] = {}
        self._held: Counter[int] = Counter()
        self._expected: Counter[int] = Counter()
        self.orphans = 0
        self.is_partial = False

    def take(self, events: Iterable[KVEvent]) -> None:
        """Take in what has changed in the replica's cache."""
        for event in events:
            match event:
                case Stored():
                    self._stored(event)
                case Removed(key):
                    if (own := self._own.pop(key, None)) is not None:
                        self._holdings.told -= 1
                        self._held[own] -= 1
                        self._let_go(own)
                case Cleared():
                    self.restart()

    def restart(self) -> None:
        """The replica began anew, or what was known is not to be relied on."""
        gone = list(self._held)
        self._holdings.told -= len(self._own)
        self._own.clear()
        self._held.clear()
        self.orphans, self.is_partial = 0, False
        self._holdings.removed(self._replica, [own for own in gone if own not in self._expected])
        self._holdings.begins_anew(self._replica)

    def forget(self) -> None:
        """The replica is gone, and what it was expected to have with it."""
        self.restart()
        self._holdings.removed(self._replica, list(self._expected))

    def expect(self, keys: Sequence[int]) -> None:
        """A prompt of these blocks is on its way: the replica will have them soon, so that others like it may follow.

        Each call is followed by one of `settle`.
        """
        self._expected.update(keys)
        self._holdings.stored(self._replica, keys)

    def settle(self, keys: Sequence[int]) -> None:
        """Nothing more is expected of that prompt: what the replica has now, it has told."""
        for own in keys:
            self._expected[own] -= 1
            if not self._expected[own]:
                del self._expected[own]
            self._let_go(own)

    def _stored(self, event: Stored) -> None:
        parent = token_root(self.reads, event.salt) if event.parent is None else self._own.get(event.parent)
        if parent is None:
            self.orphans += 1
            return
        if event.key in self._own:
            # It may have been forgotten meanwhile.
            self._holdings.stored(self._replica, (self._own[event.key],))
            return
        if self._holdings.told >= self._holdings.most_told:
            self.is_partial = True
            return
        self._holdings.told += 1
        own = self._own[event.key] = following(parent, event.tokens)
        self._held[own] += 1
        self._holdings.stored(self._replica, (own,))

    def _let_go(self, own: int) -> None:
        if self._held.get(own, 0) > 0:
            return
        self._held.pop(own, None)
        if own not in self._expected:
            self._holdings.removed(self._replica, (own,))
