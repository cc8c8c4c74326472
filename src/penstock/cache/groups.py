"""KV groups: each answers for its own slots, and only KV groups turn tokens into blocks."""

from typing import Protocol

from penstock.cache.chain import PrefixChain
from penstock.cache.prefix import PrefixIndex
from penstock.core.kv import GroupSpec


class GroupPolicy(Protocol):
    """What one kind of group needs to have, may release and can hit."""

    def first_needed(self, position: int) -> int:
        """Index of the first block that the token at `position` attends to."""

    def hit(self, index: PrefixIndex, group: int, chain: PrefixChain, limit: int) -> int:
        """The most leading blocks, at most `limit`, after which this group could go on from the cache."""


class FullAttention:
    """Every token attends to all tokens before it."""

    def first_needed(self, position: int) -> int:
        """Always the first block: each position attends to all before it."""
        return 0

    def hit(self, index: PrefixIndex, group: int, chain: PrefixChain, limit: int) -> int:
        """The length of the unbroken chain of published blocks."""
        for depth in range(limit):
            if index.lookup(group, chain, depth) is None:
                return depth
        return limit


class SlidingWindow:
    """A token attends to itself and the `window - 1` tokens before it."""

    def __init__(self, window: int, block_size: int) -> None:
        self._window = window
        self._block_size = block_size

    def first_needed(self, position: int) -> int:
        """The block of the oldest position in the window."""
        return max(0, position - self._window + 1) // self._block_size

    def hit(self, index: PrefixIndex, group: int, chain: PrefixChain, limit: int) -> int:
        """The longest prefix, counted from its end, whose last window is published without a gap.

        The window is that of the prefix's own last token, which may have to be computed again for its output.
        """
        unbroken_end = limit
        for depth in range(limit - 1, -1, -1):
            if index.lookup(group, chain, depth) is None:
                unbroken_end = depth
            elif depth <= self.first_needed(unbroken_end * self._block_size - 1):
                return unbroken_end
        return unbroken_end


def group_policy(spec: GroupSpec, block_size: int) -> GroupPolicy:
    """The policy for a group's kind of attention."""
    return FullAttention() if spec.window is None else SlidingWindow(spec.window, block_size)
