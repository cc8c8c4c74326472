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
        if number >= self.next:
            return []
        first = self._last[0][0]
        if number >= first:
            return [batch for batch in self._last if batch[0] >= number]
        return [self.snapshot()()]

    def keeps(self, number: int) -> bool:
        """Whether all batches from a number on are kept, so that none has to tell all that is there."""
        return number >= self.next or number >= self._last[0][0]

    def snapshot(self) -> Callable[[], Numbered]:
        """What makes the batch that clears all and tells all that is there now; it takes a while, and any thread."""
        number, at, stored = self.next - 1, self._at, dict(self._stored)
        return lambda: (number, encode_batch(at, [Cleared(), *_in_order(stored)], self._block_size))


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
