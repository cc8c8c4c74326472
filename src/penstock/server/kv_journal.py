"""What a replica has told of its prefix cache, so that it can be told again: the last batches, or all that is there."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored
from penstock.core.kv_wire import encode_batch

# Batches that are kept, as vLLM keeps them.
KEPT = 10_000
Numbered = tuple[int, bytes]


class KVJournal:
    """Numbers batches of events from 0 on, and keeps what the cache has.

    Args:
        block_size: tokens of a block.
        kept: batches that can be told again one by one.

    Attributes:
        next: the number of the next batch.
    """

    def __init__(self, block_size: int, kept: int = KEPT) -> None:
        self._block_size = block_size
        self._last: deque[Numbered] = deque(maxlen=kept)
        self.next = 0
        self._at = 0.0
        self._stored: dict[bytes, Stored] = {}

    def __len__(self) -> int:
        """How many blocks can be hit."""
        return len(self._stored)

    def add(self, at: float, events: Sequence[KVEvent]) -> Numbered:
        """A batch of events, as it is sent; `at` in seconds."""
        for event in events:
            match event:
                case Stored(key):
                    self._stored[key] = event
                case Removed(key):
                    self._stored.pop(key, None)
                case Cleared():
                    self._stored.clear()
        self._at = at
        batch = self.next, encode_batch(at, events, self._block_size)
        self.next += 1
        self._last.append(batch)
        return batch

    def since(self, number: int) -> list[Numbered]:
        """The batches from a number on; where some of them are kept no longer, one that clears all and tells all."""
        return self.making(number)()

    def making(self, number: int) -> Callable[[], list[Numbered]]:
        """What makes them, as they are now: it may take a while, in any thread."""
        if number >= self.next:
            return list
        if number >= self._last[0][0]:
            kept = [batch for batch in self._last if batch[0] >= number]
            return lambda: kept
        newest, at, stored = self.next - 1, self._at, dict(self._stored)
        return lambda: [(newest, encode_batch(at, [Cleared(), *_in_order(stored)], self._block_size))]


def _in_order(stored: Mapping[bytes, Stored]) -> Iterator[Stored]:
    """All blocks, each behind the one before it in its prompt. Those whose parent is gone cannot be hit."""
    told: set[bytes] = set()
    for key in stored:
        chain: list[Stored] = []
        block = stored.get(key)
        while block is not None and block.key not in told:
            chain.append(block)
            if block.parent is None or block.parent in told:
                break
            block = stored.get(block.parent)
        else:
            # Its first block is missing, or it was told.
            continue
        for each in reversed(chain):
            told.add(each.key)
            yield each
