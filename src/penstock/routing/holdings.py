"""Which replicas hold which blocks of prompts, by the blocks' keys."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Holdings:
    """A bounded index. A block's replicas are the bits of an integer, so that a look-up takes one step a block.

    Args:
        most: keys that are held at a time; the one that was noted or found longest ago is forgotten first.

    Attributes:
        forgotten: how many keys there was no room for.
        told: how many blocks replicas have told of that are remembered by their own names; at most `most_told`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: OrderedDict[int, int] = OrderedDict()
        # Replicas of whose blocks some were forgotten, as bits.
        self._partial = 0
        self.forgotten = self.told = 0
        self.most_told = 2 * most

    def __len__(self) -> int:
        return len(self._holders)

    def stored(self, replica: int, keys: Sequence[int]) -> None:
        """The replica has these blocks of a prompt, in order."""
        holders, bit = self._holders, 1 << replica
        # What is behind a block is of no use without it, and so is forgotten first.
        for key in reversed(keys):
            holders[key] = holders.get(key, 0) | bit
            holders.move_to_end(key)
        while len(holders) > self._most:
            self._partial |= holders.popitem(last=False)[1]
            self.forgotten += 1

    def removed(self, replica: int, keys: Iterable[int]) -> None:
        """The replica has these blocks no longer."""
        holders, bit = self._holders, 1 << replica
        for key in keys:
            left = holders.get(key, 0) & ~bit
            if left:
                holders[key] = left
            else:
                holders.pop(key, None)

    def is_partial(self, replica: int) -> bool:
        """Whether blocks of the replica were forgotten for want of room, since it began anew."""
        return bool(self._partial & 1 << replica)

    def begins_anew(self, replica: int) -> None:
        """The replica has nothing, and none of its blocks is forgotten."""
        self._partial &= ~(1 << replica)

    def hits(self, keys: Sequence[int]) -> dict[int, int]:
        """How many of a prompt's first blocks each replica has; those with none are left out."""
        holders = self._holders
        found: dict[int, int] = {}
        depth, held = 0, -1
        for depth, key in enumerate(keys):
            still = holders.get(key, 0) & held
            if depth:
                _note(found, held & ~still, depth)
            held = still
            if not held:
                break
        else:
            depth = len(keys)
            _note(found, held if keys else 0, depth)
        for key in reversed(keys[:depth]):
            holders.move_to_end(key)
        return found


def _note(found: dict[int, int], replicas: int, depth: int) -> None:
    """Each of the replicas has as many blocks."""
    while replicas:
        last = replicas & -replicas
        found[last.bit_length() - 1] = depth
        replicas ^= last


class Recent:
    """A guess at what a replica holds that does not say it: the blocks of what was sent to it last.

    Args:
        blocks: that its cache has room for.
    """

    def __init__(self, holdings: Holdings, replica: int, blocks: int) -> None:
        self._holdings, self._replica, self._blocks = holdings, replica, blocks
        self._keys: OrderedDict[int, None] = OrderedDict()

    def forget(self) -> None:
        """It is not guessed any longer."""
        self._holdings.removed(self._replica, self._keys)
        self._keys.clear()

    def sent(self, keys: Sequence[int]) -> None:
        """A prompt of these blocks was sent to it."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        self._holdings.stored(self._replica, keys)
        gone = []
        while len(self._keys) > self._blocks:
            gone.append(self._keys.popitem(last=False)[0])
        self._holdings.removed(self._replica, gone)
